# SPDX-License-Identifier: Apache-2.0
"""A sharded model under Hugging Face's accelerate:

    accelerator = Accelerator(cpu=True)
    sharded = fsdp.accelerate.prepare_model(accelerator, model, units=[Block])     # was: accelerator.prepare(model)
    optimizer = torch.optim.AdamW(sharded.parameters())
    optimizer, loader, scheduler = accelerator.prepare(optimizer, loader, scheduler)
    with accelerator.accumulate(model):
        accelerator.backward(model(x, y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

accelerate then leaves the model alone: no DistributedDataParallel is put around it.
"""

from typing import TYPE_CHECKING, Any

import torch

from fsdp import compat
from fsdp._sharded import Sharded, fully_shard
from fsdp._world import current_world

if TYPE_CHECKING:
    from accelerate import Accelerator


def prepare_model(accelerator: "Accelerator", model: torch.nn.Module, **options: Any) -> Sharded:
    """Shards `model` with the options of fsdp.fully_shard() over the ranks of `accelerator`, and has its calls
    (accumulate, no_sync, clip_grad_norm_) mean the sharded model. Collective."""
    if accelerator.num_processes > 1 and accelerator.num_processes != current_world().size:
        raise ValueError(
            f"the accelerator has {accelerator.num_processes} processes and fsdp.init() joined {current_world().size}"
        )
    sharded = fully_shard(model, **options)
    leave_alone(accelerator)
    accelerator.prepare_model(model)
    stand_in(sharded)
    return sharded


def leave_alone(accelerator: "Accelerator") -> None:
    """From here on accelerator.prepare() of a model puts nothing around it."""
    prepare = accelerator.prepare_model

    def prepare_without_wrapping(model: torch.nn.Module, device_placement: Any = None, **_: Any) -> torch.nn.Module:
        return prepare(model, device_placement=False, evaluation_mode=True)

    accelerator.prepare_model = prepare_without_wrapping


def stand_in(sharded: Sharded) -> None:
    """The module has no_sync(), as DistributedDataParallel does; clipping its parameters clips the shards by the norm
    over all ranks; optimizers that are given its parameters get the shards."""
    object.__setattr__(sharded.module, "no_sync", sharded.no_sync)
    compat.follow(sharded)
