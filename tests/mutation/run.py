#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the tests: plants one bug after the other into a copy of the source and expects that a test
fails. `./dev mutate` runs all of tests/mutation/mutants, `./dev mutate NAME ...` some.

Each module has a list. A mutant is {name, file, old, new, tests}: `old` must occur exactly once in
`file`; `tests` are test binaries, with GoogleTest filters after a colon, of which one must fail. The copy
lies in build/mutation and shares the compiler cache."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from mutants import read  # noqa: E402

LIMIT_S = 300
CAUGHT, SURVIVED, BROKEN = "caught", "SURVIVED", "BROKEN"


def sync(copy: Path) -> None:
    """Brings the copy up to date; unchanged files keep their time, so little is compiled again."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        source, target = ROOT / name, copy / name
        if not source.is_file():
            continue
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    environment = copy / ".venv"
    if not environment.exists() and (ROOT / ".venv").exists():
        environment.symlink_to((ROOT / ".venv").resolve())


def build(copy: Path, targets: list[str]) -> subprocess.CompletedProcess[str]:
    folder = copy / "build" / "release"
    if not (folder / "build.ninja").exists():
        compiler = [
            line for line in (ROOT / "build/release/CMakeCache.txt").read_text().splitlines()
            if line.startswith("CMAKE_CXX_COMPILER:")
        ]  # fmt: skip
        command = ["cmake", "--preset", "release"]
        command += [f"-DCMAKE_CXX_COMPILER={line.split('=', 1)[1]}" for line in compiler]
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        if result.returncode != 0:
            return result
    command = ["cmake", "--build", str(folder), "--target", *targets]
    return subprocess.run(command, capture_output=True, text=True)


def run_test(copy: Path, test: str) -> tuple[bool, str]:
    """Whether it passes, and its last words. A test that does not end has failed."""
    binary, _, pattern = test.partition(":")
    command = [str(copy / "build/release/bin" / binary), "--gtest_brief=1"]
    command += [f"--gtest_filter={pattern}"] if pattern else []
    environment = dict(os.environ, OMP_NUM_THREADS="1", FSDP_TIMEOUT="20",
                       FSDP_BINARY=str(copy / "build/release/bin/fsdp"))  # fmt: skip
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment,
            errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"did not end in {LIMIT_S} s"
    failed = [line for line in result.stdout.splitlines() if line.startswith("[  FAILED  ]")]
    last = failed[0] if failed else (result.stderr.strip().splitlines() or ["?"])[-1]
    return result.returncode == 0, last


def try_mutant(copy: Path, mutant: dict, original: str) -> tuple[str, str]:
    path = copy / mutant["file"]
    if original.count(mutant["old"]) != 1:
        return BROKEN, f"the text to replace occurs {original.count(mutant['old'])} times"
    path.write_text(original.replace(mutant["old"], mutant["new"]))
    binaries = [test.partition(":")[0] for test in mutant["tests"]]
    result = build(copy, binaries)
    if result.returncode != 0:
        errors = [line for line in result.stdout.splitlines() if " error: " in line]
        return BROKEN, "does not compile: " + (errors or ["?"])[0]
    for test in mutant["tests"]:
        passes, words = run_test(copy, test)
        if not passes:
            return CAUGHT, words
    return SURVIVED, "all of " + ", ".join(mutant["tests"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to plant (default: all)")
    parser.add_argument("--copy", type=Path, default=ROOT / "build" / "mutation", help="where the copy lies")
    parser.add_argument("--list", action="store_true", help="list the mutants and end")
    arguments = parser.parse_args()
    copy = arguments.copy.resolve()
    mutants = read(ROOT)
    known = [mutant["name"] for mutant in mutants]
    for name in arguments.names:
        if name not in known:
            sys.exit(f"mutate: there is no mutant '{name}'; there are: {', '.join(known)}")
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant['name']:32} {mutant['file']}")
        return
    chosen = [mutant for mutant in mutants if mutant["name"] in (arguments.names or known)]
    sync(copy)
    tests = sorted({test.partition(":")[0] for mutant in chosen for test in mutant["tests"]})
    print(f"Building {len(tests)} test binaries without a bug", flush=True)
    result = build(copy, tests)
    if result.returncode != 0:
        sys.exit(result.stdout[-3000:] + result.stderr[-3000:])
    for test in sorted({test for mutant in chosen for test in mutant["tests"]}):
        passes, words = run_test(copy, test)
        if not passes:
            sys.exit(f"mutate: {test} fails without a bug: {words}")
    outcomes = []
    for number, mutant in enumerate(chosen, 1):
        begin = time.monotonic()
        original = (ROOT / mutant["file"]).read_text()
        try:
            outcome, words = try_mutant(copy, mutant, original)
        finally:
            (copy / mutant["file"]).write_text(original)
        outcomes.append(outcome)
        seconds = time.monotonic() - begin
        print(f"{number:3}/{len(chosen)} {outcome:8} {mutant['name']:32} {seconds:4.0f} s  {words}",
              flush=True)  # fmt: skip
    print(f"{outcomes.count(CAUGHT)} of {len(outcomes)} planted bugs were caught")
    sys.exit(0 if outcomes.count(CAUGHT) == len(outcomes) else 1)


if __name__ == "__main__":
    main()
