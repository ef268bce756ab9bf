# SPDX-License-Identifier: Apache-2.0
"""The GPT-2 of src/models in PyTorch: the same operators in the same order, the same names."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    width: int
    layers: int
    heads: int
    context: int
    vocab: int = 256


class Projection(nn.Module):
    """y = x W + b with W of shape [in, out], as GPT-2 stores its weights."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return rows.view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn = Projection(config.width, 3 * config.width)
        self.c_proj = Projection(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.c_attn(x).view(batch, time, 3, self.heads, width // self.heads).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in qkv)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return result


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = Projection(config.width, 4 * config.width)
        self.c_proj = Projection(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))
        return result


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = x + self.attn(self.ln_1(x))
        result: Tensor = attended + self.mlp(self.ln_2(attended))
        return result


class GPT(nn.Module):
    """Weights are left undefined: they come from the file that all systems read."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.vocab = config.vocab

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, self.vocab), targets.reshape(-1))
