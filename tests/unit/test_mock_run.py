"""Whole sampling runs on the mocked ComfyUI: both nodes' work on four model shapes, in either order."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch
from doubles import mock_comfy
from doubles.toy_stacks import SHAPES, WIDTH, UNetModel, blocks_of

apply = mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.offload_settings import OffloadSettings  # noqa: E402
from pack_on_mock.dbcache.settings import DBCacheSettings  # noqa: E402

STEPS = 10
SIGMAS = torch.linspace(1, 0, STEPS + 1)
JOINED, SPLIT, SWAPPED = ((1, 0),), ((0,), (1,)), ((1,), (0,))

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_layout = pytest.mark.parametrize("layout", [JOINED, SPLIT, SWAPPED], ids=["joined", "split", "swapped"])


def patcher_of(shape):
    return mock_comfy.ModelPatcher(mock_comfy.BaseModel(SHAPES[shape](0, mock_comfy.wrap_diffusion_model)))


def conds(*seeds):
    return [torch.randn(1, 3, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds or (1, 2)]


def noise(seed=3, tokens=10, batch=1):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def sample(patcher, layout=SPLIT, *, seed=3, tokens=10, cond_seeds=(1, 2), batch=1, sigmas=SIGMAS):
    return mock_comfy.Guider(patcher, conds(*cond_seeds), layout=layout).sample(noise(seed, tokens, batch), sigmas)


def layout_for(shape, layout):
    if shape == "in_place" and layout == JOINED:
        pytest.skip("packed tokens have no batch dimension: the conditions are never joined")
    return layout


def cached(patcher, **values):
    defaults = {"preset": "custom", "fn": 1, "bn": 1, "warmup_steps": 2, "threshold": 1.0, "max_continuous": 2}
    return apply.apply_dbcache(patcher, DBCacheSettings(**{**defaults, **values}))


def streamed(patcher, **values):
    return apply.apply_layerwise_offload(patcher, OffloadSettings(**{"resident_blocks": 3, **values}))


def run_of(patcher):
    return json.loads(apply.last_run(patcher)[1])


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


def test_the_cache_node_twice_acts_as_the_last_one():
    plain = patcher_of("in_place")
    twice = cached(cached(plain, max_continuous=1), max_continuous=3)
    assert torch.equal(sample(twice), sample(cached(plain, max_continuous=3)))
    assert len(twice.get_wrappers("outer_sample", "dit_layerwise_offload")) == 1


def test_start_and_end_percent():
    model = cached(patcher_of("in_place"), warmup_steps=0, start_percent=0.35, end_percent=0.75, max_continuous=-1)
    sample(model, ((0,),))
    outcomes = [(call["outcome"], call["reason"]) for call in run_of(model)["calls"]]
    assert [outcome for outcome, _ in outcomes] == ["miss"] * 4 + ["hit"] * 4 + ["miss"] * 2
    assert outcomes[3][1] == "before start_percent"
    assert outcomes[9][1] == "after end_percent"


def test_a_step_exactly_at_a_percent_is_told_from_the_one_before():
    """ComfyUI's noise levels are float32: a tenth is not the same number there."""
    for start in range(1, 9):
        end = start + 1
        model = cached(patcher_of("in_place"), warmup_steps=0, start_percent=start / 10, end_percent=end / 10)
        sample(model, ((0,),))
        reasons = [call["reason"] for call in run_of(model)["calls"]]
        assert [reason == "before start_percent" for reason in reasons] == [at < start for at in range(10)]
        assert [reason == "after end_percent" for reason in reasons] == [at >= end for at in range(10)]


@pytest.mark.parametrize("joined", [(0, 1), (0,)])
def test_the_last_step_is_computed_unless_told_otherwise(joined):
    for compute, last in ((True, ("miss", "last step")), (False, ("hit", "threshold is 1"))):
        model = cached(patcher_of("out_of_place"), max_continuous=-1, compute_last_step=compute)
        sample(model, (joined,))
        calls = run_of(model)["calls"]
        assert [call["outcome"] for call in calls[2:-1]] == ["hit"] * (len(calls) - 3)
        assert calls[-1]["outcome"] == last[0]
        assert calls[-1]["reason"].startswith(last[1][:9])


def test_a_preset_is_off_on_four_steps_and_says_so():
    plain = patcher_of("out_of_place")
    sigmas = torch.linspace(1, 0, 5)
    model = apply.apply_dbcache(plain, DBCacheSettings(preset="fast"))
    assert torch.equal(sample(model, sigmas=sigmas), sample(plain, sigmas=sigmas))
    run = run_of(model)
    assert run["totals"]["hits"] == 0
    assert any("too few" in note for note in run["notes"])


