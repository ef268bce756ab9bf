# SPDX-License-Identifier: Apache-2.0
"""How to shard: what users pass, and the paths of modules that it means."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fsdp._C import NamedShard

# Which modules: types, names of types, paths, or a function of path and module; one of these or several.
Units = type | str | Callable[[str, torch.nn.Module], bool] | Iterable[Any]

_BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedPrecision:
    """In which types a sharded module lives: shards in full precision, which the optimizer updates, and gathered
    weights in a low one, which operators take.

    param: what floating-point weights are gathered as: bfloat16, float16 (which needs a LossScaler) or float32. An
        operator that takes such a weight has its other floating-point tensors cast to it.
    reduce: what gradients of float32 shards are collected and sent in; default float32.
    output: what the results of operators that take a weight and another tensor are cast to; default as they come.
    buffers: what floating-point buffers are held in while training; default their own type.
    full_precision: modules whose parameters and buffers stay as they are; default BatchNorm.
    low_precision_shards: let low-precision parameters have shards of their own type, which rounds small updates away.
    allow_unscaled: train in float16 without a LossScaler.
    """

    param: torch.dtype | None = None
    reduce: torch.dtype | None = None
    output: torch.dtype | None = None
    buffers: torch.dtype | None = None
    full_precision: Units = (_BATCH_NORMS,)
    low_precision_shards: bool = False
    allow_unscaled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitRule:
    """An exception for some units; of several rules that say something else about one unit, the first counts. The
    root is "".

    strategy: how they are spread. keep_gathered: whether they stay gathered from their first use to the end of
    backward. optional: whether a rank may leave them out of a step, by Sharded.participate(). param: what their
    weights are gathered as.
    """

    units: Units = ()
    strategy: str | None = None
    keep_gathered: bool | None = None
    optional: bool | None = None
    param: torch.dtype | None = None


def decay_rule(shard: NamedShard) -> int:
    """For Sharded.param_groups(): group 0 has the parameters that weight decay is for, 1 the others, which are biases
    and all that have fewer than two dimensions, as the scales of norms."""
    return 1 if len(shard.sizes) < 2 or shard.name.rsplit(".", 1)[-1] == "bias" else 0


def paths_of(module: torch.nn.Module, wanted: Units, option: str, allow_root: bool = False) -> list[str]:
    """The paths of the modules that are meant. Raises ValueError for a type or name that fits none."""
    if isinstance(wanted, (str, type)) or callable(wanted):
        wanted = [wanted]
    wanted = list(wanted)
    modules = [(name, sub) for name, sub in module.named_modules() if name or allow_root]
    found = []
    fits = [False] * len(wanted)
    for name, sub in modules:
        meant = [_is_meant(what, name, sub) for what in wanted]
        fits = [a or b for a, b in zip(fits, meant, strict=True)]
        if any(meant):
            found.append(name)
    for what, fit in zip(wanted, fits, strict=True):
        if not fit and isinstance(what, str | type) and not issubclass_of_norms(what):
            raise ValueError(_fits_nothing(what, option, module))
    return found


def issubclass_of_norms(what: Any) -> bool:
    """The default of full_precision, which need not fit anything."""
    return what is _BATCH_NORMS


def _is_meant(what: Any, name: str, sub: torch.nn.Module) -> bool:
    if isinstance(what, type):
        return isinstance(sub, what)
    if isinstance(what, str):
        return what == name or what == type(sub).__name__
    if callable(what):
        return bool(what(name, sub))
    raise TypeError(f"units are types of modules, names of types, paths or functions, not {what!r}")


def _fits_nothing(what: str | type, option: str, module: torch.nn.Module) -> str:
    from difflib import get_close_matches

    word = what if isinstance(what, str) else what.__name__
    paths = [name for name, _ in module.named_modules() if name]
    types = sorted({type(sub).__name__ for sub in module.modules()})
    near = get_close_matches(word, types + paths, 5, 0.5)
    hint = f"; near it: {', '.join(near)}" if near else f"; its types are {', '.join(types)}"
    kind = f"of type {word}" if isinstance(what, type) else f'called "{word}", nor one of such a type'
    return f"[fully_shard] {option}: the module has no part {kind}{hint}"


def to_inner(
    module: torch.nn.Module,
    units: Units,
    precision: MixedPrecision | torch.dtype | None,
    rules: Sequence[UnitRule],
    **others: Any,
) -> dict[str, Any]:
    """What the extension takes."""
    if isinstance(precision, torch.dtype):
        precision = MixedPrecision(param=precision)
    precision = precision or MixedPrecision()
    inner = dict(others)
    inner["units"] = paths_of(module, units, "units")
    inner["precision"] = {
        **{field.name: getattr(precision, field.name) for field in dataclasses.fields(precision)},
        "full_precision": paths_of(module, precision.full_precision, "full_precision"),
    }
    inner["rules"] = [
        {
            **{field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)},
            "units": paths_of(module, rule.units, "rules", allow_root=True),
        }
        for rule in rules
    ]
    return inner
