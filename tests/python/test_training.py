# SPDX-License-Identifier: Apache-2.0
"""What a training program does with the handle that fully_shard() returns."""

import copy

import fsdp
import pytest
import torch
from models import GPT, VOCAB, Block, error_of, pair, rows, worst_gradient, worst_weight


def accumulates(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    with sharded.no_sync():
        model(x, y).backward()
        first = [p.grad is None for p in sharded.parameters()]
    model(x, y).backward()
    plain(x, y).backward()
    return all(first), worst_gradient(sharded, plain, scale=2.0)


def test_no_sync_adds_up_and_reduces_once(ranks):
    for waits, worst in ranks(accumulates):
        assert waits
        assert worst < 1e-13


def makes_groups(world):
    model, sharded, plain = pair(world)
    decay, rest = sharded.param_groups(fsdp.decay_rule)
    x, y = rows()
    of_plain = [p for n, p in plain.named_parameters() if p.dim() >= 2 and not n.endswith("bias")]
    others = [p for n, p in plain.named_parameters() if p.dim() < 2 or n.endswith("bias")]
    theirs = torch.optim.AdamW(
        [{"params": of_plain, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2
    )
    groups = [{**decay, "weight_decay": 0.1}, {**rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    their_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, 4)
    for _ in range(3):
        for m, o, s in ((model, optimizer, schedule), (plain, theirs, their_schedule)):
            m(x, y).backward()
            o.step(), s.step(), o.zero_grad()
    return [len(decay["params"]), len(of_plain), worst_weight(sharded, plain)]


def test_groups_by_shape_and_name_with_a_schedule_train_as_whole_ones(ranks):
    for ours, theirs, worst in ranks(makes_groups):
        assert ours == theirs
        assert worst < 1e-12


def schedules_own(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    decay, rest = sharded.param_groups()
    ours = fsdp.AdamW(sharded, [{**decay, "weight_decay": 0.1}, {**rest, "weight_decay": 0.0}], lr=1e-2)
    by_name = dict(plain.named_parameters())
    decayed = [p for n, p in by_name.items() if p.dim() >= 2]
    theirs = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.1},
            {"params": [p for p in by_name.values() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    pairs = [(model, ours), (plain, theirs)]
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for _, o in pairs]
    for _ in range(3):
        for (m, o), s in zip(pairs, schedules, strict=True):
            m(x, y).backward()
            o.step(), s.step(), o.zero_grad()
    return [ours.param_groups[0]["lr"], worst_weight(sharded, plain), str(error_of(ours.state_dict))]


def test_the_librarys_optimizers_take_groups_and_torchs_schedulers(ranks):
    for rate, worst, text in ranks(schedules_own):
        assert rate == 1e-2 / 8
        assert worst < 1e-10
        assert "fsdp.save(path, sharded, optimizer)" in text


def trains_by(world, kind):
    model, sharded, _ = pair(world, dtype=torch.float32)
    optimizer = {
        "SGD": lambda: fsdp.SGD(sharded, lr=0.1, momentum=0.9),
        "Lion": lambda: fsdp.Lion(sharded, lr=1e-3),
        "Muon": lambda: fsdp.Muon(sharded, lr=0.02, by_adamw=["wte.*", "wpe.*"], adamw={"lr": 1e-3}),
    }[kind]()
    x, y = rows()
    losses = []
    for _ in range(6):
        loss = model(x, y)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
    moments = sharded.report().live.get("optimizer moments", 0)
    return losses, moments


@pytest.mark.parametrize("kind", ["SGD", "Lion", "Muon"])
def test_other_optimizers_of_the_library_train(ranks, kind):
    for losses, moments in ranks(trains_by, kind=kind):
        assert losses[-1] < losses[0] - 0.2
        assert moments > 0, "what they hold is in the ledger"


def reports(world):
    model, sharded, _ = pair(world)
    x, y = rows()
    before = sharded.report()
    model(x, y).backward()
    after = sharded.report()
    sharded.reset_counters()
    return [
        [unit.name for unit in before.units],
        before.counters.gathers,
        after.counters.gathers,
        after.counters.reduce_scatters,
        sharded.report().counters.gathers,
        sum(after.promise.values()) >= after.peak_total > 0,
        "h.0" in str(after),
        repr(sharded),
    ]


def test_the_report_says_units_traffic_and_memory(ranks):
    for names, none, gathers, reductions, reset, is_kept, is_shown, text in ranks(reports):
        assert names == ["(root)", "h.0", "h.1", "h.2"]
        assert (none, gathers, reductions, reset) == (0, 8, 4, 0)
        assert is_kept
        assert is_shown
        assert text == "<fsdp.Sharded GPT: 4 units over 2 ranks>"


def scope(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    with sharded.full_parameters():
        equal = all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
        array = model.ln_f.weight.detach().numpy()[0].item()
    with sharded.full_parameters(writeback=True), torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    with torch.no_grad():
        for p in plain.parameters():
            p.mul_(2)
        return [equal, array, torch.equal(model(x), plain(x))]


def test_whole_weights_in_a_scope_can_be_read_and_edited(ranks):
    assert ranks(scope) == [[True, 1.0, True]] * 2


def hooks(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    names = []

    def halve(shard, grad):
        names.append(shard.name)
        grad.mul_(0.5)

    handle = sharded.on_reduced(halve)
    model(x, y).backward()
    plain(x, y).backward()
    first = worst_gradient(sharded, plain, scale=0.5)
    handle.remove()
    sharded.zero_grad()
    model(x, y).backward()
    return [len(names), len(sharded.parameters()), first, worst_gradient(sharded, plain)]


def test_a_hook_sees_reduced_gradients_and_changes_them(ranks):
    for called, parameters, halved, plain in ranks(hooks):
        assert called == parameters
        assert halved < 1e-13
        assert plain < 1e-13


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.branch = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


def takes_part(world):
    torch.manual_seed(3)
    model = Branches().double()
    plain = copy.deepcopy(model)
    sharded = fsdp.fully_shard(
        model,
        units=["stem", "branch"],
        world=world,
        rules=[fsdp.UnitRule(units="branch", optional=True)],
        print_promise=False,
    )
    x = torch.ones(2, 4, dtype=torch.float64)
    h = model.stem(x)
    loss = model.branch(h).sum() if world.rank == 0 else h.sum() + sharded.participate(model.branch)
    loss.backward()
    h = plain.stem(x)
    ((plain.branch(h).sum() + h.sum()) / 2).backward()
    return worst_gradient(sharded, plain)


def test_a_rank_takes_part_in_a_branch_that_it_leaves_out(ranks):
    assert max(ranks(takes_part)) < 1e-13


def in_low_precision(world):
    model, sharded, plain = pair(
        world, dtype=torch.float32, precision=fsdp.MixedPrecision(param=torch.bfloat16, full_precision="LayerNorm")
    )
    x, y = rows()
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(x, y)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
    return [losses, plain(x, y).item(), str(sharded.parameters()[0].dtype), str(model.h[0].out.weight.dtype)]


def test_bfloat16_weights_with_float32_shards_train(ranks):
    for losses, plain, shards, weights in ranks(in_low_precision):
        assert abs(losses[0] - plain) < 0.05
        assert losses[-1] < losses[0] - 0.3
        assert shards == "torch.float32"
        assert weights == "torch.bfloat16"


def scales(world):
    model, sharded, _ = pair(world, dtype=torch.float32, precision=torch.float16)
    scaler = fsdp.LossScaler(sharded, init_scale=1024.0, growth_interval=2)
    optimizer = fsdp.AdamW(sharded, lr=1e-2)
    x, y = rows()
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = model(x, y).float()
        scaler.scale(loss * (float("inf") if step == 2 and world.rank == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses[0], losses[-1], scaler.get_scale(), optimizer._inner.steps()


def test_the_loss_scaler_skips_a_step_on_all_ranks_with_gradscalers_calls(ranks):
    for first, last, scale, steps in ranks(scales):
        assert last < first
        assert steps == 5, "one of six was skipped on both"
        assert scale == 2048.0, "grown after two steps, halved once, grown after two"


def averages(world):
    model, sharded, plain = pair(world)
    ema = fsdp.Ema(sharded, 0.5)
    x, y = rows()
    for p in sharded.parameters():
        with torch.no_grad():
            p.add_(1.0)
    ema.update()
    with torch.no_grad():
        now = model(x, y).item()
        with ema.swap_in():
            averaged = model(x, y).item()
        again = model(x, y).item()
        for p in plain.parameters():
            p.add_(0.5)
        return [now == again, abs(averaged - plain(x, y).item())]


def test_averages_are_swapped_in_for_evaluation(ranks):
    for is_back, difference in ranks(averages):
        assert is_back
        assert difference < 1e-12


def agrees(world):
    agreed = fsdp.agree_on_step(world.rank == 0, "fill", world)
    return [
        fsdp.mean_over_ranks(float(world.rank), 1.0 + world.rank, world),
        fsdp.count_over_ranks(3 + world.rank, world),
        agreed.go_on,
        agreed.weight,
        agreed.active,
    ]


def test_ranks_agree_on_numbers_and_steps(ranks):
    first, second = ranks(agrees)
    assert first == [2 / 3, 7.0, True, 1.0, 1]
    assert second == [2 / 3, 7.0, True, 0.0, 1]


def builds_on_meta(world):
    torch.manual_seed(5)
    expected = GPT()
    with torch.device("meta"):
        model = GPT()
    text = str(error_of(lambda: fsdp.fully_shard(model, units=[Block], world=world, print_promise=False)))
    return [text, expected.wte.weight.shape[0] == VOCAB]


def test_a_model_on_meta_is_refused_with_the_way_on(ranks):
    for text, _ in ranks(builds_on_meta):
        assert "is on meta" in text
        assert "to_empty" in text
