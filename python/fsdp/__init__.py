# SPDX-License-Identifier: Apache-2.0
"""Fully Sharded Data Parallel training for unchanged Python modules, on the C++ engine of fsdp.

    world = fsdp.init()                                  # torchrun, `fsdp run`, mpirun, srun, or one process
    sharded = fsdp.fully_shard(model, units=[Block])     # the model stays what it is
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=3e-4)
    model(x, y).backward()
    sharded.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()

Weights are divided over all ranks, gathered when an operator takes them, and freed right after. Whoever uses
a weight gathers it, so all ranks must use it: what one rank does alone throws fsdp.Error on all.
"""

from fsdp import _load

_load.check_torch()

from fsdp._C import (  # noqa: E402
    Counters,
    Error,
    LoadReport,
    NamedShard,
    Report,
    StepAgreement,
    UnitInfo,
    World,
    __version__,
)
from fsdp._checkpoint import Saver, load, load_weights, save, save_safetensors  # noqa: E402
from fsdp._clip import clip_grad_norm_, clip_grad_value_, grad_norm  # noqa: E402
from fsdp._mesh import DeviceMesh  # noqa: E402
from fsdp._options import MixedPrecision, UnitRule, decay_rule  # noqa: E402
from fsdp._sharded import Sharded, fully_shard, is_sharded, sharded_of  # noqa: E402
from fsdp._world import agree_on_step, count_over_ranks, init, mean_over_ranks  # noqa: E402
from fsdp.optim import SGD, AdamW, Ema, Lion, LossScaler, Muon  # noqa: E402

__all__ = [
    "AdamW",
    "Counters",
    "DeviceMesh",
    "Ema",
    "Error",
    "Lion",
    "LoadReport",
    "LossScaler",
    "MixedPrecision",
    "Muon",
    "NamedShard",
    "Report",
    "SGD",
    "Saver",
    "Sharded",
    "StepAgreement",
    "UnitInfo",
    "UnitRule",
    "World",
    "__version__",
    "agree_on_step",
    "clip_grad_norm_",
    "clip_grad_value_",
    "count_over_ranks",
    "decay_rule",
    "fully_shard",
    "grad_norm",
    "init",
    "is_sharded",
    "load",
    "load_weights",
    "mean_over_ranks",
    "save",
    "save_safetensors",
    "sharded_of",
]
