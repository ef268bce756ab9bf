# SPDX-License-Identifier: Apache-2.0
"""fully_shard() and what it returns."""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Union

import torch

from fsdp import _C, _engine, _state_dict
from fsdp._C import NamedShard, Report, World
from fsdp._mesh import DeviceMesh, mesh_of
from fsdp._options import MixedPrecision, UnitRule, Units, decay_rule, to_inner
from fsdp._watch import ModuleWatch
from fsdp._world import current_world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchMesh

_ATTRIBUTE = "_fsdp_sharded"
# What a sharded module has beside what its class gives it.
_OWN_ATTRIBUTES = {_ATTRIBUTE, "__reduce_ex__", "__deepcopy__", "no_sync"}


class Sharded:
    """A sharded module's other half: the shards, and what one may ask of them. The module holds it, so it lives as
    long as the module does.

    Calls that are collective say so: every rank makes them, in the same order.
    """

    def __init__(self, inner: "_C.Sharded", module: torch.nn.Module, world: World) -> None:
        self._inner = inner
        self.module = module
        self.world = world
        self._full_scopes: list[bool] = []
        self._watch: ModuleWatch | None = None

    # --- shards

    def parameters(self) -> list[torch.Tensor]:
        """One 1-D leaf per parameter, possibly empty, in the module's order, of the type that the optimizer updates:
        this rank's part. Its grad, by default the mean over ranks, is there when backward() returns. Build
        optimizers on these; one that looks at a parameter as a whole (LBFGS, LAMB) is refused when it does."""
        return self._inner.parameters()

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The same with the module's names."""
        return [(shard.name, shard.shard) for shard in self._inner.named_shards()]

    def named_shards(self) -> list[NamedShard]:
        """The same with all that is known of them: whole shapes, first elements, other names, units."""
        return self._inner.named_shards()

    def param_groups(
        self, rule: Callable[[NamedShard], int] = decay_rule, groups: int | None = None
    ) -> list[dict[str, list[torch.Tensor]]]:
        """The shards in groups for optimizers of torch.optim and of fsdp.optim. `rule` gives the group of a parameter,
        by whole shapes and names (a shard's own shape is 1-D whatever it is a part of), or -1 for none:

            decay, rest = sharded.param_groups(fsdp.decay_rule)
            AdamW([{**decay, "weight_decay": 0.1}, {**rest, "weight_decay": 0.0}], lr=3e-4)

        `groups`: how many there are; default: as many as the rule names, and two for decay_rule.
        """
        placed = [(rule(shard), shard.shard) for shard in self._inner.named_shards()]
        if groups is None:
            groups = max([1 if rule is decay_rule else 0, *(group for group, _ in placed)]) + 1
        for shard, (group, _) in zip(self._inner.named_shards(), placed, strict=True):
            if not -1 <= group < groups:
                raise ValueError(
                    f'[param_groups] the rule puts "{shard.name}" into group {group}, but has groups 0 to {groups - 1} '
                    "(and -1 for none)"
                )
        return [{"params": [tensor for of, tensor in placed if of == group]} for group in range(groups)]

    def mark_written(self) -> None:
        """Says that shards were written where nothing sees it, through a raw pointer. Collective."""
        self._inner.mark_written()

    def is_sharded(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter of this module, or shares its storage."""
        return self._inner.is_sharded(tensor)

    # --- gradients

    def zero_grad(self) -> None:
        """Forgets all gradients, as optimizer.zero_grad() and module.zero_grad() do, and those that wait."""
        self._inner.zero_grad()

    @contextlib.contextmanager
    def no_sync(self, sync: str = "defer_all") -> Iterator[None]:
        """Backwards inside add up and reduce nothing; the first one after reduces the sum. All ranks alike. `sync`:
        "defer_all", or with replicas "defer_replicate"."""
        self.set_gradient_sync(sync)
        try:
            yield
        finally:
            self.set_gradient_sync("every_backward")

    def set_gradient_sync(self, sync: str) -> None:
        """Which collectives the backwards that come end with: "every_backward", "defer_replicate" or "defer_all". The
        same on all ranks."""
        self._inner.set_gradient_sync(sync)

    def set_gradient_divisor(self, divisor: float) -> None:
        """Gradients that are reduced from now on are the sum over all ranks divided by it. The same on all ranks."""
        self._inner.set_gradient_divisor(divisor)

    def on_reduced(self, hook: Callable[[NamedShard, torch.Tensor], None]) -> "RemovableHook":
        """Has `hook(shard, grad)` called at the end of each backward that reduces gradients, once for each parameter
        that has one on any rank; it may change this rank's part in place, by element. Returns a handle with
        remove(). Local, but to be called on all ranks where that matters to the hook."""
        return RemovableHook(self._inner, self._inner.on_reduced(hook))

    def grad_norm(self, norm_type: float = 2.0) -> float:
        """The norm of the gradients over all ranks and parameters, the same on every rank. Collective."""
        return _C.grad_norm([self._inner], norm_type, [])

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales all gradients so that their norm over all ranks is at most `max_norm`; returns the norm before. One
        that is not finite scales nothing: then all ranks skip the step. Collective."""
        return _C.clip_grad_norm_([self._inner], max_norm, norm_type, [])

    def clip_grad_value_(self, max_value: float) -> None:
        """Clamps each element of the gradients. Local."""
        _C.clip_grad_value_(self._inner, max_value)

    def participate(self, unit: str | torch.nn.Module) -> torch.Tensor:
        """Takes the place of a part of the model that this rank leaves out of a step while other ranks run it: returns
        a zero to be added to the loss. `unit`: its name in report(), or its module. UnitRule.optional must hold for
        it. Collective, in step with the ranks that run it."""
        return self._inner.participate(unit if isinstance(unit, str) else self._path_of(unit))

    def _path_of(self, part: torch.nn.Module) -> str:
        for name, module in self.module.named_modules():
            if module is part:
                return name
        raise ValueError("[participate] the module is no part of the sharded one")

    # --- whole weights

    @contextlib.contextmanager
    def full_parameters(self, writeback: bool = False) -> Iterator[torch.nn.Module]:
        """Whole weights inside, in their shards' type: raw pointers, torch.save and state_dict() work. With `writeback`
        edits reach the shards; each rank keeps its slice of its own edit, so make the same one on all. Collective, at
        both ends. Memory: one whole copy of the model."""
        scope = self._inner.full_scope(writeback)
        scope.enter()
        self._full_scopes.append(writeback)
        try:
            yield self.module
        finally:
            self._full_scopes.pop()
            scope.exit()

    def state_dict(self, full: bool = True) -> dict[str, torch.Tensor]:
        """The module's state as tensors of their own. `full`: whole weights on every rank, under the names that
        module.state_dict() has (collective; memory of the whole model). Else this rank's 1-D parts and all buffers,
        local; parts belong to this number of ranks and these units, and save() is what files are made by."""
        return _state_dict.of(self, full)

    def load_state_dict(
        self, state: Mapping[str, torch.Tensor], strict: bool = True, full: bool = True
    ) -> torch.nn.modules.module._IncompatibleKeys:
        """Takes over what state_dict() of the same `full` returned, on all ranks. Collective."""
        return _state_dict.load(self, state, strict, full)

    def reshard(self) -> None:
        """Frees every gathered weight that no operator is using. Call it on all ranks."""
        self._inner.reshard()

    # --- questions

    def report(self) -> Report:
        """Units, traffic, the promise of memory and what is held. Local. print() shows it."""
        return self._inner.report()

    def reset_counters(self) -> None:
        """report().counters start from zero."""
        self._inner.reset_counters()

    def __repr__(self) -> str:
        report = self._inner.report()
        return f"<fsdp.Sharded {type(self.module).__name__}: {len(report.units)} units over {report.ranks} ranks>"

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a module has whole weights of its own, and no other half."""
        return

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_pickling(protocol)


def refuse_pickling(protocol: object) -> NoReturn:
    """In the place of __reduce_ex__ of a sharded module and of its other half."""
    raise TypeError(
        "a sharded module cannot be pickled: its weights are in the shards of all ranks. Save them by "
        "fsdp.save(path, sharded) or fsdp.save_safetensors(sharded, path), or pickle sharded.state_dict(), whole "
        "weights, which all ranks call"
    )


class WholeCopy:
    """copy.deepcopy() of a sharded module: whole weights, gathered as they are copied, and nothing of its other half.
    Collective."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, memo: dict[int, Any]) -> torch.nn.Module:
        module = self._module()
        made = module.__class__.__new__(module.__class__)
        memo[id(module)] = made
        for name, value in module.__dict__.items():
            if name not in _OWN_ATTRIBUTES:
                made.__dict__[name] = copy.deepcopy(value, memo)
        return made


class RemovableHook:
    """What on_reduced() returns."""

    def __init__(self, inner: "_C.Sharded", number: int) -> None:
        self._inner = inner
        self._number: int | None = number

    def remove(self) -> None:
        """From the next backward on, the hook is not called any more."""
        if self._number is not None:
            self._inner.remove_on_reduced(self._number)
            self._number = None


def fully_shard(
    module: torch.nn.Module,
    units: Units = (),
    *,
    world: World | None = None,
    mesh: Union[DeviceMesh, Mapping[str, int], "TorchMesh", None] = None,
    strategy: str | None = None,
    precision: MixedPrecision | torch.dtype | None = None,
    offload: bool = False,
    rules: Sequence[UnitRule] = (),
    ignore: Sequence[str] = (),
    replicate_below: int = 0,
    prefetch: int = 1,
    extra_slots: int = 0,
    align_bytes: int = 128,
    store: str = "auto",
    moments: int = 2,
    gradient_divisor: str | float = "mean",
    initial_weights: str = "broadcast",
    skip_non_finite: bool = True,
    print_promise: bool = True,
    poison_freed: bool = False,
) -> Sharded:
    """Shards `module` over all ranks of `world` (default: that of fsdp.init()). The module's parameters keep their
    identity; from now on an operator that takes one gathers its unit first.

    units: what is gathered, computed with, freed and reduced as one: types of modules, names of types, paths, or a
        function of path and module. One transformer block per unit is the usual choice; what no unit claims is the
        root unit.
    strategy: "full_shard", "shard_grad", "replicate"; with a mesh "hybrid" (its default), "hybrid_optimizer" or
        "secondary_shard".
    mesh: who is whose replica: an fsdp.DeviceMesh, sizes by name, or a DeviceMesh of torch.
    precision: a MixedPrecision, or the type that weights are gathered as.
    offload: keep shards, gradients and optimizer state in the host's memory.
    rules: exceptions for single units.
    ignore: names of parameters, * for any text, that are left to the program.
    replicate_below: parameters of fewer elements than this are replicated, together in one unit.
    prefetch, extra_slots, align_bytes, store, moments: see MemoryOptions in the C++ reference.
    gradient_divisor: what gradients are divided by: "mean" (the number of ranks), "sum" (nothing) or a number.
    initial_weights: "broadcast" rank 0's to all, or "check_equal".
    skip_non_finite: skip a step whose gradients are not finite, on all ranks.
    print_promise, poison_freed: for debugging.

    Collective: all ranks, the same architecture and options. Raises fsdp.Error, on all ranks where they differ;
    ValueError for units that fit nothing.
    """
    world = world if world is not None else current_world()
    mesh = _mesh_for(mesh, strategy, world)
    if strategy is None:
        strategy = "full_shard" if mesh is None else "hybrid"
    _refuse(module)
    options = to_inner(
        module,
        units,
        precision,
        rules,
        strategy=strategy,
        mesh=mesh._inner if mesh is not None else None,
        offload=offload,
        ignore=list(ignore),
        replicate_below=replicate_below,
        prefetch=prefetch,
        extra_slots=extra_slots,
        align_bytes=align_bytes,
        store=store,
        moments=moments,
        gradient_divisor=gradient_divisor,
        initial_weights=initial_weights,
        skip_non_finite=skip_non_finite,
        print_promise=print_promise,
        poison_freed=poison_freed,
    )
    _engine.install()
    persistent, others = _state_dict.buffers_of(module)
    modules = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    parameters = list(module.named_parameters(remove_duplicate=False))
    inner = _C.fully_shard(modules, parameters, persistent, world, options)
    if initial_weights == "broadcast" and others:
        _C.broadcast(world, [buffer.contiguous() for _, buffer in others])
    sharded = Sharded(inner, module, world)
    object.__setattr__(module, _ATTRIBUTE, sharded)
    object.__setattr__(module, "__reduce_ex__", refuse_pickling)
    object.__setattr__(module, "__deepcopy__", WholeCopy(module))
    sharded._watch = ModuleWatch.install(module, ignore)
    _state_dict.install(sharded)
    return sharded


def sharded_of(module: torch.nn.Module) -> Sharded | None:
    """What fully_shard(module) returned, None for a module that it was not called with."""
    return module.__dict__.get(_ATTRIBUTE)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight of a sharded module, an alias of one, a shard, or a gradient of one."""
    return _C.has_touch_key(tensor)


def _mesh_for(
    mesh: Union[DeviceMesh, Mapping[str, int], "TorchMesh", None], strategy: str | None, world: World
) -> DeviceMesh | None:
    given = mesh_of(mesh, world)
    if given is None or isinstance(mesh, DeviceMesh | Mapping):
        return given
    # A mesh of torch with one axis is how its programs say "all ranks", which needs no mesh here.
    is_plain = strategy in (None, "full_shard", "shard_grad", "replicate") and given.size("replicate") == 1
    return None if is_plain else given


def _refuse(module: torch.nn.Module) -> None:
    """What C++ modules are looked at for, too."""
    for name, part in module.named_modules():
        if getattr(part, "max_norm", None) is not None and isinstance(
            part, torch.nn.Embedding | torch.nn.EmbeddingBag
        ):
            raise ValueError(
                f'[fully_shard] "{name}" has max_norm: its forward writes the weights, which each rank would do on its '
                "own gathered copy. Normalise the weights after the optimizer's step instead"
            )
        if part.__dict__.get(_ATTRIBUTE) is not None:
            raise ValueError(
                f'[fully_shard] "{name or "the module"}" is sharded already. Layers are not sharded one by one before '
                "the whole, as torch's fully_shard does it: shard the whole once, `units` says what is gathered "
                "together. fsdp.compat.fully_shard takes calls in torch's order"
            )
        for key, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                raise ValueError(
                    f'[fully_shard] parameter "{name + "." if name else ""}{key}" is on meta, where it has no values: '
                    'model.to_empty(device="cpu") makes room, and fsdp.load_weights() after fully_shard() fills each '
                    "rank's part"
                )
            if parameter is not None and _is_other_tensor(parameter):
                path = f"{name}.{key}" if name else key
                raise ValueError(
                    f'[fully_shard] parameter "{path}" is a {type(parameter.data).__name__}, which has tensors inside: '
                    "only plain tensors are sharded"
                )


def _is_other_tensor(parameter: torch.Tensor) -> bool:
    """A tensor whose class takes operators for itself (DTensor, quantised weights)."""
    return type(parameter.data) is not torch.Tensor


def shards_of(sharded: Sharded | Iterable[Sharded]) -> list["_C.Sharded"]:
    """The inner halves of one or several."""
    if isinstance(sharded, Sharded):
        return [sharded._inner]
    return [one._inner for one in sharded]


__all__ = ["Sharded", "fully_shard", "is_sharded", "sharded_of"]
