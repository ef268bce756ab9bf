# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the same files as C++, at any number of ranks."""

import json
import os
import subprocess
import sys

import fsdp
import pytest
import torch
from models import GPT, Block, error_of, pair, rows, worst_weight


def step(model, optimizer, count=1):
    x, y = rows()
    for _ in range(count):
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def make_optimizer(sharded, kind):
    if kind == "ours":
        return fsdp.AdamW(sharded, lr=1e-2, weight_decay=0.1)
    if kind == "SGD":
        return torch.optim.SGD(sharded.parameters(), lr=1e-1, momentum=0.9)
    return torch.optim.AdamW(sharded.parameters(), lr=1e-2, weight_decay=0.1)


def saves_and_goes_on(world, directory, saved_by, loaded_by):
    model, sharded, _ = pair(world)
    optimizer = make_optimizer(sharded, saved_by)
    step(model, optimizer, 2)
    fsdp.save(directory, sharded, optimizer, step=2, values={"data": {"epoch": 1, "name": "bible"}})
    other, of_other, _ = pair(world)
    resumed = make_optimizer(of_other, loaded_by)
    resumed.param_groups[0]["lr"] = 0.5
    report = fsdp.load(directory, of_other, resumed)
    rates = [group["lr"] for group in resumed.param_groups]
    step(model, optimizer)
    step(other, resumed)
    state = sharded.state_dict()
    equal = [torch.equal(value, state[name]) for name, value in of_other.state_dict().items()]
    worst = max(
        (value.double() - state[name].double()).abs().max().item() for name, value in of_other.state_dict().items()
    )
    return [all(equal), worst, report.step, report.values["data"], rates, of_other.module.calls.item()]


@pytest.mark.parametrize("saved_by", ["torch", "ours", "SGD"])
def test_a_run_goes_on_bit_for_bit_after_a_load(ranks, tmp_path, saved_by):
    for equal, _, at, values, rates, calls in ranks(
        saves_and_goes_on, directory=str(tmp_path), saved_by=saved_by, loaded_by=saved_by
    ):
        assert equal
        assert at == 2
        assert values == {"epoch": 1, "name": "bible"}
        assert rates == [1e-2 if saved_by != "SGD" else 1e-1], "options of the optimizer are loaded, too"
        assert calls == 3


@pytest.mark.parametrize(("saved_by", "loaded_by"), [("torch", "ours"), ("ours", "torch")])
def test_torchs_adamw_and_the_librarys_read_each_others_state(ranks, tmp_path, saved_by, loaded_by):
    for _, worst, _, _, rates, _ in ranks(
        saves_and_goes_on, directory=str(tmp_path), saved_by=saved_by, loaded_by=loaded_by
    ):
        assert worst < 1e-12
        assert rates == [1e-2]


def saves(world, directory):
    model, sharded, _ = pair(world)
    optimizer = make_optimizer(sharded, "torch")
    step(model, optimizer, 2)
    fsdp.save(directory, sharded, optimizer, step=2)
    step(model, optimizer)
    state = sharded.state_dict()
    return {name: value.double().sum().item() for name, value in state.items()}


def loads(world, directory):
    model, sharded, _ = pair(world)
    optimizer = make_optimizer(sharded, "ours")
    fsdp.load(directory, sharded, optimizer)
    step(model, optimizer)
    return {name: value.double().sum().item() for name, value in sharded.state_dict().items()}


