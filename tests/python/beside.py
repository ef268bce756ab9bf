# SPDX-License-Identifier: Apache-2.0
"""beside.py CASE [PATH]: trains, with a process group of torch beside the library. Started by test_world.py."""

import os
import sys

import fsdp
import torch
import torch.distributed as dist
from models import GPT, Block, rows

torch.set_num_threads(1)
case = sys.argv[1]
rank = int(os.environ.get("RANK", "0"))
if case == "torch_before":
    dist.init_process_group("gloo")
elif case == "torch_file":
    # As a program that spawns its processes does it: no variables.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
world = fsdp.init()
assert world.rank == rank
if case == "torch_after":
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = GPT()
sharded = fsdp.fully_shard(model, units=[Block], print_promise=False)
optimizer = torch.optim.AdamW(sharded.parameters())
x, y = rows(rank)
for _ in range(2):
    model(x, y).backward()
    if dist.is_initialized():
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)  # between backward and step
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized():
    print("sum of all ranks", total.item(), flush=True)
print(world.rank, "of", world.size, "trained", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
if case == "torch_after":
    # Open: about one in thirty such processes ends with "terminate called without an active exception" while Python
    # takes itself down, after all of this. What is tested here is that torch's group finds its port.
    sys.stdout.flush()
    os._exit(0)
