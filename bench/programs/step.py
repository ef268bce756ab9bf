# SPDX-License-Identifier: Apache-2.0
"""`./dev bench step`: the time of a training step of two shapes of the same GPT, 2 ranks with one
thread each. Systems alternate round by round; build/bench/step.json has the medians."""

import argparse
from typing import Any

import harness
import plots

RANKS = 2
SAID_ABOVE = ("phase", "step_ms", "cpu_ms", "loss")
BOUND_TOLERANCE = 0.05  # what the two languages' bounds may differ by
TUNING = {
    "fsdp2": ["reshard=yes", "reshard=no", "reshard_root=yes"],
    "ddp": ["bucket_mb=25", "bucket_mb=5", "bucket_mb=100", "bucket_mb=500", "static=yes"],
    "zero3": [
        "overlap=yes", "overlap=no", "contiguous=no", "persist=0", "reduce=5e7", "prefetch=0",
        "live=0",
    ],
}  # fmt: skip


def with_option(system: harness.System, option: str) -> harness.System:
    options = (*system.options, "--option", option)
    return harness.System(f"{system.name} {option}", system.transport, options, True, system.name)


def measure(
    systems: list[harness.System], shape: harness.Shape, length: harness.Length, rounds: int
) -> dict[harness.System, list[harness.Run]]:
    runs: dict[harness.System, list[harness.Run]] = {system: [] for system in systems}
    for number in range(1, rounds + 1):
        for system in systems:
            run = harness.run(system, shape, length, RANKS)
            runs[system].append(run)
            harness.progress(
                f"{shape.name} {number}/{rounds} {system.label():24} {run.step_ms:9.1f} ms"
                f" {run.memory_mb:9.1f} MB  loss {run.loss:.6f}"
            )
    return runs


def rows_of(
    shape: harness.Shape, runs: dict[harness.System, list[harness.Run]]
) -> list[dict[str, Any]]:
    bound = harness.step_time(runs[harness.BOUND])[0]
    rows = []
    for system, all_runs in runs.items():
        median, spread = harness.step_time(all_runs)
        rows.append(
            {
                "system": system.name,
                "transport": system.transport,
                "shape": shape.name,
                "step_ms": median,
                "spread": spread,
                "memory_mb": harness.middle([run.memory_mb for run in all_runs])[0],
                "ratio_to_bound": round(median / bound, 3),
                "cpu_ms": harness.middle([run.cpu_ms for run in all_runs])[0],
                "loss": all_runs[0].loss,
                "report": {k: v for k, v in all_runs[0].report.items() if k not in SAID_ABOVE},
            }
        )
    return rows


def check_bound(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["system"] == "bound-python" and abs(row["ratio_to_bound"] - 1) > BOUND_TOLERANCE:
            print(
                f"NOTE: on shape {row['shape']} the bound in Python takes {row['ratio_to_bound']}"
                f" of the bound in C++; the two should agree within {BOUND_TOLERANCE:.0%}: the"
                " machine was not quiet, or the programs differ"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="timed steps a run")
    parser.add_argument("--shapes", nargs="+", default=["compute", "communication"])
    parser.add_argument("--only", nargs="+", help="systems to run; the bounds and ours always do")
    parser.add_argument("--tune", action="store_true", help="the peers with other settings instead")
    arguments = parser.parse_args()

    memory_steps = 0 if arguments.tune else 2
    length = harness.Length(warmup=2, steps=arguments.steps, memory_steps=memory_steps)
    peers = [p for p in harness.PEERS if not arguments.only or p.name in arguments.only]
    if arguments.tune:
        peers = [with_option(peer, o) for peer in peers for o in TUNING.get(peer.name, [])]
    systems = [harness.BOUND, harness.BOUND_PYTHON, *harness.OURS, *peers]
    rows: list[dict[str, Any]] = []
    for name in arguments.shapes:
        shape = harness.SHAPES[name]
        runs = measure(systems, shape, length, arguments.rounds)
        ours = harness.OURS[0].label()
        losses = {s.label(): all_runs[0].loss for s, all_runs in runs.items()}
        harness.check_losses({k: v for k, v in losses.items() if not k.startswith("bound")}, ours)
        rows += rows_of(shape, runs)
    columns = ("shape", "system", "transport", "step_ms", "spread", "cpu_ms", "memory_mb")
    harness.print_table(rows, (*columns, "ratio_to_bound"))
    check_bound(rows)
    harness.write_json("step-tune" if arguments.tune else "step", rows)
    if not arguments.tune:
        plots.steps(rows)


if __name__ == "__main__":
    main()
