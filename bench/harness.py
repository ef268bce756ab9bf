# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the shapes, the systems, how a job of several ranks is started, timed
and its memory sampled, and how results are written. See bench/training/protocol.hpp for how a rank
talks to a Job."""

import dataclasses
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build/bench"
BINARIES = ROOT / "build/release/bin"
PHASE_TIMEOUT_S = 600
LOSS_TOLERANCE = 2e-4  # relative; the sums of two ranks' gradients round differently


# So that contexts clean up: no rank and no network namespace is left behind.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


@dataclass(frozen=True)
class Shape:
    """A GPT-2 and a rank's batch."""

    name: str
    width: int
    layers: int
    heads: int
    sequence: int
    batch: int
    vocab: int = 256

    def arguments(self) -> list[str]:
        names = ("width", "layers", "heads", "sequence", "batch")
        return [text for name in names for text in (f"--{name}", str(getattr(self, name)))]

    def block_numel(self) -> int:
        return 12 * self.width**2 + 13 * self.width

    def root_numel(self) -> int:
        return (self.vocab + self.sequence + 2) * self.width

    def numel(self) -> int:
        return self.layers * self.block_numel() + self.root_numel()

    def activation_bytes(self) -> int:
        """What backward needs of one rank's forward, fp32. A token and block: 16 widths (inputs and
        outputs of both norms, queries, keys, values, attention's result, the MLP's two inner
        tensors of 4 widths each) and the rows' statistics; at the end the last norm's input and
        output and two sets of logits."""
        per_block = 16 * self.width + 4 + self.heads
        per_token = self.layers * per_block + 2 * self.width + 2 * self.vocab
        return 4 * self.batch * self.sequence * per_token

    def sharded_bytes(self, ranks: int) -> int:
        """The bound of fully sharded training, all ranks together: weights, gradients and two
        moments once, and on every rank two gathered units, one unit's gradients, activations."""
        unit = 4 * max(self.block_numel(), self.root_numel())
        return 16 * self.numel() + ranks * (3 * unit + self.activation_bytes())


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("compute", width=384, layers=6, heads=6, sequence=256, batch=4),
        Shape("communication", width=768, layers=12, heads=12, sequence=64, batch=1),
        Shape("tiny", width=64, layers=2, heads=2, sequence=32, batch=2),
    )
}


@dataclass(frozen=True)
class System:
    """Something that trains. `options` are its own arguments; `program` is what --system calls it,
    where that is not its name."""

    name: str
    transport: str
    options: tuple[str, ...] = ()
    is_python: bool = False
    program: str = ""

    def command(self) -> list[str]:
        if self.is_python:
            program = [sys.executable, str(ROOT / "bench/peers/train.py")]
        else:
            program = [str(BINARIES / "bench_train")]
        return [*program, "--system", self.program or self.name, *self.options]

    def option(self, name: str, default: str) -> str:
        """The value of an option of its own."""
        return dict(zip(self.options[::2], self.options[1::2], strict=True)).get(name, default)

    def label(self) -> str:
        return f"{self.name} ({self.transport})" if self.name == "fsdp" else self.name


# Ours, a line for each transport.
OURS = [
    System("fsdp", "gloo", ("--transport", "gloo", "--store", "slots")),
    System("fsdp", "gloo-aliased", ("--transport", "gloo", "--store", "aliased")),
    System("fsdp", "shm", ("--transport", "shm", "--store", "aliased")),
]
BOUND = System("bound", "none", program="plain")
BOUND_PYTHON = System("bound-python", "none", is_python=True, program="plain")
TRAFFIC = System("traffic", "gloo")
# FSDP2 is fastest when it keeps the weights from forward to backward, which bounds no memory; the
# second gives them back, as ours does.
FSDP2 = System("fsdp2", "gloo", ("--option", "reshard=no"), is_python=True)
FSDP2_RESHARD = System(
    "fsdp2-reshard", "gloo", ("--option", "reshard=yes"), is_python=True, program="fsdp2"
)
DDP = System("ddp", "gloo", is_python=True)
ZERO3 = System("zero3", "gloo", is_python=True)
# ZeRO-3 allocates its reduce bucket whole, by default 500 M elements.
ZERO3_SMALL = System(
    "zero3", "gloo", ("--option", "reduce=1e7", "--option", "prefetch=1e7"), is_python=True
)
PEERS = [FSDP2, FSDP2_RESHARD, DDP, ZERO3]


@dataclass
class Run:
    """One job's result. A step's time is the slowest rank's, the loss is the mean over ranks."""

    steps_ms: list[float]
    loss: float
    memory_mb: float
    cpu_ms: float  # of a step, all ranks together
    report: dict[str, Any]

    @property
    def step_ms(self) -> float:
        return statistics.median(self.steps_ms)


class RunFailed(RuntimeError):
    """A rank ended before its work was done; the text has the end of what it printed."""


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size, summed: a page that n processes share counts once in all."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Place:
    """Where and under what conditions ranks run. `prefix` of a rank goes before its command."""

    prefix: Callable[[int], list[str]] = lambda rank: []
    environment: dict[str, str] = field(default_factory=dict)
    before_exec: Callable[[], None] | None = None