class Replaceable(torch.nn.Module):
    """A block that another node may replace: while ``replaced``, its own forward is run past any hook."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.replaced = False

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs) if self.replaced else super().__call__(*args, **kwargs)


@pytest.mark.parametrize("index", [0, 1, 6])
@pytest.mark.parametrize("since", [0, 7], ids=["from the start", "in mid-run"])
def test_a_call_the_gate_cannot_follow_is_exact_and_said_once(index, since):
    """Blocks 0 (judged), 1 and 6 (first and last of the middle) are those the gate cannot do without."""
    plain = patcher_of("out_of_place")
    blocks = plain.model.diffusion_model.blocks
    victim = blocks[index] = Replaceable(blocks[index])
    model = cached(streamed(plain, resident_blocks=8), bn=1, warmup_steps=2, max_continuous=-1)
    base = model.model.apply_model
    exact = []

    def watched(*args, **kwargs):
        victim.replaced = len(exact) >= since
        output = base(*args, **kwargs)
        kwargs["transformer_options"] = {}
        exact.append(torch.equal(output, base(*args, **kwargs)))
        return output

    model.model.apply_model = watched
    sample(model, ((0,),))
    run = run_of(model)
    outcomes = [call["outcome"] for call in run["calls"]]
    assert outcomes == ["miss" if step < 2 or step >= since else "hit" for step in range(STEPS)]
    assert exact == [outcome == "miss" for outcome in outcomes]
    assert all(call["reason"].startswith("not supported") for call in run["calls"][max(since, 2) :])
    assert sum("computed exactly" in note for note in run["notes"]) == 1


def test_a_model_without_a_block_stack_is_named():
    patcher = mock_comfy.ModelPatcher(mock_comfy.BaseModel(UNetModel()))
    for node in (streamed, cached):
        with pytest.raises(ValueError, match=r"model is a UNetModel.*UNet.*Remove this node"):
            node(patcher)


def test_too_large_fn_and_bn_are_named():
    with pytest.raises(ValueError, match=r"Fn is 5 and Bn is 3.*8 blocks"):
        cached(patcher_of("in_place"), fn=5, bn=3)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("engine", {"engine": "magic"}),
        ("engine", {"engine": "comfyui"}),
        ("resident_blocks", {"resident_blocks": -2}),
        ("vram_budget_gb", {"vram_budget_gb": -1.0}),
        ("vram_budget_gb", {"vram_budget_gb": float("nan")}),
        ("residency_policy", {"residency_policy": "random"}),
        ("prefetch_blocks", {"prefetch_blocks": 17}),
        ("prefetch_blocks", {"prefetch_blocks": -2}),
        ("pin_memory", {"pin_memory": "maybe"}),
        ("lora", {"lora": "never"}),
    ],
)
def test_bad_offload_settings_are_named(field, values):
    with pytest.raises(ValueError, match=field) as caught:
        streamed(patcher_of("in_place"), **values)
    assert str(next(iter(values.values()))) in str(caught.value)


def test_without_a_run_the_report_says_so():
    message = apply.last_run(streamed(patcher_of("in_place")))
    assert "No sampling run" in message[0]
    assert message[0] == message[1]
    assert "neither" in apply.last_run(patcher_of("in_place"))[0]


def test_each_output_reports_its_own_runs():
    plain = patcher_of("in_place")
    one = streamed(plain)
    other = cached(one)
    sample(other)
    assert "No sampling run" in apply.last_run(one)[0]
    sample(one)
    assert run_of(one)["totals"]["hits"] == 0
    assert run_of(other)["totals"]["hits"] > 0


def test_a_missing_cache_dit_is_one_readable_message(monkeypatch):
    from pack_on_mock.dbcache import backend

    monkeypatch.setattr(backend, "_installed_version", lambda: None)
    with pytest.raises(RuntimeError, match=r"needs the package cache-dit.*pip install"):
        cached(patcher_of("in_place"))
    monkeypatch.setattr(backend, "_installed_version", lambda: "9.9.9")
    with pytest.raises(RuntimeError, match=r"cache-dit>=1\.5\.3,<1\.6, but 9\.9\.9 is installed"):
        cached(patcher_of("in_place"))
    plain = patcher_of("in_place")
    assert torch.equal(sample(streamed(plain)), sample(plain))


def test_a_block_that_grows_between_loads():
    plain = patcher_of("out_of_place")
    model = streamed(plain, resident_blocks=0)
    expected = sample(model)
    before = model.model_size()
    block = plain.model.diffusion_model.blocks[3]
    block.register_parameter("extra", torch.nn.Parameter(torch.zeros(4096), requires_grad=False))
    model.detach()
    assert torch.equal(sample(model), expected)
    assert model.model_size() == before + 2 * 4096 * 4
    assert run_of(model)["totals"]["peak_slot_bytes"] >= 2 * 4096 * 4


def test_a_call_outside_a_sampler_still_streams():
    """Some nodes call the model without a guider: then there is no run, but the weights must be there."""
    plain = patcher_of("out_of_place")
    model = streamed(cached(plain), resident_blocks=0)
    mock_comfy.load_models_gpu(model)
    arguments = (noise(), torch.ones(1), conds()[0])
    output = model.model.apply_model(*arguments, transformer_options={"wrappers": model.wrappers})
    assert torch.equal(output, plain.model.apply_model(*arguments))
