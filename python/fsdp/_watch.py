# SPDX-License-Identifier: Apache-2.0
"""Notices what a module gets or loses after it was sharded: as src/engine/partition/module_watch.hpp does for C++."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import torch

from fsdp._C import Error

_KINDS = ("_parameters", "_buffers", "_modules")
_WORDS = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}


class ModuleWatch:
    """Compares, before each forward of the outermost module, what is registered with what was there. Takes one
    dictionary's comparison per module and kind."""

    def __init__(self, module: torch.nn.Module, ignored: Sequence[str]) -> None:
        self._ignored = list(ignored)
        self._nodes = [
            (name, part, kind, dict(getattr(part, kind))) for name, part in module.named_modules() for kind in _KINDS
        ]

    @classmethod
    def install(cls, module: torch.nn.Module, ignored: Sequence[str]) -> "ModuleWatch":
        """Watches as long as the module lives."""
        watch = cls(module, ignored)
        module.register_forward_pre_hook(watch, prepend=True)
        return watch

    def __call__(self, module: torch.nn.Module, arguments: Any) -> None:
        self.check()

    def check(self) -> None:
        """Follows what may change, and raises Error for the rest."""
        for path, part, kind, before in self._nodes:
            now = getattr(part, kind)
            if len(now) != len(before) or any(now.get(key) is not value for key, value in before.items()):
                self._follow(path, part, kind, before)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Nothing":
        return _Nothing()

    def _is_free(self, part: torch.nn.Module, kind: str, name: str, value: Any) -> bool:
        if value is None:
            return True
        if kind == "_modules":
            return next(value.parameters(), None) is None and next(value.buffers(), None) is None
        if kind == "_buffers":
            return name.rsplit(".", 1)[-1] in part._non_persistent_buffers_set
        return any(fnmatchcase(name, pattern) for pattern in self._ignored)

    def _follow(self, path: str, part: torch.nn.Module, kind: str, before: dict[str, Any]) -> None:
        now = getattr(part, kind)
        for key in list({**before, **now}):
            name = f"{path}.{key}" if path else key
            old, new = before.get(key), now.get(key)
            if old is new:
                continue
            if self._is_free(part, kind, name, old) and self._is_free(part, kind, name, new):
                before.pop(key, None)
                if key in now:
                    before[key] = new
            elif kind == "_parameters" and torch.is_tensor(new) and not isinstance(new, torch.nn.Parameter):
                pass  # torch.func.functional_call() lends other tensors for one call
            elif kind == "_buffers" and old is not None and new is not None and _are_alike(old, new):
                # `self.buffer = values`: the one that is saved gets them and stays.
                old.detach().copy_(new)
                now[key] = old
            elif old is None:
                _refuse(f'{_WORDS[kind]} "{name}" was registered', "it is in no shard: each rank has its own")
            elif new is None:
                _refuse(f'{_WORDS[kind]} "{name}" was removed', "it is still sharded and saved")
            else:
                _refuse(f'{_WORDS[kind]} "{name}" was replaced', "the one that was there is sharded and saved")


def _are_alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.shape == new.shape and old.dtype == new.dtype and old.device == new.device


class _Nothing:
    """The hook of a copy, which has nothing to watch."""

    def __call__(self, module: torch.nn.Module, arguments: Any) -> None:
        return


def _refuse(change: str, consequence: str) -> NoReturn:
    error = Error(
        f"[invalid argument] [module] {change} after fully_shard(): {consequence}. Change a module before it is "
        "sharded: to resize embeddings, tie weights or add adapters, do that first"
    )
    error.code = "invalid argument"
    raise error
