# SPDX-License-Identifier: Apache-2.0
"""torch's `fully_shard`, so that a program for it changes one import:

    from fsdp.compat import MixedPrecisionPolicy, fully_shard      # was: from torch.distributed.fsdp import ...

    for block in model.layers:
        fully_shard(block, reshard_after_forward=True)
    fully_shard(model)                                             # this call shards
    optimizer = torch.optim.AdamW(model.parameters())              # gets the shards

Calls for parts of a model are collected, and the call for a module that holds all of them shards. From then on an
optimizer of torch that is given the module's parameters gets their shards, in the same groups; what looks at shapes and
names before (`p.dim() >= 2`) sees the whole weights.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from fsdp import _C
from fsdp._options import MixedPrecision, UnitRule
from fsdp._sharded import Sharded
from fsdp._sharded import fully_shard as shard_whole
from fsdp._world import current_world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
except ImportError:  # a torch without distributed
    CPUOffloadPolicy = MixedPrecisionPolicy = OffloadPolicy = None

_REFUSED = {
    "shard_placement_fn": "every parameter is divided as a part of its unit's flat buffer, whatever its shape",
    "dp_mesh_dims": "a mesh here is all ranks; name its axes replicate and shard",
}


class _Asked:
    """What a call for a part asked for."""

    def __init__(self, reshard: bool | int | None, policy: Any, ignored: set[Any] | None) -> None:
        self.reshard = reshard
        self.policy = policy
        self.ignored = ignored or set()


_asked: "weakref.WeakKeyDictionary[torch.nn.Module, _Asked]" = weakref.WeakKeyDictionary()
_shards = WeakIdKeyDictionary()  # weight -> its shard
_owners = WeakIdKeyDictionary()  # weight and shard -> a weak reference to the Sharded


def fully_shard(
    module: torch.nn.Module | list[torch.nn.Module],
    *,
    mesh: "DeviceMesh | None" = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[..., Any] | None = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: set[torch.nn.Parameter] | None = None,
    dp_mesh_dims: Any = None,
) -> Any:
    """As torch.distributed.fsdp.fully_shard. A call for a part notes what is asked and returns it; a call for a module
    whose parts were asked for, or which no call was made for, shards it, with those parts as units, and returns it.
    Its other half is `fsdp.sharded_of(module)`.

    A module with parts is the root in torch, too, unless it is a part itself; to tell both, the root is the module that
    is not inside of another at the time: call the outermost last.

    reshard_after_forward: True frees a unit after forward, False keeps it; an integer is refused. mp_policy:
    param_dtype, reduce_dtype, output_dtype; it must be one for all. offload_policy: a CPUOffloadPolicy offloads.
    ignored_params: left out. mesh: a DeviceMesh of torch over all ranks; two axes replicate and shard.
    """
    given = {"shard_placement_fn": shard_placement_fn, "dp_mesh_dims": dp_mesh_dims}
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"fsdp.compat.fully_shard: {name} is not there: {_REFUSED[name]}")
    if isinstance(reshard_after_forward, int) and not isinstance(reshard_after_forward, bool):
        raise NotImplementedError(
            "fsdp.compat.fully_shard: reshard_after_forward as a number of ranks is not there: "
            'fsdp.fully_shard(strategy="secondary_shard", mesh=...) keeps a part of the weights for backward'
        )
    parts = module if isinstance(module, list) else [module]
    for part in parts:
        _asked[part] = _Asked(reshard_after_forward, mp_policy, ignored_params)
    if isinstance(module, list) or not _is_root(module):
        return module
    _shard(module, mesh, offload_policy)
    return module


def _is_root(module: torch.nn.Module) -> bool:
    """A module with parts that were asked for. A module without any, a block in a loop, waits for its root."""
    return any(part is not module and part in _asked for part in module.modules())


def shard(module: torch.nn.Module, mesh: "DeviceMesh | None" = None, offload_policy: Any = None) -> Sharded:
    """Shards a module now for which, or for whose parts, fully_shard() was called: needed for one without parts, which
    torch shards by a single call."""
    if module not in _asked:
        _asked[module] = _Asked(None, None, None)
    return _shard(module, mesh, offload_policy)


def _shard(module: torch.nn.Module, mesh: "DeviceMesh | None", offload_policy: Any) -> Sharded:
    named = [(name, part) for name, part in module.named_modules() if part in _asked]
    units = [name for name, _ in named if name]
    rules = [
        UnitRule(units=lambda path, part, wanted=name: path == wanted, keep_gathered=not _asked[part].reshard)
        for name, part in named
        if _asked[part].reshard is not None
    ]
    # torch keeps the root after forward unless told otherwise.
    if _asked[module].reshard is None and units:
        rules.append(UnitRule(units=lambda path, part: path == "", keep_gathered=True))
    ignored = set().union(*(_asked[part].ignored for _, part in named))
    sharded = shard_whole(
        module,
        units=units or (),
        world=current_world(),
        mesh=mesh,
        precision=_precision([_asked[part].policy for _, part in named]),
        offload=CPUOffloadPolicy is not None and isinstance(offload_policy, CPUOffloadPolicy),
        rules=[rule for rule in rules if _has_own_weights(module, rule, units)],
        ignore=[name for name, parameter in module.named_parameters() if parameter in ignored],
        print_promise=False,
    )
    for part in [part for _, part in named]:
        del _asked[part]
    follow(sharded)
    return sharded


def follow(sharded: Sharded) -> None:
    """Has torch's optimizers and clipping take the module's parameters for their shards, whoever sharded it."""
    for of in sharded.named_shards():
        _shards[of.parameter] = of.shard
        _owners[of.parameter] = _owners[of.shard] = weakref.ref(sharded)
    _stand_in_for_torch()


def _has_own_weights(module: torch.nn.Module, rule: UnitRule, units: Iterable[str]) -> bool:
    """A rule for a unit whose weights are all in units inside of it fits nothing."""
    for path, part in module.named_modules():
        if rule.units(path, part):
            inner = [unit for unit in units if unit != path and (not path or unit.startswith(path + "."))]
            prefix = f"{path}." if path else ""
            return any(
                not any((prefix + name).startswith(unit + ".") for unit in inner) for name, _ in part.named_parameters()
            )
    return False


def _precision(policies: list[Any]) -> MixedPrecision | None:
    given = [policy for policy in policies if policy is not None]
    if not given:
        return None
    if any(policy != given[0] for policy in given):
        raise NotImplementedError(
            "fsdp.compat.fully_shard: parts have different mp_policy: take fsdp.fully_shard, whose UnitRule(param=...) "
            "and MixedPrecision(full_precision=...) say what differs"
        )
    policy = given[0]
    return MixedPrecision(
        param=policy.param_dtype, reduce=policy.reduce_dtype, output=policy.output_dtype, full_precision=()
    )


_stands_in = False


def _stand_in_for_torch() -> None:
    """From the first module that is sharded here: Optimizer.add_param_group, through which all groups come, gets
    shards in the place of weights, and torch.nn.utils.clip_grad_norm_ clips by the norm over all ranks."""
    global _stands_in
    if _stands_in:
        return
    _stands_in = True
    inner = torch.optim.Optimizer.add_param_group

    def add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict) and "params" in param_group:
            given = param_group["params"]
            params = [given] if isinstance(given, torch.Tensor) else list(given)
            param_group = {**param_group, "params": [_mapped(param) for param in params]}
        inner(self, param_group)

    torch.optim.Optimizer.add_param_group = add_param_group
    whole_clip = torch.nn.utils.clip_grad_norm_

    def clip(parameters: Any, max_norm: float, norm_type: float = 2.0, *others: Any, **more: Any) -> torch.Tensor:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(tensor in _owners for tensor in tensors):
            return clip_grad_norm_(tensors, max_norm, norm_type)
        return whole_clip(tensors, max_norm, norm_type, *others, **more)

    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip


def _mapped(param: Any) -> Any:
    if isinstance(param, tuple) and len(param) == 2:  # (name, tensor)
        return (param[0], _mapped(param[1]))
    return _shards.get(param, param) if isinstance(param, torch.Tensor) else param


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """As torch.nn.utils.clip_grad_norm_, for all parameters of sharded models (their weights or their shards) and
    others that every rank holds whole: one norm over all ranks. Collective."""
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    owners = {id(owner): owner for owner in map(_owner_of, tensors) if owner is not None}
    given = {id(_shards.get(tensor, tensor)) for tensor in tensors}
    for owner in owners.values():
        left_out = [name for name, shard in owner.named_parameters() if shard.requires_grad and id(shard) not in given]
        if left_out:
            raise NotImplementedError(
                f"clip_grad_norm_: {len(left_out)} parameters of the module are left out, such as {left_out[0]}: a "
                "norm is over all of a module's"
            )
    whole = [tensor for tensor in tensors if _owner_of(tensor) is None]
    norm = _C.clip_grad_norm_([one._inner for one in owners.values()], max_norm, norm_type, whole)
    return torch.tensor(norm, dtype=tensors[0].dtype if tensors else None)


def _owner_of(tensor: torch.Tensor) -> Sharded | None:
    reference = _owners.get(tensor)
    return reference() if reference is not None else None


__all__ = [
    "CPUOffloadPolicy",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "clip_grad_norm_",
    "follow",
    "fully_shard",
    "shard",
]
