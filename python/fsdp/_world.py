# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: how this process joins it, and what ranks agree on."""

import contextlib
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterator

import torch

from fsdp import _C
from fsdp._C import StepAgreement, World

_current: World | None = None
_meetings = 0


def init(
    transport: str = "auto", *, device: str = "", setup_timeout: float = 0.0, timeout: float = 0.0
) -> World:
    """Joins the job that the environment describes: torchrun's, `fsdp run`'s, Open MPI's, MPICH's or Slurm's
    variables, or none: then one process is the whole world. Where torch.distributed is initialised already, the job
    is that of its default group, and both go on side by side.

    `transport`: "auto" is shared memory on one host and gloo between hosts; else "shm", "gloo" or "shm+gloo".
    `device`: where this rank computes, "cpu", "auto" or "cuda:1"; empty takes FSDP_DEVICE, else the CPU.
    Accelerators have not been tried from Python.
    `setup_timeout`, `timeout`: seconds that the ranks may take to meet, and that any later wait may last; 0 takes
    FSDP_SETUP_TIMEOUT and FSDP_TIMEOUT, else 5 minutes.

    An exception that ends this process is told to the other ranks, whose waits end at once with its text. Ctrl-C
    ends a wait within a second.

    Collective: every process of the job. Blocks until all have joined. Raises fsdp.Error: "invalid argument" for
    a variable that cannot be, "time-out" naming who is missing.
    """
    global _current
    _notice_interrupts()
    with _meeting_of_torch():
        world = _C.init(transport, device, setup_timeout, timeout)
    _tell_peers_of_exceptions(world)
    _current = world
    return world


def current_world() -> World:
    """The world of the last init(), which is called if it never was."""
    return _current if _current is not None else init()


def _notice_interrupts() -> None:
    """Only where Ctrl-C does what it does by default; a program's own handler is left alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _C.on_interrupt):
        signal.signal(signal.SIGINT, _C.on_interrupt)
        _C.watch_interrupts()


def _tell_peers_of_exceptions(world: World) -> None:
    previous = sys.excepthook

    def tell(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
        previous(kind, value, trace)
        world.publish_failure(f"{kind.__name__}: {value}")

    sys.excepthook = tell


@contextlib.contextmanager
def _meeting_of_torch() -> Iterator[None]:
    """Inside, the environment describes the job of torch.distributed's default group, if there is one that the
    launcher's variables do not describe."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    rank, size = distributed.get_rank(), distributed.get_world_size()
    launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or "FSDP_LAUNCHER" in os.environ
    if launched and os.environ.get("RANK") == str(rank) and os.environ.get("WORLD_SIZE") == str(size):
        yield
        return
    variables = _agree_on_meeting(rank, size)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _agree_on_meeting(rank: int, size: int) -> dict[str, str]:
    """A place where the ranks of torch's group can meet, told over its store, and who is on which host."""
    global _meetings
    store = torch.distributed.distributed_c10d._get_default_store()
    prefix = f"fsdp/meeting/{_meetings}"
    _meetings += 1
    store.set(f"{prefix}/host/{rank}", socket.gethostname())
    hosts = [store.get(f"{prefix}/host/{other}").decode() for other in range(size)]
    if rank == 0:
        # On one host the port is a name; between hosts it has to be reachable and free, as MASTER_PORT has.
        address = "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR", hosts[0])
        with socket.socket() as free:
            free.bind(("", 0))
            store.set(f"{prefix}/place", f"{address} {free.getsockname()[1]}")
    address, port = store.get(f"{prefix}/place").decode().split()
    here = [other for other in range(size) if hosts[other] == hosts[rank]]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(here.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def mean_over_ranks(value: float, weight: float = 1.0, world: World | None = None) -> float:
    """The mean of each rank's `value`, each counting by its `weight`. Collective; blocks."""
    return _C.mean_over_ranks(world or current_world(), value, weight)


def count_over_ranks(count: float, world: World | None = None) -> float:
    """The sum of each rank's `count`, for Sharded.set_gradient_divisor(). Collective; blocks."""
    return _C.count_over_ranks(world or current_world(), count)


def agree_on_step(has_batch: bool, uneven: str = "stop", world: World | None = None) -> StepAgreement:
    """Asks all ranks whether there is another step. `uneven`: "stop" when one has no batch, or "fill": go on until
    nobody has one, and multiply the loss by `weight`. Collective; blocks."""
    if uneven not in ("stop", "fill"):
        raise ValueError(f'uneven is "{uneven}", must be "stop" or "fill"')
    return _C.agree_on_step(world or current_world(), has_batch, uneven == "fill")
