# SPDX-License-Identifier: Apache-2.0
"""Steps of PyTorch's FSDP2 on one rank, for tools/gpu_check.sh: the model, the sizes and the line of
JSON are those of bench/device/device_step.cpp."""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench" / "peers"))
from gpt import GPT, Config  # noqa: E402


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    for name, value in (
        ("layers", 4),
        ("width", 128),
        ("heads", 4),
        ("seq", 128),
        ("vocab", 256),
        ("batch", 1),
        ("warmup", 2),
        ("steps", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    kind = torch.device(options.device).type
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=0, world_size=1)
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    config = Config(
        width=options.width,
        layers=options.layers,
        heads=options.heads,
        context=options.seq,
        vocab=options.vocab,
    )
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    model = model.to(device, getattr(torch, options.dtype))
    mesh = dist.init_device_mesh(kind, (1,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    x = torch.randint(options.vocab, (options.batch, options.seq)).to(device)
    y = x.roll(-1, 1).contiguous()
    losses, times = [], []
    for step in range(options.warmup + options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
        if step >= options.warmup:
            times.append(1e3 * (time.perf_counter() - begin))
    print(
        json.dumps(
            {
                "system": "fsdp2",
                "device": str(device),
                "parameters": sum(p.numel() for p in model.parameters()),
                "losses": losses,
                "step_ms": times,
            }
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
