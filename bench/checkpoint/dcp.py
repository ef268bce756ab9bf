# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on the same tensors: weights and two moments, each sharded on its first
dimension as FSDP2 does. Usage: dcp.py SHAPES.json DIRECTORY, once a rank."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def slowest(begin: float) -> float:
    """Seconds since `begin` on the slowest rank."""
    value = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def evict(directory: str) -> None:
    """What has been read must come from the disk again."""
    for name in os.listdir(directory):
        file = os.open(os.path.join(directory, name), os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    dist.barrier()
    begin = time.perf_counter()
    result = action()
    return slowest(begin), result


def main() -> None:
    shapes, directory = sys.argv[1:3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with open(shapes, encoding="utf-8") as file:
        sizes = json.load(file)
    torch.manual_seed(1)
    state = {
        f"{kind}.{name}": distribute_tensor(torch.randn(shape), mesh, [Shard(0)])
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for name, shape in sizes.items()
    }
    save_s, _ = timed(lambda: dcp.save(state, checkpoint_id=directory + "/1"))
    stall_s, pending = timed(lambda: dcp.async_save(state, checkpoint_id=directory + "/2"))
    pending.result()
    dist.barrier()
    if dist.get_rank() == 0:
        evict(directory + "/2")
    load_s, _ = timed(lambda: dcp.load(state, checkpoint_id=directory + "/2"))
    load_warm_s, _ = timed(lambda: dcp.load(state, checkpoint_id=directory + "/2"))
    if dist.get_rank() == 0:
        count = sum(tensor.numel() for tensor in state.values())
        print(
            json.dumps(
                {
                    "system": "DCP " + torch.__version__,
                    "bytes": 4 * count,
                    "save_s": save_s,
                    "stall_s": stall_s,
                    "load_s": load_s,
                    "load_warm_s": load_warm_s,
                }
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
