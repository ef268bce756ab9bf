# SPDX-License-Identifier: Apache-2.0
"""state_dict() and load_state_dict() of sharded modules."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fsdp._C import Error

if TYPE_CHECKING:
    from torch.nn.modules.module import _IncompatibleKeys

    from fsdp._sharded import Sharded


def buffers_of(
    module: torch.nn.Module,
) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Those that are saved, and the others."""
    persistent, others = [], []
    for path, part in module.named_modules(remove_duplicate=False):
        for key, buffer in part._buffers.items():
            if buffer is not None:
                is_saved = key not in part._non_persistent_buffers_set
                (persistent if is_saved else others).append((f"{path}.{key}" if path else key, buffer))
    return persistent, others


def of(sharded: "Sharded", full: bool) -> dict[str, torch.Tensor]:
    """See Sharded.state_dict()."""
    if full:
        with sharded.full_parameters():
            return _copies(sharded.module.state_dict())
    state = {shard.name: shard.shard.detach().clone() for shard in sharded.named_shards()}
    for name, buffer in buffers_of(sharded.module)[0]:
        state[name] = buffer.detach().clone()
    return state


def _copies(state: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of their own; what is tied stays so."""
    made: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}
    copies: dict[str, Any] = {}
    for name, value in state.items():
        if torch.is_tensor(value):
            key = (value.data_ptr(), value.shape, value.dtype)
            if value.numel() == 0 or key not in made:
                made[key] = value.detach().clone()
            copies[name] = made[key]
        else:
            copies[name] = value
    return copies


def load(sharded: "Sharded", state: Mapping[str, Any], strict: bool, full: bool) -> "_IncompatibleKeys":
    """See Sharded.load_state_dict()."""
    if full:
        return sharded.module.load_state_dict(state, strict=strict)
    here = {shard.name: shard.shard for shard in sharded.named_shards()}
    here.update(buffers_of(sharded.module)[0])
    missing, unexpected = sorted(here.keys() - state.keys()), sorted(state.keys() - here.keys())
    sizes = [
        f"{name}: {tuple(state[name].shape)} given, {tuple(tensor.shape)} here"
        for name, tensor in here.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if sizes or (strict and (missing or unexpected)):
        _fail(
            "[load_state_dict] these are not this rank's parts: "
            f"missing {missing}, unexpected {unexpected}, other sizes {sizes}. Parts fit the number of ranks and the "
            "units that they came from: between others, use fsdp.save() and fsdp.load(), or full=True"
        )
    with torch.no_grad():
        for name, tensor in here.items():
            if name in state:
                tensor.copy_(state[name])
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


class _Scope:
    """Gathers the weights around the module's own load_state_dict()."""

    def __init__(self, sharded: "Sharded") -> None:
        self._sharded = sharded
        self._open: ExitStack | None = None

    def begin(self, module: torch.nn.Module, state: object, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
        self.end()
        if metadata.get("assign_to_params_buffers"):
            _fail(
                "[load_state_dict] assign=True would put other tensors in the place of sharded weights: leave it out, "
                "the values are copied"
            )
        scopes = self._sharded._full_scopes
        if scopes and not scopes[-1]:
            _fail(
                "[load_state_dict] this full_parameters() scope does not write back: use "
                "full_parameters(writeback=True), or call load_state_dict() outside of it, on all ranks"
            )
        if not scopes:
            self._open = ExitStack()
            self._open.enter_context(self._sharded.full_parameters(writeback=True))

    def end(self, *_: Any) -> None:
        if self._open is not None:
            scope, self._open = self._open, None
            scope.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_NoScope":
        return _NoScope()


class _NoScope:
    """That of a copy, which is whole."""

    def begin(self, *_: Any) -> None:
        return

    def end(self, *_: Any) -> None:
        return


class _Begin:
    """A hook that a copy of the module gets a copy of."""

    def __init__(self, scope: _Scope | _NoScope) -> None:
        self._scope = scope

    def __call__(self, *arguments: Any) -> None:
        self._scope.begin(*arguments)


class _End(_Begin):
    def __call__(self, *arguments: Any) -> None:
        self._scope.end(*arguments)


def install(sharded: "Sharded") -> None:
    """Has module.load_state_dict() take whole weights, the same on all ranks."""
    scope = _Scope(sharded)
    sharded.module.register_load_state_dict_pre_hook(_Begin(scope))
    sharded.module.register_load_state_dict_post_hook(_End(scope))


def _fail(text: str) -> NoReturn:
    error = Error(f"[invalid argument] {text}")
    error.code = "invalid argument"
    raise error