def test_what_two_ranks_saved_three_load(ranks, tmp_path):
    expected = ranks(saves, directory=str(tmp_path))[0]
    for found in ranks(loads, ranks=3, directory=str(tmp_path)):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_program_lists_and_verifies_what_python_saved(ranks, tmp_path):
    ranks(saves, directory=str(tmp_path))
    shown = subprocess.run(
        [sys.executable, "-m", "fsdp", "checkpoint", "ls", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    assert "2" in shown.stdout
    newest = next(path for path in tmp_path.iterdir() if path.name.startswith("step-"))
    verified = subprocess.run(
        [sys.executable, "-m", "fsdp", "checkpoint", "verify", str(newest)], capture_output=True, text=True, timeout=60
    )
    assert verified.returncode == 0, verified.stderr
    index = json.loads((newest / "checkpoint.json").read_text())
    assert "AdamW" in json.dumps(index)


def writes_safetensors(world, path):
    model, sharded, plain = pair(world, dtype=torch.float32)
    fsdp.save_safetensors(sharded, path, {"format": "pt"})
    other = GPT()
    of_other = fsdp.fully_shard(other, units=[Block], world=world, print_promise=False)
    report = fsdp.load_weights(path, of_other)
    return [worst_weight(of_other, plain), report.missing, report.unexpected]


def test_a_safetensors_file_is_read_by_others_and_back(ranks, tmp_path):
    path = str(tmp_path / "model.safetensors")
    for worst, missing, unexpected in ranks(writes_safetensors, path=path):
        assert worst == 0.0
        assert missing == unexpected == []
    from safetensors.torch import load_file

    torch.manual_seed(5)
    expected = GPT().state_dict()
    found = load_file(path)
    assert found.keys() == expected.keys() - {"head.weight"}, "a tied weight is there once"
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def takes_published_weights(world, directory):
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    sharded = fsdp.fully_shard(model, units=["LlamaDecoderLayer"], world=world, print_promise=False)
    tokens = rows()[0]
    with torch.no_grad():
        first = torch.equal(model(tokens).logits, plain(tokens).logits)
        for p in sharded.parameters():
            p.zero_()
    report = fsdp.load_weights(directory, sharded)
    with torch.no_grad():
        again = torch.equal(model(tokens).logits, plain(tokens).logits)
    return [first, again, len(report.missing)]


def test_a_model_from_pretrained_is_sharded_and_its_files_are_read_by_slices(ranks, tmp_path):
    from test_parity import make

    make("llama", torch.float32)[0].save_pretrained(tmp_path)
    for first, again, missing in ranks(takes_published_weights, directory=str(tmp_path)):
        assert first
        assert again
        assert missing == 0


def refuses(world, directory):
    model, sharded, _ = pair(world)
    x, y = rows()
    nothing = error_of(lambda: fsdp.load(directory, sharded))
    saver = fsdp.Saver(directory, sharded)
    with sharded.no_sync():
        model(x, y).backward()
        waiting = error_of(lambda: saver.save(1))
    sharded.zero_grad()
    stranger = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    foreign = error_of(lambda: fsdp.save(directory, sharded, stranger))
    return [nothing.code, waiting.code, str(foreign)]


def test_what_cannot_be_saved_or_loaded_is_said(ranks, tmp_path):
    for nothing, waiting, foreign in ranks(refuses, directory=str(tmp_path)):
        assert nothing == "not found"
        assert waiting == "invalid argument"
        assert "no shard" in foreign


def test_a_run_of_the_cpp_trainer_goes_on_in_python(ranks, tmp_path):
    program = os.environ.get("FSDP_BINARY")
    assert program, "FSDP_BINARY names the program; ctest sets it"
    text = tmp_path / "text.txt"
    text.write_text("in the beginning was the word. " * 400)
    run = tmp_path / "run"
    command = [program, "train", "--data", str(text), "--out", str(tmp_path / "out"), "--save", str(run)]
    command += ["--steps", "4", "--save-every", "2", "--ranks", "2", "--layers", "2", "--width", "32", "--heads", "4"]
    command += ["--seq", "16", "--batch", "2", "--sample", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for missing, unexpected, entries, at, losses in ranks(goes_on, directory=str(run)):
        assert (missing, unexpected) == ([], [])
        assert entries > 0
        assert at == 4
        assert losses[1] < losses[0]


def goes_on(world, directory):
    from transformers import AutoConfig, AutoModelForCausalLM

    newest = sorted(path for path in os.listdir(directory) if path.startswith("step-"))[-1]
    config = AutoConfig.from_pretrained(os.path.join(directory, newest))
    model = AutoModelForCausalLM.from_config(config)
    # The trainer names weights as GPT-2's files do, without the part of the class around it; the head is tied.
    sharded = fsdp.fully_shard(model.transformer, units=["GPT2Block"], world=world, print_promise=False)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-3)
    report = fsdp.load(directory, sharded, optimizer, rng=False)
    tokens = torch.randint(config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(5):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
    return [report.missing, report.unexpected, report.entries, report.step, [losses[0], losses[-1]]]
