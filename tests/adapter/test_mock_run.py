"""Whole sampling runs on the mocked ComfyUI: both nodes' work on four model shapes, in either order."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from rigs import mock_comfy
from rigs.mock_runs import (
    JOINED,
    SIGMAS,
    SPLIT,
    cached,
    conds,
    each_layout,
    each_shape,
    layout_for,
    noise,
    patcher_of,
    run_of,
    sample,
    streamed,
)
from rigs.toy_stacks import WIDTH, blocks_of


@each_shape
@each_layout
@pytest.mark.parametrize("resident", [0, 3, 8])
def test_streaming_changes_no_bit(shape, layout, resident):
    layout = layout_for(shape, layout)
    plain = patcher_of(shape)
    expected = sample(plain, layout)
    model = streamed(plain, resident_blocks=resident)
    assert torch.equal(sample(model, layout), expected)
    assert torch.equal(sample(plain, layout), expected)
    assert (run_of(model)["totals"]["bytes_streamed"] > 0) == (resident < 8)


@each_shape
@each_layout
def test_either_order_of_the_nodes_gives_the_same(shape, layout):
    layout = layout_for(shape, layout)
    plain = patcher_of(shape)
    only_cached = sample(cached(plain), layout)
    one, other = cached(streamed(plain)), streamed(cached(plain))
    assert torch.equal(sample(one, layout), only_cached)
    assert torch.equal(sample(other, layout), only_cached)
    assert run_of(one) == run_of(other)
    assert not torch.equal(only_cached, sample(plain, layout))


@each_shape
def test_a_skipped_block_is_not_streamed(shape):
    plain = patcher_of(shape)
    sizes = [
        sum(tensor.numel() * tensor.element_size() for tensor in (*block.parameters(), *block.buffers()))
        for block in blocks_of(plain.model.diffusion_model)
    ]
    model = cached(streamed(plain, resident_blocks=0))
    sample(model)
    run = run_of(model)
    hits = [call for call in run["calls"] if call["outcome"] == "hit"]
    assert hits
    for call in hits:
        assert call["blocks_run"] == [0, 7]
    moved = sum(sizes[index] for call in run["calls"] for index in call["blocks_run"])
    assert run["totals"]["bytes_streamed"] == moved
    assert run["totals"]["bytes_wasted"] == 0


@each_shape
def test_a_hit_moves_nothing_when_the_residents_cover_fn_and_bn(shape):
    model = cached(streamed(patcher_of(shape), resident_blocks=2))
    sample(model)
    assert all(call["bytes_streamed"] == 0 for call in run_of(model)["calls"] if call["outcome"] == "hit")


@each_shape
def test_conditions_have_their_own_contexts(shape):
    """Two very different conditions, hits forced: each is what it would be alone."""

    def alone(seed):
        model = cached(patcher_of(shape))
        return mock_comfy.Guider(model, conds(seed, seed), layout=((0,),))

    class Recording(mock_comfy.Guider):
        def denoise(self, x, sigma, groups, control=None):
            super().denoise(x, sigma, groups, control)
            return x * 0.9

    outputs = {}
    for name, seeds, layout in (("one", (1,), ((0,),)), ("two", (50,), ((0,),)), ("both", (1, 50), SPLIT)):
        model = cached(patcher_of(shape))
        results = []
        base = model.model.apply_model

        def recorded(*args, base=base, results=results, **kwargs):
            output = base(*args, **kwargs)
            results.append(output)
            return output

        model.model.apply_model = recorded
        Recording(model, conds(*seeds), layout=layout).sample(noise(), SIGMAS)
        outputs[name] = results
    assert all(torch.equal(a, b) for a, b in zip(outputs["both"][0::2], outputs["one"], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(outputs["both"][1::2], outputs["two"], strict=True))


def test_the_layout_may_change_in_mid_run():
    def changing(step):
        return JOINED if step % 4 < 2 else SPLIT

    plain = patcher_of("out_of_place")
    expected = sample(plain, changing)
    model = cached(plain, warmup_steps=100)
    assert torch.allclose(sample(model, changing), expected, rtol=0, atol=0)
    model = cached(plain, warmup_steps=2)
    sample(model, changing)
    calls = run_of(model)["calls"]
    assert {call["branch"] for call in calls} == {"uncond+cond", "cond", "uncond"}
    first = {call["branch"]: call for call in reversed(calls)}
    assert all(call["outcome"] == "miss" for call in first.values())
    assert any(call["outcome"] == "hit" for call in calls)


@each_shape
def test_the_same_model_behaves_like_fresh_each_time(shape):
    plain = patcher_of(shape)
    model = streamed(cached(plain))
    variants = [
        {},
        {"seed": 9},
        {"tokens": 14},
        {"cond_seeds": (7, 8)},
        {"sigmas": torch.linspace(1, 0, 7)},
        {"sigmas": torch.linspace(0.6, 0, 9)},
        {},
    ]
    for variant in variants:
        assert torch.equal(sample(model, **variant), sample(cached(patcher_of(shape)), **variant))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_equal_their_items_run_singly(batch):
    plain = patcher_of("out_of_place")
    together = sample(cached(plain), JOINED, batch=batch)
    for index in range(batch):
        guider = mock_comfy.Guider(cached(plain), conds(), layout=JOINED)
        single = guider.sample(noise(batch=batch)[index : index + 1], SIGMAS)
        assert torch.allclose(together[index : index + 1], single, rtol=1e-5, atol=1e-6)


@each_shape
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError, torch.OutOfMemoryError])
def test_an_exception_leaves_no_tensor_no_attribute_and_a_model_that_works(shape, kind, monkeypatch):
    from pack_on_mock.dbcache.gate import CallGate

    kept = []
    copied = CallGate._copy

    def watched(self, hidden):
        copied(self, hidden)
        kept.extend(weakref.ref(copy) for copy in self._before.values())

    monkeypatch.setattr(CallGate, "_copy", watched)
    plain = patcher_of(shape)
    model = streamed(cached(plain))
    expected = sample(model)
    blocks = blocks_of(plain.model.diffusion_model)
    before = [dict(vars(block)) for block in blocks]
    weights = {name: id(p) for name, p in plain.model.named_parameters()}
    for victim in blocks:
        calls = []

        def fail(*args, victim=victim, calls=calls, **kwargs):
            calls.append(None)
            if len(calls) == 3:
                raise kind("x")
            return type(victim).forward(victim, *args, **kwargs)

        vars(victim)["forward"] = fail
        with pytest.raises(kind):
            sample(model)
        del vars(victim)["forward"]
        assert [dict(vars(block)) for block in blocks] == before
        assert {name: id(p) for name, p in plain.model.named_parameters()} == weights
    gc.collect()
    assert kept
    assert all(copy() is None for copy in kept)
    assert torch.equal(sample(model), expected)


@each_shape
def test_lora_before_and_after_the_node(shape):
    plain = patcher_of(shape)
    name = next(name for name, p in plain.model.named_parameters() if "weight" in name and "blocks" in name)
    delta = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(4)) * 0.3

    def with_patch(model, strength):
        copy = model.clone()
        copy.add_patches({name: delta}, strength)
        return copy

    expected = {strength: sample(with_patch(plain, strength)) for strength in (1.0, 0.5)}
    assert not torch.equal(expected[1.0], sample(plain))
    model = streamed(plain, resident_blocks=0)
    for strength in (1.0, 0.5, 1.0):
        assert torch.equal(sample(with_patch(model, strength)), expected[strength])
        assert torch.equal(sample(streamed(with_patch(plain, strength), resident_blocks=0)), expected[strength])
    assert torch.equal(sample(model), sample(plain))
