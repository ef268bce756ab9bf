# SPDX-License-Identifier: Apache-2.0
"""Norms of gradients over all ranks, of one or several sharded modules."""

from collections.abc import Iterable, Sequence

import torch

from fsdp import _C
from fsdp._sharded import Sharded, shards_of


def grad_norm(
    sharded: Sharded | Iterable[Sharded], norm_type: float = 2.0, whole: Sequence[torch.Tensor] = ()
) -> float:
    """One norm over the gradients of several sharded modules and of `whole`: parameters outside of them that every
    rank holds, with equal gradients. Collective."""
    return _C.grad_norm(shards_of(sharded), norm_type, list(whole))


def clip_grad_norm_(
    sharded: Sharded | Iterable[Sharded],
    max_norm: float,
    norm_type: float = 2.0,
    whole: Sequence[torch.Tensor] = (),
) -> float:
    """Scales all of them so that their norm is at most `max_norm`; returns the norm before. Collective."""
    return _C.clip_grad_norm_(shards_of(sharded), max_norm, norm_type, list(whole))


def clip_grad_value_(sharded: Sharded, max_value: float) -> None:
    """Clamps each element of the gradients. Local."""
    _C.clip_grad_value_(sharded._inner, max_value)
