# SPDX-License-Identifier: Apache-2.0
"""An optimizer of torch.optim as checkpoints see it: the files are those of the C++ optimizers of the same names."""

from typing import TYPE_CHECKING, Any

import torch

from fsdp.optim import _FlatOptimizer

if TYPE_CHECKING:
    from fsdp._sharded import Sharded

# A moment that a rule makes when it first steps, as zeros of the shard's size.
_MOMENTS = {
    "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "SGD": ("momentum_buffer",),
}


class OptimizerState:
    """The methods are those of checkpoint::OptimizerState; python/src/checkpoints.cpp calls them."""

    def __init__(self, optimizer: torch.optim.Optimizer, sharded: "Sharded") -> None:
        self._optimizer = optimizer
        self._shards = dict(sharded.named_parameters())
        self._names = {id(shard): name for name, shard in self._shards.items()}
        self._groups = []
        for group in optimizer.param_groups:
            strangers = [tensor for tensor in group["params"] if id(tensor) not in self._names]
            if strangers:
                raise ValueError(
                    f"the optimizer holds a tensor of {strangers[0].numel()} elements that is no shard: build it on "
                    "sharded.parameters()"
                )
            self._groups.append((sorted(self._names[id(tensor)] for tensor in group["params"]), group))
        known = {name for names, _ in self._groups for name in names}
        self._shards = {name: shard for name, shard in self._shards.items() if name in known}

    def kind(self) -> str:
        return type(self._optimizer).__name__

    def _state(self, name: str) -> dict[str, Any]:
        return self._optimizer.state.get(self._shards[name], {})

    def shards(self) -> list[tuple[str, str, torch.Tensor]]:
        return [
            (name, key, value)
            for name in sorted(self._shards)
            for key, value in sorted(self._state(name).items())  # the same on all ranks
            if self._is_per_element(name, key, value)
        ]

    def _is_per_element(self, name: str, key: str, value: Any) -> bool:
        return torch.is_tensor(value) and key != "step" and value.shape == self._shards[name].shape

    def steps(self) -> dict[str, int]:
        return {name: int(self._state(name)["step"]) for name in self._shards if "step" in self._state(name)}

    def options(self) -> dict[str, dict[str, bool | int | float | str]]:
        return {names[0]: self._options_of(group) for names, group in self._groups if names}

    def _options_of(self, group: dict[str, Any]) -> dict[str, bool | int | float | str]:
        options: dict[str, bool | int | float | str] = {}
        for key, value in group.items():
            if key == "betas":
                options["beta1"], options["beta2"] = (float(beta) for beta in value)
            elif isinstance(value, bool):
                options[key] = value
            elif isinstance(value, int | float) or (torch.is_tensor(value) and value.numel() == 1):
                options[key] = float(value)
        return options

    def allocate(self, stored: dict[str, set[str]]) -> None:
        for name, shard in self._shards.items():
            if name not in stored:
                self._optimizer.state.pop(shard, None)
                continue
            state = self._optimizer.state[shard]
            plain = torch.zeros_like(shard.detach().clone())
            for key in sorted(stored[name]):  # a set's order differs from rank to rank
                if key not in state and (key in _MOMENTS.get(self.kind(), (key,))):
                    state[key] = torch.zeros_like(plain)
            if "exp_avg" in state and "step" not in state:
                state["step"] = torch.tensor(0.0, dtype=torch.float32)

    def set_steps(self, steps: dict[str, int]) -> None:
        for name, count in steps.items():
            if name not in self._shards:
                continue
            if count == 0:
                self._optimizer.state.pop(self._shards[name], None)  # torch makes state in the first step
            elif self._state(name):
                self._state(name)["step"] = torch.tensor(float(count), dtype=torch.float32)

    def set_options(self, options: dict[str, dict[str, bool | int | float | str]]) -> None:
        for names, group in self._groups:
            stored = options.get(names[0], {}) if names else {}
            if "betas" in group and "beta1" in stored:
                group["betas"] = (stored["beta1"], stored["beta2"])
            for key, value in stored.items():
                if key in group and not torch.is_tensor(group[key]):
                    group[key] = type(group[key])(value) if group[key] is not None else value
                elif key in group:
                    group[key].fill_(value)


def state_of(optimizer: torch.optim.Optimizer | None, sharded: "Sharded") -> Any:
    """What the extension takes."""
    if optimizer is None:
        return None
    if isinstance(optimizer, _FlatOptimizer):
        return optimizer._inner
    return OptimizerState(optimizer, sharded)


def take_over(optimizer: torch.optim.Optimizer | None) -> None:
    """After a load: param_groups of the library's optimizers show what was loaded."""
    if isinstance(optimizer, _FlatOptimizer):
        optimizer.pull_values()


