# SPDX-License-Identifier: Apache-2.0
"""Programs for torch's fully_shard, with one import changed."""

import copy

import fsdp
import pytest
import torch
from fsdp import compat
from models import GPT, error_of, rows, worst_weight


def make():
    torch.manual_seed(5)
    model = GPT().double()
    return model, copy.deepcopy(model)


def trains(world, reshard):
    model, plain = make()
    for block in model.h:
        compat.fully_shard(block, reshard_after_forward=reshard)
    compat.fully_shard(model)
    # Groups by shape and name, over the module's own parameters, as recipes do it.
    pairs = []
    for m in (model, plain):
        decay = [p for n, p in m.named_parameters() if p.dim() >= 2]
        rest = [p for n, p in m.named_parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        pairs.append((m, torch.optim.AdamW(groups, lr=1e-2)))
    x, y = rows()
    norms = []
    for _ in range(3):
        for m, o in pairs:
            m(x, y).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5).item())
            o.step(), o.zero_grad()
    sharded = fsdp.sharded_of(model)
    difference = max(abs(a - b) for a, b in zip(norms[::2], norms[1::2], strict=True))
    kept = {unit.name: unit.stays_gathered for unit in sharded.report().units}
    return [worst_weight(sharded, plain), difference, kept]


@pytest.mark.parametrize("reshard", [None, True, False])
def test_a_program_for_torchs_fully_shard_changes_one_import(ranks, reshard):
    for worst, difference, kept in ranks(trains, reshard=reshard):
        assert worst < 1e-12
        assert difference < 1e-13
        assert kept == {"(root)": True, "h.0": reshard is False, "h.1": reshard is False, "h.2": reshard is False}


def follows_policies(world):
    torch.manual_seed(5)
    model = GPT()
    policy = compat.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.h:
        compat.fully_shard(block, mp_policy=policy)
    compat.fully_shard(model, mp_policy=policy, ignored_params={model.wpe.weight})
    x, y = rows()
    model(x, y).backward()
    sharded = fsdp.sharded_of(model)
    names = [name for name, _ in sharded.named_parameters()]
    return [str(model.h[0].out.weight.dtype), str(sharded.parameters()[0].dtype), "wpe.weight" in names]


def test_policies_are_followed(ranks):
    for low, full, has_ignored in ranks(follows_policies):
        assert low == "torch.bfloat16"
        assert full == "torch.float32"
        assert not has_ignored


def refuses(world):
    model, _ = make()
    return [
        str(error_of(lambda: compat.fully_shard(model, reshard_after_forward=2))),
        str(error_of(lambda: compat.fully_shard(model, shard_placement_fn=lambda p: None))),
    ]


def test_what_is_not_there_says_what_is(ranks):
    for number, placement in ranks(refuses):
        assert "secondary_shard" in number
        assert "flat buffer" in placement
