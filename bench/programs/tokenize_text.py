# SPDX-License-Identifier: Apache-2.0
"""`./dev bench tokenize`: MB of text a CPU second on one core, ours beside the reference implementation
of each tokenizer. Systems alternate round by round, each in a process of its own; "first" is a
process's first pass over the text, "again" its second, when all caches are warm. Comparisons with
other numbers of tokens are void."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
OURS = ROOT / "build/release/bin/bench_tokenize"
ORACLE = ROOT / "tests/e2e/tokenizer_oracle.py"
# A tokenizer: our path, that of the reference, and what the reference is.
TOKENIZERS = {
    "gpt2": ("tokenizers/gpt2", "tokenizers/gpt2", "tokenizers"),
    "llama3": ("tokenizers/llama3", "tokenizers/llama3/tokenizer.json", "tokenizers"),
    "smollm2": ("models/smollm2-135m", "models/smollm2-135m/tokenizer.json", "tokenizers"),
    "r50k": ("tokenizers/tiktoken/r50k_base.tiktoken",) * 2 + ("tiktoken",),
    "o200k": ("tokenizers/tiktoken/o200k_base.tiktoken",) * 2 + ("tiktoken",),
}
ONE_CORE = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(command: list[str]) -> dict[str, object]:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **ONE_CORE}
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench tokenize", description=__doc__)
    parser.add_argument("--text", default=str(ROOT / "data/kjv.txt"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    print(f"{'tokenizer':10} {'system':11} {'load s':>7} {'first MB/s':>11} {'again MB/s':>11}   "
          "ratio to the reference, first and again")
    for name, (ours, theirs, reference) in TOKENIZERS.items():
        if not (DATA / theirs).exists():
            print(f"{name:10} is not there: ./dev data tokenizers, ./dev data smollm2")
            continue
        commands = {
            "fsdp": [str(OURS), str(DATA / ours), arguments.text, "2"],
            reference: [sys.executable, str(ORACLE), str(DATA / theirs), arguments.text, "time"],
        }
        runs: dict[str, list[dict[str, object]]] = {system: [] for system in commands}
        for _ in range(arguments.rounds):
            for system, command in commands.items():
                runs[system].append(run(command))
        tokens = {one["tokens"] for all_of in runs.values() for one in all_of}
        if len(tokens) != 1:
            sys.exit(f"comparison void: {name} gives {tokens} tokens")
        speed = {}
        for system, all_of in runs.items():
            size = all_of[0]["bytes"] / 1e6
            first, again = (
                round(statistics.median(size / one["encode_s"][i] for one in all_of), 2) for i in (0, 1)
            )
            load = round(statistics.median(one["load_s"] for one in all_of), 2)
            speed[system] = (first, again)
            ratio = ""
            if system == reference:
                ratio = "   {:.1f} {:.1f}".format(*(speed["fsdp"][i] / speed[system][i] for i in (0, 1)))
            print(f"{name:10} {system:11} {load:7.2f} {first:11.2f} {again:11.2f}{ratio}")
            rows.append(
                {"tokenizer": name, "system": system, "load_s": load, "first_mb_s": first, "again_mb_s": again}
            )
    path = ROOT / "build/bench/tokenize.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"Wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
