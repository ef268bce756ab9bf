# SPDX-License-Identifier: Apache-2.0
"""`./dev bench python`: a training step of the same Python GPT by the Python package, FSDP2 and DDP, 2 ranks
with one thread each. Systems alternate round by round; build/bench/python.json has the medians. FSDP2 is shown at both
settings: it is fastest when it keeps the weights from forward to backward."""

import argparse
from typing import Any

import harness

RANKS = 2


def package(transport: str, optimizer: str) -> harness.System:
    options = ("--option", f"transport={transport}", "--option", f"optimizer={optimizer}")
    return harness.System(f"package, {optimizer} AdamW", transport, options, True, "ours")


SYSTEMS = [
    package("shm", "ours"),
    package("shm", "torch"),
    package("gloo", "ours"),
    package("gloo", "torch"),
    harness.FSDP2,
    harness.FSDP2_RESHARD,
    harness.DDP,
]


def rows_of(shape: harness.Shape, runs: dict[harness.System, list[harness.Run]]) -> list[dict[str, Any]]:
    """A row per system, with its step and memory as parts of FSDP2's at its fastest."""
    fastest = harness.step_time(runs[harness.FSDP2])[0]
    memory = harness.middle([run.memory_mb for run in runs[harness.FSDP2]])[0]
    rows = []
    for system, all_runs in runs.items():
        median, spread = harness.step_time(all_runs)
        held = harness.middle([run.memory_mb for run in all_runs])[0]
        rows.append(
            {
                "shape": shape.name,
                "system": system.name,
                "transport": system.transport,
                "step_ms": median,
                "spread": spread,
                "of_fsdp2": round(median / fastest, 3),
                "memory_mb": held,
                "memory_of_fsdp2": round(held / memory, 3),
                "cpu_ms": harness.middle([run.cpu_ms for run in all_runs])[0],
                "loss": all_runs[0].loss,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench python", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="timed steps per run")
    parser.add_argument("--shapes", nargs="+", default=["compute", "communication"])
    arguments = parser.parse_args()
    length = harness.Length(warmup=2, steps=arguments.steps, memory_steps=2)
    rows: list[dict[str, Any]] = []
    for name in arguments.shapes:
        shape = harness.SHAPES[name]
        runs: dict[harness.System, list[harness.Run]] = {system: [] for system in SYSTEMS}
        for number in range(1, arguments.rounds + 1):
            for system in SYSTEMS:
                run = harness.run(system, shape, length, RANKS)
                runs[system].append(run)
                harness.progress(
                    f"{name} {number}/{arguments.rounds} {system.name:22} {system.transport:5} {run.step_ms:9.1f} ms"
                    f" {run.memory_mb:9.1f} MB  loss {run.loss:.6f}"
                )
        losses = {f"{system.name} ({system.transport})": all_runs[0].loss for system, all_runs in runs.items()}
        harness.check_losses(losses, next(iter(losses)))
        rows += rows_of(shape, runs)
    columns = ("shape", "system", "transport", "step_ms", "spread", "of_fsdp2", "memory_mb", "memory_of_fsdp2")
    harness.print_table(rows, columns)
    harness.write_json("python", rows)


if __name__ == "__main__":
    main()
