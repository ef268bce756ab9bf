# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer over a sharded model. A script changes two lines:

    from fsdp.trainer import Trainer                              # was: from transformers import Trainer
    trainer = Trainer(model=model, args=args, train_dataset=data, units=["LlamaDecoderLayer"])
    trainer.train()

and is started by torchrun or `fsdp run`, on the CPU with TrainingArguments(use_cpu=True).
"""

import os
from typing import Any

import torch

try:
    import transformers
except ImportError as error:
    raise ImportError("fsdp.trainer needs transformers and accelerate: pip install transformers accelerate") from error

from fsdp._checkpoint import load, save
from fsdp._sharded import Sharded, fully_shard, sharded_of
from fsdp._world import current_world
from fsdp.accelerate import leave_alone, stand_in

# The checkpoint of the optimizer and the weights, beside what transformers writes.
_FOLDER = "fsdp"


class Trainer(transformers.Trainer):
    """As transformers.Trainer. `units` and `sharding` (the other options of fsdp.fully_shard()) say how to shard; it
    happens when the optimizer is made. save_model() writes what from_pretrained() reads; checkpoints have the shards of
    weights and optimizer beside that, and go on at another number of ranks."""

    def __init__(self, *arguments: Any, units: Any = (), sharding: dict[str, Any] | None = None, **more: Any) -> None:
        self._units = units
        self._sharding = {"print_promise": False, **(sharding or {})}
        super().__init__(*arguments, **more)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        leave_alone(self.accelerator)

    @property
    def sharded(self) -> Sharded:
        """The model's other half."""
        found = sharded_of(self.model)
        if found is None:
            world = current_world()
            if world.size != self.args.world_size:
                raise ValueError(
                    f"the trainer has {self.args.world_size} processes and fsdp.init() joined {world.size}: start it "
                    "by torchrun or `fsdp run`"
                )
            found = fully_shard(self.model, units=self._units, world=world, **self._sharding)
            stand_in(found)
        return found

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        _ = self.sharded
        return super().create_optimizer()

    def _clip_grad_norm(self, model: torch.nn.Module) -> float:
        return self.sharded.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: float | None = None) -> float:
        return self.sharded.grad_norm() if grad_norm is None else grad_norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if sharded_of(self.model) is None:
            super().save_model(output_dir, _internal_call)
            return
        state = self.sharded.state_dict()
        if self.args.should_save:
            self._save(output_dir or self.args.output_dir, state_dict=state)
        self.sharded.world.barrier()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save(os.path.join(output_dir, _FOLDER), self.sharded, _plain(self.optimizer), step=self.state.global_step)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, "scheduler.pt"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        load(os.path.join(checkpoint, _FOLDER), self.sharded, _plain(self.optimizer), rng=False)
        states = torch.load(os.path.join(checkpoint, "scheduler.pt"), map_location="cpu", weights_only=True)
        self.lr_scheduler.load_state_dict(states)


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Without what accelerate puts around it."""
    return getattr(optimizer, "optimizer", optimizer)


__all__ = ["Trainer"]
