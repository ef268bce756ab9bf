# SPDX-License-Identifier: Apache-2.0
"""life.py CASE: one rank, how it ends and what holds what alive. Started by test_errors.py."""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import fsdp
import torch
from models import GPT, Block, rows

torch.set_num_threads(1)
case = sys.argv[1]


def interrupt_me(after):
    threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    return time.time() + after


if case == "alone":
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    at = interrupt_me(1.5)
    try:
        fsdp.init()
    except KeyboardInterrupt:
        print(f"KeyboardInterrupt after {time.time() - at:.2f} s", flush=True)
    os._exit(0)

world = fsdp.init(os.environ["FSDP_TEST_TRANSPORT"])
torch.manual_seed(0)
model = GPT()
x, y = rows()
sharded = fsdp.fully_shard(model, units=[Block], print_promise=False)
optimizer = torch.optim.AdamW(sharded.parameters())


def train(steps=3):
    for _ in range(steps):
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


train()
if case == "globals":
    model.again, model.optimizer, model.world = [sharded], [optimizer], [world]
    model.ln_f.weight.owner = model
elif case == "collect":
    dead = weakref.ref(model)
    del model, sharded, optimizer
    gc.collect()
    print("collected:", dead() is None)
elif case == "raise":
    if world.rank == 1:
        raise ValueError("rank 1 is unhappy")
    train(5)
elif case == "interrupt":
    if world.rank == 1:
        time.sleep(4)
        os._exit(0)
    at = interrupt_me(1)
    try:
        train(2)
        print("trained through")
    except KeyboardInterrupt:
        print(f"KeyboardInterrupt after {time.time() - at:.2f} s", flush=True)
    os._exit(0)
elif case == "own_handler":
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    if world.rank == 1:
        time.sleep(2)
    else:
        interrupt_me(1)
    train(2)
    if world.rank == 0:
        print("handled, and trained through" if seen else "not handled")
print(world.rank, case, "end", flush=True)
