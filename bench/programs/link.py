# SPDX-License-Identifier: Apache-2.0
"""`./dev bench link`: two ranks in two network namespaces, joined by a link of limited rate. The
bound is the larger of the computation alone and the same collectives alone on that link; the
exposed share is what of the collectives' time the step does not hide behind computation."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import plots

PREFIX = "fsdp-bench-"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
SYSTEMS = [harness.OURS[0], harness.FSDP2, harness.FSDP2_RESHARD, harness.ZERO3]


def ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check)


class Link:
    """Two namespaces, `fsdp-bench-PID-0` and `-1`, and a veth between them. A context."""

    def __init__(self) -> None:
        self.names = [f"{PREFIX}{os.getpid()}-{end}" for end in (0, 1)]

    def __enter__(self) -> "Link":
        remove_abandoned()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        veths = [f"fb{os.getpid()}{end}" for end in "ab"]
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", veths[0], "type", "veth", "peer", "name", veths[1])
        for veth, name, address in zip(veths, self.names, ADDRESSES, strict=True):
            ip("link", "set", veth, "netns", name, "name", "eth0")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            if Path("/run/netns", name).exists():
                ip("netns", "delete", name, check=False)

    def limit(self, gbit: float) -> None:
        """Caps both directions. The burst is 1 ms, so that bursts do not outrun the cap, but two of
        TCP's largest segments at least: tbf cuts what is larger than its burst into packets, on the
        processors that are to compute."""
        burst = max(2 * 65_536, int(gbit * 1e9 / 8 / 1000))
        for name in self.names:
            command = f"tc -n {name} qdisc replace dev eth0 root tbf rate {gbit * 1000:.0f}mbit"
            subprocess.run([*command.split(), "burst", str(burst), "latency", "50ms"], check=True)

    def place(self) -> harness.Place:
        return harness.Place(
            prefix=lambda rank: ["nsenter", f"--net=/run/netns/{self.names[rank]}", "--"],
            environment={"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": "eth0"},
        )


def remove_abandoned() -> None:
    """Namespaces of a benchmark that was killed: their names carry its process id."""
    for path in Path("/run/netns").glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).split("-")[0]
        if not Path("/proc", pid).exists():
            ip("netns", "delete", path.name, check=False)


def measure_rate(
    link: Link, gbit: float, shape: harness.Shape, length: harness.Length, rounds: int
) -> list[dict[str, Any]]:
    link.limit(gbit)
    runs: dict[harness.System, list[harness.Run]] = {}
    for number in range(1, rounds + 1):
        for system in (harness.BOUND, harness.TRAFFIC, *SYSTEMS):
            place = None if system == harness.BOUND else link.place()
            run = harness.run(system, shape, length, place=place)
            runs.setdefault(system, []).append(run)
            harness.progress(
                f"{gbit} Gbit/s {number}/{rounds} {system.name:8} {run.step_ms:9.1f} ms"
            )
    losses = {system.name: runs[system][0].loss for system in SYSTEMS}
    harness.check_losses(losses, SYSTEMS[0].name)
    return rows_of(gbit, shape, runs)


def rows_of(
    gbit: float, shape: harness.Shape, runs: dict[harness.System, list[harness.Run]]
) -> list[dict[str, Any]]:
    times = {system: harness.step_time(runs[system]) for system in runs}
    compute, collectives = times[harness.BOUND][0], times[harness.TRAFFIC][0]
    # What both ranks' cores spend on the collectives alone: computation has to do without.
    collectives_cpu = harness.middle([run.cpu_ms for run in runs[harness.TRAFFIC]])[0]
    bound = max(compute, collectives)
    return [
        {
            "gbit": gbit,
            "system": system.name,
            "transport": system.transport,
            "shape": shape.name,
            "step_ms": times[system][0],
            "spread": times[system][1],
            "compute_ms": compute,
            "collectives_ms": collectives,
            "collectives_cpu_ms": collectives_cpu,
            "ratio_to_bound": round(times[system][0] / bound, 3),
            "exposed_share": round(max(0.0, times[system][0] - compute) / collectives, 3),
        }
        for system in SYSTEMS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--gbit", type=float, nargs="+", default=[0.25, 1, 4])
    parser.add_argument("--shape", default="compute", choices=list(harness.SHAPES))
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run this benchmark as root")
    length = harness.Length(warmup=2, steps=arguments.steps, memory_steps=0)
    rows: list[dict[str, Any]] = []
    with Link() as link:
        for gbit in arguments.gbit:
            shape = harness.SHAPES[arguments.shape]
            rows += measure_rate(link, gbit, shape, length, arguments.rounds)
    columns = ("gbit", "system", "step_ms", "spread", "compute_ms", "collectives_ms")
    columns += ("collectives_cpu_ms",)
    harness.print_table(rows, (*columns, "ratio_to_bound", "exposed_share"))
    harness.write_json("link", rows)
    plots.link(rows)


if __name__ == "__main__":
    main()
