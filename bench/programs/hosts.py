# SPDX-License-Identifier: Apache-2.0
"""`./dev bench hosts`: two hosts of two ranks, as network namespaces joined by a link of limited
rate. Steps of ours with both levels and over gloo alone; the bound is the larger of the computation
alone and the same collectives alone on that link."""

import argparse
import os
import sys
from pathlib import Path

import harness
from link import ADDRESSES, Link

RANKS = 4
TWO_LEVELS = harness.System("fsdp", "shm+gloo", ("--transport", "shm+gloo", "--store", "slots"))
TRAFFIC = harness.System("traffic", "shm+gloo", ("--transport", "shm+gloo"))
SYSTEMS = (harness.BOUND, TRAFFIC, TWO_LEVELS, harness.OURS[0])


def place_on(link: Link) -> harness.Place:
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""

    def prefix(rank: int) -> list[str]:
        host = rank * 2 // RANKS
        enter = ["nsenter", f"--net=/run/netns/{link.names[host]}", "--"]
        return [*enter, "env", f"FSDP_HOST_ID=host{host}"]

    environment = {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": "eth0"}
    return harness.Place(prefix=prefix, environment=environment)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench hosts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--gbit", type=float, default=1)
    parser.add_argument("--shape", default="compute", choices=list(harness.SHAPES))
    parser.add_argument(
        "--binaries", type=Path, nargs="+", default=[harness.BINARIES], help="compares builds"
    )
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run this benchmark as root")
    shape = harness.SHAPES[arguments.shape]
    length = harness.Length(warmup=2, steps=arguments.steps, memory_steps=0)
    runs: dict[tuple[Path, harness.System], list[harness.Run]] = {}
    with Link() as link:
        link.limit(arguments.gbit)
        for number in range(1, arguments.rounds + 1):
            for system in SYSTEMS:
                for binaries in arguments.binaries:
                    harness.BINARIES = binaries
                    place = None if system == harness.BOUND else place_on(link)
                    run = harness.run(system, shape, length, RANKS, place)
                    runs.setdefault((binaries, system), []).append(run)
                    harness.progress(
                        f"{number}/{arguments.rounds} {system.name} {system.transport} "
                        f"{binaries.name} {run.step_ms:9.1f} ms"
                    )
    rows = []
    for (binaries, system), of in runs.items():
        step_ms, spread = harness.step_time(of)
        rows.append(
            {
                "gbit": arguments.gbit,
                "shape": shape.name,
                "system": system.name,
                "transport": system.transport,
                "build": str(binaries),
                "step_ms": step_ms,
                "spread": spread,
            }
        )
    harness.print_table(rows, ("system", "transport", "build", "step_ms", "spread"))
    harness.write_json("hosts", rows)


if __name__ == "__main__":
    main()
