# SPDX-License-Identifier: Apache-2.0
"""`./dev bench memory`: the peak of proportional set size over two ranks, minus that after joining
the job, for growing models; then one model under a limit that plain data parallelism breaks."""

import argparse
import dataclasses
import resource
import sys
from typing import Any

import harness
import plots

RANKS = 2
PEERS = [harness.FSDP2, harness.FSDP2_RESHARD, harness.DDP, harness.ZERO3_SMALL]
LENGTH = harness.Length(warmup=1, steps=1, memory_steps=2)
BASE = harness.SHAPES["communication"]
# What a rank's process may hold of private writable memory beside 12 bytes a parameter: code's own
# data, threads' stacks, activations.
LIMIT_BESIDE = 400_000_000


def grown(layers: int) -> harness.Shape:
    return dataclasses.replace(BASE, name=f"{layers} layers", layers=layers)


def measure(layers: list[int]) -> list[dict[str, Any]]:
    rows = []
    for shape in map(grown, layers):
        bound = shape.sharded_bytes(RANKS) / 1e6
        losses = {}
        for system in (*harness.OURS, *PEERS):
            run = harness.run(system, shape, LENGTH, RANKS)
            losses[system.label()] = run.loss
            harness.progress(f"{shape.name:10} {system.label():20} {run.memory_mb:9.1f} MB")
            rows.append(
                {
                    "shape": shape.name,
                    "parameters": shape.numel(),
                    "system": system.name,
                    "transport": system.transport,
                    "memory_mb": round(run.memory_mb, 1),
                    "bound_mb": round(bound, 1),
                    "ratio_to_bound": round(run.memory_mb / bound, 3),
                    "promise_mb": run.report.get("promise_mb"),
                    "ledger_peak_mb": run.report.get("ledger_peak_mb"),
                }
            )
        harness.check_losses(losses, harness.OURS[0].label())
    return rows


def demonstrate(shape: harness.Shape) -> list[dict[str, Any]]:
    """One limit for all systems: 12 bytes a parameter (plain data parallelism needs 16, fully
    sharded training by two ranks 8) and LIMIT_BESIDE, of private writable memory a rank."""
    limit = 12 * shape.numel() + LIMIT_BESIDE
    place = harness.Place(
        before_exec=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    )
    expected = harness.run(harness.DDP, shape, LENGTH, RANKS).loss
    rows = []
    for system in (harness.OURS[0], *PEERS):
        row: dict[str, Any] = {"system": system.name, "transport": system.transport}
        row["limit_mb"] = round(limit / 1e6)
        try:
            run = harness.run(system, shape, LENGTH, RANKS, place)
            harness.check_losses(
                {system.label(): run.loss, "ddp unlimited": expected}, system.label()
            )
            row |= {"trained": True, "loss": round(run.loss, 6)}
        except harness.RunFailed as failure:
            lacked_memory = "allocate" in str(failure) or "bad_alloc" in str(failure)
            row |= {"trained": False, "lacked_memory": lacked_memory, "failure": str(failure)}
        harness.progress(f"under {row['limit_mb']} MB a rank: {row}")
        rows.append(row)
    by_name = {row["system"]: row for row in rows}
    if not by_name["fsdp"]["trained"] or not by_name["ddp"].get("lacked_memory"):
        sys.exit(f"the demonstration failed: {by_name['fsdp']}, {by_name['ddp']}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench memory", description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 12, 24])
    parser.add_argument("--limit-layers", type=int, default=12, help="the model under the limit")
    arguments = parser.parse_args()
    rows = measure(arguments.layers)
    columns = ("shape", "system", "transport", "memory_mb", "bound_mb", "ratio_to_bound")
    harness.print_table(rows, columns)
    harness.write_json("memory", rows)
    plots.memory(rows)
    limited = demonstrate(grown(arguments.limit_layers))
    harness.print_table(limited, ("system", "limit_mb", "trained", "loss", "lacked_memory"))
    harness.write_json("memory-limit", limited)


if __name__ == "__main__":
    main()