class Job:
    """The ranks of one run. A context: leaves no process behind."""

    def __init__(self, command: list[str], ranks: int, place: Place) -> None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.lines: list[queue.Queue[dict[str, Any] | None]] = [queue.Queue() for _ in range(ranks)]
        program = Path(sys.argv[0]).stem
        self.logs = [RESULTS / f"{program}-rank{rank}.log" for rank in range(ranks)]
        port = free_port()
        self.processes = [self._start(command, rank, ranks, port, place) for rank in range(ranks)]

    def _start(
        self, command: list[str], rank: int, ranks: int, port: int, place: Place
    ) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "TORCH_EXTENSIONS_DIR": str(RESULTS / "torch_extensions"),
            **place.environment,
        }
        with self.logs[rank].open("w") as log:
            process = subprocess.Popen(
                [*place.prefix(rank), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=place.before_exec,
            )
        threading.Thread(target=self._read, args=(process, rank), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str], rank: int) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self.lines[rank].put(json.loads(line))
        self.lines[rank].put(None)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def phase(self, name: str) -> list[dict[str, Any]]:
        """Waits until all ranks have ended the phase; they now wait for go()."""
        found = []
        for rank, lines in enumerate(self.lines):
            try:
                line = lines.get(timeout=PHASE_TIMEOUT_S)
            except queue.Empty:
                raise RunFailed(f"rank {rank}: '{name}' took {PHASE_TIMEOUT_S} s") from None
            if line is None or line["phase"] != name:
                words = "; ".join(self.last_words(rank) for rank in range(len(self.processes)))
                raise RunFailed(f"rank {rank} ended before '{name}': {words}")
            found.append(line)
        return found

    def last_words(self, rank: int) -> str:
        try:
            code: object = self.processes[rank].wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = "none, still running"
        lines = [line for line in self.logs[rank].read_text().splitlines() if line.strip()]
        return f"rank {rank}, exit status {code}: " + " | ".join(lines[-2:])

    def go(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def pss(self) -> int:
        return pss_bytes(process.pid for process in self.processes)

    def peak_pss_until_done(self) -> int:
        """Lets the ranks go on and samples their memory until they end the last phase."""
        done = threading.Event()
        peak = 0

        def sample() -> None:
            nonlocal peak
            while not done.is_set():
                try:
                    peak = max(peak, self.pss())
                except OSError:  # a rank has ended
                    return
                time.sleep(0.01)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            self.go()
            self.phase("done")
        finally:
            done.set()
            sampler.join()
        return peak


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    warmup: int = 2
    steps: int = 5
    memory_steps: int = 2

    def arguments(self) -> list[str]:
        return [
            *("--warmup", str(self.warmup), "--steps", str(self.steps)),
            *("--memory-steps", str(self.memory_steps)),
        ]


def inputs(shape: Shape, ranks: int) -> list[str]:
    """The weights and tokens that all systems start from, written once by our program."""
    folder = RESULTS / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join(str(value) for value in dataclasses.astuple(shape)[1:]) + f"x{ranks}"
    weights, tokens = folder / f"{stem}.safetensors", folder / f"{stem}.tokens"
    if not weights.exists():
        rows = dataclasses.replace(shape, batch=shape.batch * ranks)
        writer = System("write", "none").command()
        # Under other names until they are whole, the weights last: a run may be stopped here.
        parts = [path.with_name(path.name + ".part") for path in (weights, tokens)]
        names = ["--weights", str(parts[0]), "--tokens", str(parts[1])]
        subprocess.run([*writer, *rows.arguments(), *names], check=True)
        parts[1].rename(tokens)
        parts[0].rename(weights)
    return ["--weights", str(weights), "--tokens", str(tokens)]


def run_command(command: Sequence[str], ranks: int, place: Place | None = None) -> Run:
    """Starts the ranks and takes them through the phases. @raises RunFailed"""
    with Job(list(command), ranks, place or Place()) as job:
        job.phase("init")
        at_init = job.pss()
        job.go()
        job.phase("warm")
        job.go()
        timed = job.phase("timed")
        peak = job.peak_pss_until_done()
    return Run(
        steps_ms=[max(same) for same in zip(*(line["step_ms"] for line in timed), strict=True)],
        loss=statistics.mean(line["loss"] for line in timed),
        memory_mb=(peak - at_init) / 1e6,
        cpu_ms=sum(line["cpu_ms"] for line in timed),
        report=timed[0],
    )


def run(
    system: System, shape: Shape, length: Length, ranks: int = 2, place: Place | None = None
) -> Run:
    """Trains the shape once. @raises RunFailed when a rank does not come to its end."""
    command = [*system.command(), *shape.arguments(), *inputs(shape, ranks), *length.arguments()]
    return run_command(command, ranks, place)


def check_losses(losses: dict[str, float], ours: str) -> None:
    """Ends the program when a system's loss after the same steps is another than ours."""
    expected = losses[ours]
    for name, loss in losses.items():
        if abs(loss - expected) > LOSS_TOLERANCE * abs(expected):
            sys.exit(f"comparison void: the loss of {name} is {loss:.7f}, of {ours} {expected:.7f}")


def middle(values: Sequence[float]) -> tuple[float, list[float]]:
    """Median, and the quartiles as the spread."""
    if len(values) == 1:
        return round(values[0], 3), [round(values[0], 3)] * 2
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(median, 3), [round(low, 3), round(high, 3)]


def step_time(runs: Sequence[Run]) -> tuple[float, list[float]]:
    """Median and quartiles of all steps of all rounds."""
    return middle([time for one in runs for time in one.steps_ms])


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_json(name: str, rows: list[dict[str, Any]]) -> None:
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"Wrote {path.relative_to(ROOT)}")


def print_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> None:
    cells = [list(columns)] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())
