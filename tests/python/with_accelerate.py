# SPDX-License-Identifier: Apache-2.0
"""with_accelerate.py plain|sharded: a loop of accelerate. Started by test_trainers.py."""

import json
import sys

import torch
from accelerate import Accelerator
from models import GPT, VOCAB, Block

case = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT().double()
if case == "plain":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
else:
    import fsdp.accelerate

    fsdp.accelerate.prepare_model(accelerator, model, units=[Block], print_promise=False)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-2))
generator = torch.Generator().manual_seed(1)
losses = []
for _ in range(6):
    tokens = torch.randint(VOCAB, (4, 17), generator=generator)
    each = 4 // accelerator.num_processes
    mine = tokens[accelerator.process_index * each : (accelerator.process_index + 1) * each]
    with accelerator.accumulate(model):
        loss = model(mine[:, :-1], mine[:, 1:])
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
print("LOSSES", json.dumps(losses), flush=True)
