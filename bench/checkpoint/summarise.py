# SPDX-License-Identifier: Apache-2.0
"""Medians over rounds of bench/checkpoint.sh, as a table and as JSON."""

import json
import statistics
import sys

SECONDS = ["save_s", "stall_s", "load_s", "load_warm_s", "step_s", "step_while_saving_s"]


def main() -> None:
    source, target = sys.argv[1:3]
    runs: dict[str, list[dict]] = {}
    with open(source, encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            runs.setdefault(run["system"], []).append(run)
    rows = []
    for system, values in runs.items():
        row = {"system": system, "rounds": len(values), "bytes": values[0]["bytes"]}
        for key in SECONDS + ["more_mib"]:
            found = [value[key] for value in values if key in value]
            if found:
                row[key] = round(statistics.median(found), 4)
                row[key + "_range"] = [round(min(found), 4), round(max(found), 4)]
        row["save_mb_s"] = round(row["bytes"] / row["save_s"] / 1e6)
        if "load_s" in row:
            row["load_mb_s"] = round(row["bytes"] / row["load_s"] / 1e6)
            row["load_warm_mb_s"] = round(row["bytes"] / row["load_warm_s"] / 1e6)
        rows.append(row)
    with open(target, "w", encoding="utf-8") as out:
        json.dump(rows, out, indent=1)
    columns = ["save_mb_s", "load_mb_s", "load_warm_mb_s"] + SECONDS + ["more_mib"]
    print(f"{'system':16}" + "".join(f"{name:>21}" for name in columns))
    for row in rows:
        print(f"{row['system']:16}" + "".join(f"{row.get(name, '-'):>21}" for name in columns))


if __name__ == "__main__":
    main()
