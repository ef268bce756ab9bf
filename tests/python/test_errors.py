# SPDX-License-Identifier: Apache-2.0
"""Errors: as fsdp.Error with a code wherever they come out, on every rank, and Ctrl-C."""

import time

import fsdp
import pytest
import torch
from gang import run_processes
from models import GPT, Block, error_of, pair, rows


def refusals(world):
    model, sharded, _ = pair(world)
    x, y = rows()

    def write():
        with torch.no_grad():
            model.ln_f.weight.mul_(2)

    out_of_an_operator = error_of(write)
    model(x, y).backward()
    out_of_a_call = error_of(lambda: sharded.set_gradient_divisor(-1.0))
    of_the_grad = error_of(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    of_shards = error_of(lambda: torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0))
    of_a_scaler = error_of(
        lambda: torch._amp_foreach_non_finite_check_and_unscale_(
            [p.grad for p in sharded.parameters()], torch.zeros(1), torch.ones(1)
        )
    )
    found = [out_of_an_operator, out_of_a_call, of_the_grad, of_shards, of_a_scaler]
    return [[type(error).__name__, error.code, str(error)] for error in found]


def test_what_operators_and_calls_throw_is_an_error_with_its_code(ranks):
    for found in ranks(refusals):
        for name, code, text in found:
            assert (name, code) == ("Error", "invalid argument"), text
            assert text.startswith("[invalid argument]")
        assert "full_parameters" in found[0][2]


def wrong_calls(world):
    texts = []
    for options in (
        {"units": ["Blokc"]},
        {"units": [torch.nn.LSTM]},
        {"units": ["h.9"]},
        {"units": [Block], "strategy": "full"},
        {"units": [Block], "store": "slot"},
        {"units": [Block], "ignore": ["nothing.*"]},
        {"units": [Block], "mesh": {"replicate": 3, "shard": 5}, "strategy": "hybrid"},
        {"units": [Block], "gradient_divisor": "average"},
    ):
        error = error_of(lambda o=options: fsdp.fully_shard(GPT(), world=world, print_promise=False, **o))
        texts.append(f"{type(error).__name__}: {error}")
    model, _, _ = pair(world)
    texts.append(str(error_of(lambda: fsdp.fully_shard(model, units=[Block], world=world))))
    limited = torch.nn.Sequential(torch.nn.Embedding(4, 4, max_norm=1.0))
    texts.append(str(error_of(lambda: fsdp.fully_shard(limited, world=world))))
    return texts


def test_wrong_options_are_named_with_what_was_meant(ranks):
    for texts in ranks(wrong_calls):
        for text, wanted in zip(
            texts,
            (
                "near it: Block",
                "no part of type LSTM",
                "h.9",
                'strategy is "full", must be one of "full_shard"',
                'store is "slot", must be one of',
                "nothing.*",
                "15",
                'must be "mean", "sum" or a number',
                "is sharded already",
                "max_norm",
            ),
            strict=True,
        ):
            assert wanted in text


def on_one_rank_only(world):
    model, _, _ = pair(world)
    x, _ = rows()
    alone = error_of(lambda: model.h[1].ln1.weight.sum()) if world.rank == 0 else error_of(lambda: model(x))
    found = [type(alone).__name__, alone.code, str(alone)]
    world.recover()
    with torch.no_grad():
        model(x)
    return found


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_weight_read_on_one_rank_only_is_an_error_on_both_and_heals(ranks, transport):
    for name, code, text in ranks(on_one_rank_only, transport=transport):
        assert (name, code) == ("Error", "mismatch")
        assert "rank" in text


def in_hooks(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    handle = model.h[1].ln1.weight.register_hook(lambda g: 1 / 0)
    error = error_of(lambda: model(x, y).backward())
    handle.remove()
    sharded.zero_grad()
    model(x, y).backward()
    plain(x, y).backward()
    from models import worst_gradient

    return [type(error).__name__, worst_gradient(sharded, plain)]


def test_an_exception_in_a_hook_leaves_backward_unchanged_and_the_next_is_right(ranks):
    for name, worst in ranks(in_hooks):
        assert name == "ZeroDivisionError"
        assert worst < 1e-13


def changes_after(world):
    x, _ = rows()
    texts = []
    model, _, _ = pair(world)
    model.ln_f.weight = torch.nn.Parameter(torch.ones(32, dtype=torch.float64))
    texts.append(str(error_of(lambda: model(x))))
    model, _, _ = pair(world)
    model.extra = torch.nn.Linear(2, 2)
    texts.append(str(error_of(lambda: model(x))))
    model, _, _ = pair(world)
    del model.h[2]
    texts.append(str(error_of(lambda: model(x))))
    model, _, _ = pair(world)
    model.drop = torch.nn.Dropout()  # nothing to shard in it
    model.calls = model.calls + 5  # the buffer that is saved takes the values
    before = model._buffers["calls"]
    with torch.no_grad():
        model(x)
    texts.append(f"{model.calls.item()} {before is model._buffers['calls']}")
    return texts


def test_fault140_a_module_that_changes_after_it_was_sharded_is_noticed(ranks):
    for replaced, registered, removed, fine in ranks(changes_after):
        assert 'parameter "ln_f.weight" was replaced' in replaced
        assert 'module "extra" was registered' in registered
        assert 'module "h.2" was removed' in removed
        assert fine.startswith("6 ")


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_python_exception_of_one_rank_is_told_to_the_others_at_once(transport):
    start = time.time()
    (code0, said0), (code1, said1) = run_processes("life.py", arguments=["raise"], FSDP_TEST_TRANSPORT=transport)
    assert code0 == 1
    assert code1 == 1
    assert "ValueError: rank 1 is unhappy" in said0
    assert "peer failed" in said0
    assert time.time() - start < 25


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_ctrl_c_ends_a_wait_within_a_second(transport):
    (code0, said0), _ = run_processes("life.py", arguments=["interrupt"], FSDP_TEST_TRANSPORT=transport)
    assert code0 == 0, said0
    seconds = float(said0.split("KeyboardInterrupt after ")[1].split(" s")[0])
    assert seconds < 1.0, said0


def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_come():
    (code, said), *_ = run_processes("life.py", ranks=1, arguments=["alone"], FSDP_SETUP_TIMEOUT="20")
    assert code == 0, said
    assert float(said.split("KeyboardInterrupt after ")[1].split(" s")[0]) < 1.0


def test_a_handler_of_the_programs_own_is_left_alone():
    (code0, said0), _ = run_processes("life.py", arguments=["own_handler"])
    assert code0 == 0, said0
    assert "handled, and trained through" in said0


def test_processes_end_in_good_order_with_everything_alive():
    for code, said in run_processes("life.py", arguments=["globals"]):
        assert code == 0, said
        assert "end" in said


def test_a_module_and_its_other_half_are_collected():
    for code, said in run_processes("life.py", arguments=["collect"]):
        assert code == 0, said
        assert "collected: True" in said
