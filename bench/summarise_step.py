# SPDX-License-Identifier: Apache-2.0
"""Medians over rounds of bench/step.sh, as a table and as JSON."""

import json
import statistics
import sys


def main() -> None:
    source, target = sys.argv[1:3]
    times: dict[tuple[str, str], list[float]] = {}
    losses: dict[str, set[float]] = {}
    with open(source, encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            system = f"{run['mode']}, {run['ranks']} x {run['threads']} thread(s)"
            times.setdefault((run["shape"], system), []).append(run["step_ms"])
            losses.setdefault(run["shape"], set()).add(run["loss"])
    rows = []
    for (shape, system), values in times.items():
        plain = statistics.median(times[(shape, "plain, 1 x 1 thread(s)")])
        median = statistics.median(values)
        rows.append(
            {
                "shape": shape,
                "system": system,
                "step_ms": round(median, 2),
                "spread": [round(min(values), 2), round(max(values), 2)],
                "ratio_to_plain_one_thread": round(median / plain, 3),
            }
        )
    with open(target, "w", encoding="utf-8") as out:
        json.dump(rows, out, indent=1)
    print(f"{'shape':14} {'system':26} {'step ms':>9} {'min':>9} {'max':>9} {'/ plain':>8}")
    for row in rows:
        low, high = row["spread"]
        print(
            f"{row['shape']:14} {row['system']:26} {row['step_ms']:9.2f} {low:9.2f} {high:9.2f}"
            f" {row['ratio_to_plain_one_thread']:8.3f}"
        )
    for shape, values in losses.items():
        if max(values) - min(values) > 1e-3 * max(values):
            sys.exit(f"losses differ on shape {shape}: {sorted(values)}: the comparison is void")


if __name__ == "__main__":
    main()
