# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the files of the C++ library, which it reads and writes at any number of ranks."""

import os
from collections.abc import Callable, Mapping

import torch

from fsdp import _C
from fsdp._C import LoadReport
from fsdp._optimizer_state import state_of, take_over
from fsdp._sharded import Sharded
from fsdp.optim import Ema

# Sections of named values, the same on all ranks.
Values = Mapping[str, Mapping[str, bool | int | float | str]]


class Saver:
    """Saves a module's checkpoints into one directory, as "step-00000100" and so on, while training goes on: save()
    returns after a copy, a thread writes, and the checkpoint appears in one step when all ranks are done.

    `keep`: complete checkpoints that stay; 0 keeps all. `max_file_bytes`: weights beyond this go into several files.
    Memory: this rank's shards and moments once more.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        sharded: Sharded,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        ema: Ema | None = None,
        keep: int = 0,
        max_file_bytes: int = 5_000_000_000,
    ) -> None:
        self._sharded = sharded
        self._optimizer = optimizer
        self._inner = _C.Saver(
            os.fspath(directory),
            sharded._inner,
            state_of(optimizer, sharded),
            ema._inner if ema is not None else None,
            keep,
            max_file_bytes,
        )

    def save(self, step: int, values: Values | None = None, documents: Mapping[str, str] | None = None) -> None:
        """Copies what is to be saved and returns. `values`: sections of named values that load() gives back
        ("optimizer" is taken). `documents`: further files by name, such as "config.json". Collective; waits for
        the save before, and raises what went wrong there."""
        if self._sharded._watch is not None:
            self._sharded._watch.check()
        sections = {section: dict(of) for section, of in (values or {}).items()}
        self._inner.save(step, sections, dict(documents or {}))

    def wait(self) -> None:
        """Returns when the last save is complete on disk. Collective."""
        self._inner.wait()

    def claim(self, patience_s: float = 3.0) -> None:
        """Makes the directory this run's before the first save. Collective."""
        self._inner.claim(patience_s)

    @property
    def directory(self) -> str:
        return self._inner.directory


def save(
    directory: str | os.PathLike[str],
    sharded: Sharded,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    step: int = 0,
    ema: Ema | None = None,
    values: Values | None = None,
    documents: Mapping[str, str] | None = None,
) -> None:
    """Saves one checkpoint and waits for it; see Saver. Collective."""
    saver = Saver(directory, sharded, optimizer, ema=ema)
    saver.save(step, values, documents)
    saver.wait()


def load(
    path: str | os.PathLike[str],
    sharded: Sharded,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    ema: Ema | None = None,
    strict: bool = True,
    verify: bool = True,
    optimizer_options: bool = True,
    rng: bool = True,
) -> LoadReport:
    """Loads the checkpoint at `path`, or the newest complete one in it, whatever number of ranks, units and precision
    wrote it, and whether C++ or Python did.

    strict: raise when a name is missing, unexpected or of another shape. verify: compare checksums.
    optimizer_options: give the optimizer the rates and betas it was saved with. rng: set torch's CPU generator, so
    that each rank goes on with its own stream.

    Collective. Raises fsdp.Error, the same on all ranks.
    """
    report = _C.load(
        os.fspath(path),
        sharded._inner,
        state_of(optimizer, sharded),
        ema._inner if ema is not None else None,
        strict,
        verify,
        optimizer_options,
        rng,
    )
    take_over(optimizer)
    return report


def load_weights(
    path: str | os.PathLike[str],
    sharded: Sharded,
    *,
    strict: bool = True,
    adapter: str | os.PathLike[str] = "",
    name_of: Callable[[str], str | None] | None = None,
) -> LoadReport:
    """Loads published weights, safetensors or GGUF, into a sharded module: each rank reads its own bytes. `name_of`:
    the module's name of a stored tensor, None for one that is not wanted. `adapter`: LoRA adapters to add. A tied
    weight that the files have once, or under another of its names, is found. Collective."""
    return _C.load_weights(os.fspath(path), sharded._inner, os.fspath(adapter), strict, name_of)


def save_safetensors(
    sharded: Sharded, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes the module as one safetensors file; each rank writes its own bytes. Collective."""
    if sharded._watch is not None:
        sharded._watch.check()
    _C.save_safetensors(sharded._inner, os.fspath(path), dict(metadata or {}))
