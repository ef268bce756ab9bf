# SPDX-License-Identifier: Apache-2.0
"""`./dev bench collectives`: what all-gather, reduce-scatter and agreement of two ranks take on
every transport, beside memcpy of the same bytes by both ranks at once."""

import argparse
from typing import Any

import harness
import plots

PROGRAM = str(harness.BINARIES / "bench_collectives")
OURS = dict.fromkeys(system.option("--transport", "gloo") for system in harness.OURS)
TRANSPORTS = ["threads", "c10d", *OURS]


def measure(transport: str) -> list[dict[str, Any]]:
    ranks = 1 if transport == "threads" else 2  # processes; threads are two ranks in one
    with harness.Job([PROGRAM, transport], ranks, harness.Place()) as job:
        rows: list[dict[str, Any]] = job.phase("done")[0]["rows"]
        job.go()
    for row in rows:
        row["transport"] = transport
    return rows


def combine(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians over rounds. `gb_per_s` counts the bytes of the whole unit; `of_memcpy` is the time
    of one memcpy of them over the operation's."""
    rows = []
    copies: dict[tuple[str, int], float] = {}
    for same in zip(*rounds, strict=True):
        row = dict(same[0])
        row["us"], row["spread"] = harness.middle([one["us"] for one in same])
        if row["operation"] == "memcpy":
            copies[row["transport"], row["bytes"]] = row["us"]
        row["gb_per_s"] = round(row["bytes"] / row["us"] / 1e3, 3)
        copy = copies.get((row["transport"], row["bytes"]))
        row["of_memcpy"] = round(copy / row["us"], 3) if copy else None
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench collectives", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transports", nargs="+", default=TRANSPORTS)
    arguments = parser.parse_args()
    rounds: list[list[dict[str, Any]]] = []
    for number in range(arguments.rounds):
        harness.progress(f"round {number + 1} of {arguments.rounds}")
        rounds.append([row for name in arguments.transports for row in measure(name)])
    rows = combine(rounds)
    columns = ("transport", "operation", "bytes", "us", "spread", "gb_per_s", "of_memcpy")
    harness.print_table(rows, columns)
    harness.write_json("collectives", rows)
    plots.collectives(rows)


if __name__ == "__main__":
    main()
