# SPDX-License-Identifier: Apache-2.0
"""One rank of a training benchmark by another system; the command line and the phases are those of
bench/training/train.cpp. --option picks among a system's settings; the defaults are the best that
were found (docs/explanation/performance.md names them)."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import GPT, Config
from safetensors.torch import load_file
from torch import Tensor, nn

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
Step = Callable[[Tensor, Tensor], float]


def adamw(parameters: list[Tensor]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def ordinary_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def plain(model: GPT, rank: int, ranks: int) -> Step:
    """No library and no communication; the optimizer on this rank's part of each weight."""
    parameters = list(model.parameters())

    def part(whole: Tensor) -> Tensor:
        each = -(-whole.numel() // ranks)
        return whole.detach().reshape(-1)[rank * each : (rank + 1) * each]

    parts = [part(parameter).requires_grad_() for parameter in parameters]
    optimizer = adamw(parts)

    def step(x: Tensor, y: Tensor) -> float:
        for tensor in (*parts, *parameters):
            tensor.grad = None
        loss = model(x, y)
        loss.backward()
        for mine, parameter in zip(parts, parameters, strict=True):
            assert parameter.grad is not None
            mine.grad = part(parameter.grad)
        optimizer.step()
        return float(loss.item())

    return step


def fsdp2(model: GPT, options: dict[str, str]) -> Step:
    from torch.distributed.fsdp import fully_shard

    blocks_reshard = options.get("reshard", "yes") == "yes"
    for block in model.h:
        fully_shard(block, reshard_after_forward=blocks_reshard)
    fully_shard(model, reshard_after_forward=options.get("reshard_root", "no") == "yes")
    return ordinary_step(model, adamw(list(model.parameters())))


def ours(model: GPT, options: dict[str, str]) -> Step:
    """The Python package of this repository; see ./dev bench python."""
    import fsdp
    from gpt import Block

    sharded = fsdp.fully_shard(model, units=[Block], print_promise=False)
    if options.get("optimizer", "ours") == "torch":
        return ordinary_step(model, adamw(sharded.parameters()))
    return ordinary_step(model, fsdp.AdamW(sharded, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY))


def ddp(model: GPT, options: dict[str, str]) -> Step:
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(
        model,
        bucket_cap_mb=float(options.get("bucket_mb", "25")),
        gradient_as_bucket_view=True,
        static_graph=options.get("static", "no") == "yes",
    )
    return ordinary_step(wrapped, adamw(list(model.parameters())))


def zero3(model: GPT, options: dict[str, str], batch: int) -> Step:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": options.get("overlap", "yes") == "yes",
            "contiguous_gradients": options.get("contiguous", "yes") == "yes",
            "reduce_bucket_size": int(float(options.get("reduce", "5e8"))),
            "stage3_prefetch_bucket_size": int(float(options.get("prefetch", "5e7"))),
            "stage3_max_live_parameters": int(float(options.get("live", "1e9"))),
            "stage3_param_persistence_threshold": int(float(options.get("persist", "1e5"))),
        },
    }
    engine = deepspeed.initialize(
        model=model, optimizer=adamw(list(model.parameters())), config=config
    )[0]

    def step(x: Tensor, y: Tensor) -> float:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        return float(loss.item())

    return step


def end_phase(**line: object) -> None:
    """See bench/training/protocol.hpp."""
    print(json.dumps(line), flush=True)
    sys.stdin.readline()


def times_ms(count: int, step: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def warm_libraries() -> None:
    model = GPT(Config(width=16, layers=2, heads=2, context=8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tokens = torch.zeros(1, 8, dtype=torch.long)
    ordinary_step(model, adamw(list(model.parameters())))(tokens, tokens)


def read_model(config: Config, path: Path) -> GPT:
    model = GPT(config)
    model.load_state_dict(load_file(path))
    return model


def read_batch(path: Path, config: Config, rank: int, rows: int) -> tuple[Tensor, Tensor]:
    data = bytearray(path.read_bytes())
    tokens = torch.frombuffer(data, dtype=torch.uint8).view(-1, config.context + 1).long()
    mine = tokens[rank * rows : (rank + 1) * rows]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def build(system: str, model: GPT, options: dict[str, str], batch: int) -> Step:
    if system == "plain":
        return plain(model, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if system == "zero3":
        return zero3(model, options, batch)
    return {"fsdp2": fsdp2, "ddp": ddp, "ours": ours}[system](model, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=["plain", "fsdp2", "ddp", "zero3", "ours"], required=True)
    for name in ("width", "layers", "heads", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, default in (("warmup", 2), ("steps", 5), ("memory-steps", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    options = dict(text.split("=", 1) for text in arguments.option)
    config = Config(arguments.width, arguments.layers, arguments.heads, arguments.sequence)
    torch.set_num_threads(1)
    if arguments.system == "zero3":
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    elif arguments.system == "ours":
        import fsdp

        fsdp.init(options.get("transport", "auto"))
    elif arguments.system != "plain":
        dist.init_process_group("gloo")
    warm_libraries()
    end_phase(phase="init")

    model = read_model(config, arguments.weights)
    x, y = read_batch(arguments.tokens, config, int(os.environ["RANK"]), arguments.batch)
    train = build(arguments.system, model, options, arguments.batch)
    losses: list[float] = []

    def step() -> None:
        losses.append(train(x, y))

    times_ms(arguments.warmup, step)
    end_phase(phase="warm")
    cpu_begin = time.process_time()
    times = times_ms(arguments.steps, step)
    cpu_ms = 1e3 * (time.process_time() - cpu_begin) / arguments.steps
    end_phase(phase="timed", step_ms=times, cpu_ms=cpu_ms, loss=losses[-1])
    times_ms(arguments.memory_steps, step)
    end_phase(phase="done")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
