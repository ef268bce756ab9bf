# SPDX-License-Identifier: Apache-2.0
"""The library's optimizers, which update whole flat shards in one pass, as torch.optim optimizers: learning-rate
schedulers, param_groups and zero_grad() work as usual. What is saved of them is saved by fsdp.save()."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from fsdp import _C
from fsdp._sharded import Sharded

Groups = Iterable[dict[str, Any]] | Iterable[torch.Tensor] | None


class _FlatOptimizer(torch.optim.Optimizer):
    """Hands the hyper-parameters of param_groups on before each step."""

    _FIELDS: tuple[str, ...] = ()

    def __init__(self, sharded: Sharded, params: Groups, defaults: dict[str, Any]) -> None:
        self.sharded = sharded
        names = {id(shard): name for name, shard in sharded.named_parameters()}
        super().__init__(list(params) if params is not None else sharded.parameters(), defaults)
        of_groups = []
        for group in self.param_groups:
            strangers = [shard for shard in group["params"] if id(shard) not in names]
            if strangers:
                raise ValueError(
                    f"{type(self).__name__} was given a tensor of {strangers[0].numel()} elements that is no shard: "
                    "pass sharded.parameters() or groups of sharded.param_groups()"
                )
            of_groups.append([names[id(shard)] for shard in group["params"]])
        self._inner = self._make(of_groups)

    def _make(self, names: list[list[str]]) -> "_C.FlatOptimizer":
        kind = getattr(_C, type(self).__name__)
        groups = [(of, self._values(group)) for of, group in zip(names, self.param_groups, strict=True)]
        return kind(self.sharded._inner, groups)

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        values = {name: float(group[name]) for name in self._FIELDS}
        if "betas" in group:
            values["beta1"], values["beta2"] = group["betas"]
        return values

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's shards. Call it on all ranks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            self._inner.set_values(index, self._values(group))
        self._inner.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients."""
        self._inner.zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is constructed: its state is laid out over all groups at once."""
        if hasattr(self, "_inner"):
            raise ValueError(f"{type(self).__name__}: groups are given when it is constructed")
        super().add_param_group(param_group)

    def pull_values(self) -> None:
        """Takes over into param_groups what a checkpoint has set."""
        for index, group in enumerate(self.param_groups):
            values = self._inner.values(index)
            for name in self._FIELDS:
                group[name] = type(group[name])(values[name])
            if "betas" in group:
                group["betas"] = (values["beta1"], values["beta2"])

    def state_dict(self) -> NoReturn:
        raise TypeError(
            f"the state of fsdp.{type(self).__name__} is in the shards of all ranks: "
            "fsdp.save(path, sharded, optimizer) saves it, fsdp.load() loads it at any number of ranks"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> NoReturn:
        self.state_dict()


class AdamW(_FlatOptimizer):
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; as torch.optim.AdamW. `params`: all
    shards, or groups of sharded.param_groups() with hyper-parameters of their own."""

    _FIELDS = ("lr", "eps", "weight_decay")

    def __init__(
        self,
        sharded: Sharded,
        params: Groups = None,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(sharded, params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class SGD(_FlatOptimizer):
    """As torch.optim.SGD."""

    _FIELDS = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

    def __init__(
        self,
        sharded: Sharded,
        params: Groups = None,
        *,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(sharded, params, defaults)


class Lion(_FlatOptimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023: half of AdamW's state."""

    _FIELDS = ("lr", "weight_decay")

    def __init__(
        self,
        sharded: Sharded,
        params: Groups = None,
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(sharded, params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


class Muon(_FlatOptimizer):
    """Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: momentum whose update is made
    orthogonal, matrix by matrix; what is no matrix, or fits a pattern of `by_adamw`, goes by AdamW. param_groups[0] is
    Muon's, [1] AdamW's. `scale`: "shape" or "match_adamw"."""

    def __init__(
        self,
        sharded: Sharded,
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        iterations: int = 5,
        scale: str = "shape",
        dtype: torch.dtype | None = None,
        batch_bytes: int = 64 << 20,
        by_adamw: Sequence[str] = (),
        adamw: dict[str, Any] | None = None,
    ) -> None:
        if scale not in ("shape", "match_adamw"):
            raise ValueError(f'Muon: scale is "{scale}", must be "shape" or "match_adamw"')
        others = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, **(adamw or {})}
        values = {name: value for name, value in others.items() if name != "betas"}
        values["beta1"], values["beta2"] = others["betas"]
        self._made = _C.Muon(
            sharded._inner,
            lr,
            momentum,
            nesterov,
            weight_decay,
            iterations,
            scale == "match_adamw",
            dtype,
            batch_bytes,
            list(by_adamw),
            values,
        )
        matrices = set(self._made.matrices())
        named = sharded.named_parameters()
        groups = [
            {
                "params": [shard for name, shard in named if name in matrices],
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
            },
            {"params": [shard for name, shard in named if name not in matrices], **others},
        ]
        super().__init__(sharded, groups, {})

    def _make(self, names: list[list[str]]) -> "_C.FlatOptimizer":
        return self._made

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        values = {name: float(group[name]) for name in ("lr", "momentum", "eps", "weight_decay") if name in group}
        if "betas" in group:
            values["beta1"], values["beta2"] = group["betas"]
        return values

    def pull_values(self) -> None:
        for index, group in enumerate(self.param_groups):
            values = self._inner.values(index)
            for name in ("lr", "momentum", "eps", "weight_decay"):
                if name in group:
                    group[name] = values[name]
            if "betas" in group:
                group["betas"] = (values["beta1"], values["beta2"])


class Ema:
    """An exponential moving average of the weights, on shards: average = decay * average + (1 - decay) * weight."""

    def __init__(self, sharded: Sharded, decay: float) -> None:
        self._inner = _C.Ema(sharded._inner, decay)

    @property
    def decay(self) -> float:
        return self._inner.decay

    @decay.setter
    def decay(self, decay: float) -> None:
        self._inner.decay = decay

    def update(self) -> None:
        """Takes the present weights in. Call it after each step. Local."""
        self._inner.update()

    def averages(self) -> list[tuple[str, torch.Tensor]]:
        """This rank's parts of the averages, by name."""
        return self._inner.averages()

    @contextlib.contextmanager
    def swap_in(self) -> Iterator[None]:
        """Inside, the module's weights are the averages. Collective, at both ends; the optimizer must not step."""
        scope = self._inner.swap_in()
        try:
            yield
        finally:
            scope.end()


class LossScaler:
    """Dynamic loss scaling for float16, with the calls of torch.amp.GradScaler, whose own look at gradients sees one
    rank's part only. A step whose gradients are not finite on any rank is skipped on all, and the scale is halved."""

    def __init__(
        self,
        sharded: Sharded,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._inner = _C.LossScaler(
            sharded._inner, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._enabled = enabled
        self._is_unscaled = False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the scale."""
        return self._inner.scale(loss)

    def unscale_(self, optimizer: object = None, max_norm: float | None = None) -> "_C.GradientCheck":
        """Divides the gradients by the scale, and clips them by their norm over all ranks where `max_norm` is given.
        Once a step. `optimizer` is there for GradScaler's callers. Collective."""
        self._is_unscaled = True
        return self._inner.unscale_(max_norm)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """unscale_(), if it was not called, then optimizer.step(), which does nothing in a step that is skipped."""
        if not self._is_unscaled:
            self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """Moves the scale by what unscale_() found, or to `new_scale`. After the step."""
        self._is_unscaled = False
        self._inner.update()
        if new_scale is not None:
            self._inner.set_state(float(new_scale), self._inner.state()[1])

    def get_scale(self) -> float:
        """The scale; 1 where it is not enabled."""
        return self._inner.current_scale()

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint's values."""
        scale, tracker = self._inner.state()
        return {"scale": scale, "_growth_tracker": tracker}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.set_state(float(state_dict["scale"]), int(state_dict["_growth_tracker"]))


__all__ = ["AdamW", "Ema", "Lion", "LossScaler", "Muon", "SGD"]
