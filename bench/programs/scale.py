# SPDX-License-Identifier: Apache-2.0
"""`./dev bench scale`: 1 to 8 ranks on this machine's cores, the global batch staying the same; and
one model cut into 2 to 200 units, which tells what a unit and a collective cost."""

import argparse
import dataclasses
import statistics
from typing import Any

import harness
import plots

GLOBAL_BATCH = 8
SHAPE = harness.Shape("scale", width=256, layers=6, heads=8, sequence=128, batch=GLOBAL_BATCH)
UNITS = [2, 5, 10, 20, 50, 100, 200]


def measure_ranks(counts: list[int], rounds: int) -> list[dict[str, Any]]:
    length = harness.Length(warmup=2, steps=6, memory_steps=0)
    rows = []
    for ranks in counts:
        shape = dataclasses.replace(SHAPE, batch=GLOBAL_BATCH // ranks)
        runs: dict[harness.System, list[harness.Run]] = {}
        for _ in range(rounds):
            for system in (harness.BOUND, *harness.OURS):
                runs.setdefault(system, []).append(harness.run(system, shape, length, ranks))
        bound = harness.step_time(runs[harness.BOUND])[0]
        for system, all_runs in runs.items():
            median, spread = harness.step_time(all_runs)
            rows.append(
                {
                    "ranks": ranks,
                    "system": system.name,
                    "transport": system.transport,
                    "step_ms": median,
                    "spread": spread,
                    "ratio_to_bound": round(median / bound, 3),
                }
            )
            harness.progress(f"{ranks} ranks, {system.label():20} {median:9.1f} ms")
    return rows


def run_chain(system: harness.System, units: int, steps: int) -> harness.Run:
    program = str(harness.BINARIES / "bench_chain")
    transport, store = system.option("--transport", "none"), system.option("--store", "slots")
    return harness.run_command([program, transport, store, str(units), str(steps)], ranks=2)


def measure_units(rounds: int, steps: int) -> list[dict[str, Any]]:
    rows = []
    for units in UNITS:
        runs: dict[harness.System, list[harness.Run]] = {}
        for _ in range(rounds):
            for system in (harness.BOUND, *harness.OURS):
                run = run_chain(system, units, steps)
                runs.setdefault(system, []).append(run)
        bound = harness.step_time(runs[harness.BOUND])[0]
        for system in harness.OURS:
            median, spread = harness.step_time(runs[system])
            report = runs[system][0].report
            rows.append(
                {
                    "units": report["units"],
                    "system": system.name,
                    "transport": system.transport,
                    "step_ms": median,
                    "spread": spread,
                    "bound_ms": round(bound, 3),
                    "collectives": report["collectives"],
                    "us_per_collective": round(1e3 * (median - bound) / report["collectives"], 1),
                    "us_per_unit": round(1e3 * (median - bound) / report["units"], 1),
                }
            )
            harness.progress(f"{units} units, {system.label():20} {median:9.2f} ms")
    return rows


def print_slopes(rows: list[dict[str, Any]]) -> None:
    """The cost of one more unit, by least squares over all unit counts."""
    for transport in dict.fromkeys(row["transport"] for row in rows):
        mine = [row for row in rows if row["transport"] == transport]
        for what in ("units", "collectives"):
            x, y = [row[what] for row in mine], [1e3 * row["step_ms"] for row in mine]
            slope = statistics.linear_regression(x, y).slope
            print(f"{transport}: {slope:.1f} us a step for one more of {what}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--chain-steps", type=int, default=30)
    arguments = parser.parse_args()
    by_ranks = measure_ranks(arguments.ranks, arguments.rounds)
    by_units = measure_units(arguments.rounds, arguments.chain_steps)
    harness.print_table(
        by_ranks, ("ranks", "system", "transport", "step_ms", "spread", "ratio_to_bound")
    )
    columns = ("units", "transport", "step_ms", "spread", "bound_ms", "collectives")
    harness.print_table(by_units, (*columns, "us_per_collective", "us_per_unit"))
    print_slopes(by_units)
    harness.write_json("scale-ranks", by_ranks)
    harness.write_json("scale-units", by_units)
    plots.scale(by_ranks, by_units)


if __name__ == "__main__":
    main()
