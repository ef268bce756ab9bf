# SPDX-License-Identifier: Apache-2.0
"""What Python users do to modules and weights, each against the same code on a whole copy."""

import copy
import io
import pickle

import fsdp
import pytest
import torch
from models import VOCAB, Block, error_of, pair, rows, worst_gradient, worst_weight
from torch.utils.checkpoint import checkpoint


def recomputes(world, reentrant):
    model, sharded, plain = pair(world)
    x, y = rows()
    model(x, y, run=lambda block, h: checkpoint(block, h, use_reentrant=reentrant)).backward()
    plain(x, y).backward()
    return worst_gradient(sharded, plain), sharded.report().counters.gathers


@pytest.mark.parametrize("reentrant", [False, True])
def test_torchs_checkpoint_recomputes_with_the_same_gradients_and_gathers(ranks, reentrant):
    for worst, gathers in ranks(recomputes, reentrant=reentrant):
        assert worst < 1e-13
        assert gathers == 8


def evaluates(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    with torch.no_grad():
        first = torch.equal(model(x), plain(x))
    with torch.inference_mode():
        second = torch.equal(model.eval()(x), plain.eval()(x))
    model(x, y).backward()
    plain(x, y).backward()
    return [first, second, worst_gradient(sharded, plain) < 1e-13]


def test_evaluation_without_grad_and_in_inference_mode(ranks):
    assert ranks(evaluates) == [[True] * 3] * 2


def differentiates(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    wanted = [model.ln_f.weight, model.h[0].mlp[0].weight]
    whole = [plain.ln_f.weight, plain.h[0].mlp[0].weight]
    ours = torch.autograd.grad(model(x, y), wanted)
    theirs = torch.autograd.grad(plain(x, y), whole)
    worst = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    model(x, y).backward()
    plain(x, y).backward()
    return worst, worst_gradient(sharded, plain)


def test_autograd_grad_gives_whole_local_gradients_and_reduces_nothing(ranks):
    for worst, after in ranks(differentiates):
        assert worst < 1e-13
        assert after < 1e-13


def penalises(world):
    model, sharded, plain = pair(world)
    x, _ = rows()

    def total(m):
        e = m.wte(x).detach().requires_grad_()
        h = e + m.wpe(torch.arange(x.shape[1]))
        for block in m.h:
            h = block(h)
        out = m.ln_f(h).square().mean()
        (g,) = torch.autograd.grad(out, e, create_graph=True)
        return out + g.square().sum()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        total(model).backward()
        total(plain).backward()
    theirs = dict(plain.named_parameters())
    worst = 0.0
    for shard in sharded.named_shards():
        grad = theirs[shard.name].grad
        if grad is None or shard.shard.grad is None or shard.shard.numel() == 0:
            continue
        flat = grad.flatten()[shard.begin : shard.begin + shard.shard.numel()]
        worst = max(worst, (shard.shard.grad.clone() - flat).abs().max().item())
    return worst


def test_double_backward(ranks):
    assert max(ranks(penalises)) < 1e-12


def per_sample(world):
    from torch.func import functional_call, grad, vmap

    model, sharded, plain = pair(world)
    model.eval(), plain.eval()  # nothing inside writes a buffer
    x, y = rows()
    weights = dict(model.named_parameters())
    ours = grad(lambda p: functional_call(model, p, (x, y)))(weights)
    plain(x, y).backward()
    worst = max((ours[n] - p.grad).abs().max().item() for n, p in plain.named_parameters())
    sharded.reshard()
    with torch.no_grad():
        rows_of = vmap(lambda row: plain(row[None]))(x), torch.stack([model(row[None]) for row in x])
    return worst, (rows_of[0] - rows_of[1]).abs().max().item()


def test_torch_func_differentiates_whole_weights(ranks):
    for worst, mapped in ranks(per_sample):
        assert worst < 1e-12
        assert mapped < 1e-12


# --- the facts of the spike ---------------------------------------------------------------------


def clears_hooks(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    seen = []
    model.ln_f.weight.register_hook(lambda g: seen.append(tuple(g.shape)) or 2 * g)
    plain.ln_f.weight.register_hook(lambda g: 2 * g)
    model.h[1].ln1.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    worst = []
    for _ in range(2):
        for m in (model, plain):
            m.zero_grad()
            m(x, y).backward()
        worst.append(worst_gradient(sharded, plain))
    return worst, seen


def test_fault163_hooks_on_weights_run_beside_the_engines(ranks):
    for worst, seen in ranks(clears_hooks):
        assert max(worst) < 1e-13
        assert seen == [[32], [32]] * 2


def clears_hooks_in_bfloat16(world):
    model, sharded, _ = pair(world, dtype=torch.float32, precision=torch.bfloat16)
    x, y = rows()
    model.ln_f.weight.register_hook(lambda g: g)
    model.h[0].ln1.weight.register_post_accumulate_grad_hook(lambda p: None)
    with sharded.full_parameters():
        pass
    model(x, y).backward()
    return all(shard.grad is not None for shard in sharded.parameters())


def test_fault163_hooks_on_weights_survive_a_scope_in_another_type(ranks):
    assert all(ranks(clears_hooks_in_bfloat16))


def reads_raw(world):
    model, sharded, _ = pair(world, store="slots")
    weight = model.ln_f.weight
    texts = []
    for read in (
        lambda: weight.detach().numpy(),
        lambda: weight.data_ptr(),
        lambda: torch.utils.dlpack.to_dlpack(weight.detach()),
    ):
        sharded.reshard()
        try:
            texts.append(f"it gave {read()}")
        except Exception as error:
            texts.append(str(error))
    gathers = sharded.report().counters.gathers
    return [texts, gathers]


def test_fault162_raw_pointers_of_freed_weights_are_refused(ranks):
    for texts, gathers in ranks(reads_raw):
        assert all('"ln_f.weight" is sharded' in text for text in texts), texts
        assert gathers == 0


def shows(world):
    model, sharded, _ = pair(world)
    shown = ["", "", ""]
    if world.rank == 0:  # on one rank alone: no collective
        shown = [repr(model.ln_f.weight), str(model.ln_f.weight.detach()), repr(model)[:4]]
    return [shown, sharded.report().counters.gathers]


def test_showing_a_weight_is_no_collective(ranks):
    for shown, gathers in ranks(shows):
        assert gathers == 0
        assert shown[0] == "" or "<sharded by fsdp>, size=(32,)" in shown[0]
    assert "Parameter containing" in ranks(shows)[0][0][0]


# --- state, copies, pickles -----------------------------------------------------------------------


def keeps_state(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    state = sharded.state_dict()
    theirs = plain.state_dict()
    same = state.keys() == theirs.keys() and all(torch.equal(state[k], theirs[k]) for k in theirs)
    doubled = {k: v * 2 for k, v in theirs.items()}
    keys = model.load_state_dict(doubled)
    plain.load_state_dict(doubled)
    loaded = worst_weight(sharded, plain)
    parts = sharded.state_dict(full=False)
    with torch.no_grad():
        for p in sharded.parameters():
            p.zero_()
    sharded.load_state_dict(parts, full=False)
    from_parts = worst_weight(sharded, plain)
    buffer = io.BytesIO()
    torch.save(sharded.state_dict(), buffer)
    buffer.seek(0)
    return [same, list(keys.missing_keys), loaded, from_parts, len(torch.load(buffer)) == len(theirs)]


def test_state_dicts_whole_and_in_parts(ranks):
    assert ranks(keeps_state) == [[True, [], 0.0, 0.0, True]] * 2


def refuses_state(world):
    model, sharded, plain = pair(world)
    texts = [str(error_of(lambda: model.load_state_dict(plain.state_dict(), assign=True)))]
    state = plain.state_dict()
    with sharded.full_parameters():
        texts.append(str(error_of(lambda: model.load_state_dict(state))))
    texts.append(str(error_of(lambda: sharded.load_state_dict({"ln_f.weight": torch.ones(3)}, full=False))))
    texts.append(str(error_of(lambda: torch.save(model.state_dict(), io.BytesIO()))))
    sharded.reshard()
    del state["ln_f.bias"]
    texts.append(str(error_of(lambda: model.load_state_dict(state))))
    # What was refused leaves nothing behind.
    with torch.no_grad():
        model(rows()[0])
    return texts


def test_state_that_cannot_be_taken_is_refused_with_the_way_on(ranks):
    for assign, scope, parts, save, missing in ranks(refuses_state):
        assert "assign=True" in assign
        assert "full_parameters(writeback=True)" in scope
        assert "not this rank's parts" in parts
        assert "is not gathered now" in save
        assert "ln_f.bias" in missing


def copies(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    other = copy.deepcopy(model)
    with torch.no_grad():
        equal = torch.equal(other(x), plain(x))
    other(x, y).backward()
    plain(x, y).backward()
    whole = torch.equal(other.ln_f.weight.grad, plain.ln_f.weight.grad)
    again = fsdp.fully_shard(other.__class__(), units=[Block], world=world, print_promise=False)
    is_whole = not fsdp.is_sharded(other.ln_f.weight)
    return [equal, whole, fsdp.sharded_of(other) is None, is_whole, len(again.parameters()) > 0]


def test_a_deep_copy_is_a_whole_module_of_its_own(ranks):
    assert ranks(copies) == [[True] * 5] * 2


def pickles(world):
    model, sharded, _ = pair(world)
    return [str(error_of(lambda: pickle.dumps(model))), str(error_of(lambda: torch.save(model, io.BytesIO())))]


def test_pickling_is_refused_with_the_way_on(ranks):
    for texts in ranks(pickles):
        for text in texts:
            assert "fsdp.save(path, sharded)" in text


def zeroes(world, set_to_none):
    model, sharded, plain = pair(world)
    x, y = rows()
    for m in (model, plain):
        m(x, y).backward()
        m.zero_grad(set_to_none=set_to_none)
        m(x, y).backward()
    return worst_gradient(sharded, plain)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_module_zero_grad_forgets_gradients(ranks, set_to_none):
    assert max(ranks(zeroes, set_to_none=set_to_none)) < 1e-13


def frees_and_unfreezes(world):
    model, sharded, plain = pair(world)
    x, y = rows()
    for m in (model, plain):
        m.h[1].requires_grad_(False)
        m(x, y).backward()
    frozen = [s.shard.grad is None for s in sharded.named_shards() if s.name.startswith("h.1.")]
    for m in (model, plain):
        m.h[1].requires_grad_(True)
        m.zero_grad()
        m(x, y).backward()
    return [all(frozen), worst_gradient(sharded, plain)]


def test_layers_are_frozen_and_unfrozen_as_usual(ranks):
    for frozen, worst in ranks(frees_and_unfreezes):
        assert frozen
        assert worst < 1e-13


def outlives(world):
    model, _, plain = pair(world)
    x, y = rows()
    import gc

    gc.collect()
    with torch.no_grad():
        return torch.equal(model(x), plain(x))


def test_the_module_keeps_its_other_half_alive(ranks):
    assert all(ranks(outlives))


def generates(world):
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    plain = copy.deepcopy(model)
    sharded = fsdp.fully_shard(model, units=["LlamaDecoderLayer"], world=world, print_promise=False)
    prompt = rows()[0][:, :8]
    ours = model.generate(prompt, max_new_tokens=8, do_sample=False)
    theirs = plain.generate(prompt, max_new_tokens=8, do_sample=False)
    misses = sharded.report().counters.prefetch_misses
    model.gradient_checkpointing_enable()
    model.train()(input_ids=prompt, labels=prompt, use_cache=False).loss.backward()
    return [torch.equal(ours, theirs), misses, sharded.parameters()[0].grad is not None]


def test_transformers_generate_and_gradient_checkpointing(ranks):
    for equal, _, trained in ranks(generates):
        assert equal
        assert trained


def adapts(world):
    from models import GPT
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    model = get_peft_model(GPT().double(), LoraConfig(r=4, target_modules=["qkv"], init_lora_weights=False))
    plain = copy.deepcopy(model)
    sharded = fsdp.fully_shard(model, units=[Block], world=world, print_promise=False)
    x, y = rows()
    ours = torch.optim.AdamW([s for s in sharded.parameters() if s.requires_grad], lr=1e-2)
    theirs = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        for m, o in ((model, ours), (plain, theirs)):
            m(x, y).backward()
            o.step(), o.zero_grad()
    return [len(ours.param_groups[0]["params"]), worst_weight(sharded, plain)]


def test_peft_lora(ranks):
    for trainable, worst in ranks(adapts):
        assert trainable == 6
        assert worst < 1e-12


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((17,), i)


def loads_data(world):
    model, sharded, _ = pair(world)
    optimizer = torch.optim.AdamW(sharded.parameters())
    for batch in torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="fork"):
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step(), optimizer.zero_grad()
    return True


def test_dataloader_workers(ranks):
    assert all(ranks(loads_data))
