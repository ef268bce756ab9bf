# SPDX-License-Identifier: Apache-2.0
"""`./dev bench tracker`: nanoseconds that finding units by touch adds to an operator, and what they
sum up to in the steps of build/bench/step.json, where that is there."""

import argparse
import json
from typing import Any

import harness
import plots

PROGRAM = str(harness.BINARIES / "bench_tracker")
KINDS = ("untouched_before_ns", "untouched_after_ns", "plain_weight_ns", "touched_ns")


def measure() -> dict[str, float]:
    with harness.Job([PROGRAM], 1, harness.Place()) as job:
        line = job.phase("done")[0]
        job.go()
    return {kind: line[kind] for kind in KINDS}


def print_shares(touch_ns: float) -> None:
    path = harness.RESULTS / "step.json"
    if not path.exists():
        print("Run ./dev bench step first to see the tracker's share of a step.")
        return
    for row in json.loads(path.read_text()):
        touches = row["report"].get("touches")
        if touches:
            share = touches * touch_ns / 1e6 / row["step_ms"]
            print(
                f"{row['shape']}, {row['transport']}: {touches:.0f} touches a step,"
                f" {share:.3%} of {row['step_ms']} ms"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench tracker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    runs = [measure() for _ in range(arguments.rounds)]
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        median, spread = harness.middle([run[kind] for run in runs])
        rows.append({"operator": kind.removesuffix("_ns"), "ns": median, "spread": spread})
    harness.print_table(rows, ("operator", "ns", "spread"))
    added = harness.middle([run["touched_ns"] - run["plain_weight_ns"] for run in runs])[0]
    untouched = harness.middle(
        [run["untouched_after_ns"] - run["untouched_before_ns"] for run in runs]
    )[0]
    print(f"A touch adds {added:.0f} ns; the tracker adds {untouched:.1f} ns to other operators.")
    print_shares(added)
    harness.write_json("tracker", rows)
    plots.tracker(rows)


if __name__ == "__main__":
    main()
