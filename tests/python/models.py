# SPDX-License-Identifier: Apache-2.0
"""Models that tests shard, and what to compare them by."""

import copy

import torch
from torch import nn

VOCAB = 97


class Block(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, time, width = x.shape
        q, k, v = (
            t.view(rows, time, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(width, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, time, width))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """With a tied head and a buffer."""

    def __init__(self, layers=3, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, y=None, run=lambda block, h: block(h)):
        if self.training:
            self.calls += 1
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = run(block, h)
        logits = self.head(self.ln_f(h))
        return logits if y is None else nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def rows(rank=None, count=2, time=16):
    """Token rows and their targets: the same for all ranks, or a rank's own."""
    generator = torch.Generator().manual_seed(9 if rank is None else 10 + rank)
    tokens = torch.randint(VOCAB, (count, time + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def pair(world, dtype=torch.float64, **options):
    """A sharded model, its other half, and a whole copy."""
    import fsdp

    torch.manual_seed(5)
    model = GPT().to(dtype)
    plain = copy.deepcopy(model)
    options = {"units": [Block], "print_promise": False, "world": world, **options}
    return model, fsdp.fully_shard(model, **options), plain


def worst_gradient(sharded, plain, scale=1.0):
    """The largest difference of this rank's parts from the same parts of a whole model's gradients."""
    theirs = dict(plain.named_parameters())
    worst = 0.0
    for shard in sharded.named_shards():
        if shard.shard.numel() == 0:
            continue
        grad = theirs[shard.name].grad
        flat = grad.flatten()[shard.begin : shard.begin + shard.shard.numel()]
        worst = max(worst, (shard.shard.grad.clone() - scale * flat).abs().max().item())
    return worst


def worst_weight(sharded, plain):
    """The same of weights, over the whole model."""
    theirs = dict(plain.named_parameters())
    with sharded.full_parameters():
        return max((p.detach() - theirs[n].detach()).abs().max().item() for n, p in sharded.module.named_parameters())


def error_of(action):
    """The exception that it raises."""
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
