"""Layerwise offload on real ComfyUI: bit-identical to a plain full load, always."""

from __future__ import annotations

import comfy.model_management
import pytest
import torch
from pack.comfy_adapter.streaming.settings import RESIDENCY_POLICIES
from rigs.real_comfy import FAMILIES, FLUX, STEPS, WAN, blocks_of, build, sample, weights_at_rest

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def vars_of_blocks(patcher, family):
    return [dict(vars(block)) for block in blocks_of(patcher, family)]


@each_family
@pytest.mark.parametrize("resident", [0, 2, 5, 100])
def test_identical_for_any_number_of_residents(offload, report, family, resident):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=resident)
    assert torch.equal(sample(streamed, family), expected)
    run = report(streamed)
    assert run["engine"] == "layerwise"
    assert run["steps"] == STEPS
    assert run["totals"]["blocks_run"] == run["totals"]["calls"] * family.blocks
    assert (run["totals"]["bytes_streamed"] == 0) == (resident >= family.blocks)
    assert run["totals"]["bytes_wasted"] == 0


@each_family
@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m", "dpmpp_sde", "res_multistep", "uni_pc", "lcm"])
def test_identical_with_any_sampler(offload, family, sampler):
    plain = build(family)
    expected = sample(plain, family, sampler=sampler)
    assert torch.equal(sample(offload(plain, resident_blocks=1), family, sampler=sampler), expected)


@each_family
@pytest.mark.parametrize("prefetch", [0, 1, 2, 16])
def test_bytes_and_slots_for_any_prefetch(offload, report, family, prefetch):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=0, prefetch_blocks=prefetch)
    assert torch.equal(sample(streamed, family), expected)
    sizes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks_of(plain, family)]
    totals = report(streamed)["totals"]
    assert totals["bytes_streamed"] == totals["calls"] * sum(sizes)
    assert totals["bytes_wasted"] == 0
    slots = min(prefetch + 1, family.blocks)
    assert slots * max(sizes) <= totals["peak_slot_bytes"] <= slots * (max(sizes) + 256 * 64)


@each_family
@pytest.mark.parametrize("policy", RESIDENCY_POLICIES)
def test_identical_with_any_policy(offload, report, family, policy):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=3, residency_policy=policy)
    assert torch.equal(sample(streamed, family), expected)
    assert report(streamed)["totals"]["bytes_streamed"] > 0


@each_family
def test_default_keeps_everything_where_memory_is_not_short(offload, report, family):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain)
    assert torch.equal(sample(streamed, family), expected)
    assert report(streamed)["totals"]["bytes_streamed"] == 0


def test_budget_decides_how_many_blocks_stay(offload, report):
    plain = build(WAN)
    expected = sample(plain, WAN)
    block = sum(p.numel() * p.element_size() for p in blocks_of(plain, WAN)[0].parameters())
    whole = plain.model_size()
    # room for everything but three blocks, and the two slots that streaming those takes
    budget = (whole - 3 * block + 2 * (block + 256 * 40)) / 2**30
    streamed = offload(plain, vram_budget_gb=budget)
    assert torch.equal(sample(streamed, WAN), expected)
    run = report(streamed)
    assert run["totals"]["bytes_streamed"] == 3 * block * run["totals"]["calls"]
    assert streamed.loaded_size() <= budget * 2**30


@each_family
def test_originals_are_back_and_nothing_stays_on_the_blocks(offload, family):
    plain = build(family)
    weights, attributes = weights_at_rest(plain), vars_of_blocks(plain, family)
    objects = {name: id(p) for name, p in plain.model.named_parameters()}
    sample(offload(plain, resident_blocks=1), family)
    assert vars_of_blocks(plain, family) == attributes
    assert {name: id(p) for name, p in plain.model.named_parameters()} == objects
    after = plain.model.state_dict()
    assert all(torch.equal(after[name], weights[name]) for name in weights)


@each_family
def test_two_branches_of_one_model_alternate(offload, family):
    plain = build(family)
    expected = sample(plain, family)
    one, other = offload(plain, resident_blocks=1), offload(plain, resident_blocks=4, prefetch_blocks=3)
    for model in (one, plain, other, one, other, plain, one):
        assert torch.equal(sample(model, family), expected)


@each_family
def test_the_node_twice_in_a_chain_acts_as_the_last_one(offload, report, family):
    plain = build(family)
    expected = sample(plain, family)
    twice = offload(offload(plain, resident_blocks=0), resident_blocks=family.blocks - 1)
    assert type(twice).__mro__.count(type(plain)) == 1
    assert torch.equal(sample(twice, family), expected)
    totals, blocks = report(twice)["totals"], blocks_of(plain, family)
    sizes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks]
    assert totals["bytes_streamed"] // totals["calls"] in sizes


@each_family
@pytest.mark.parametrize("kind", ["interrupt", "error", "out of memory"])
def test_exceptions_pass_and_leave_nothing(offload, family, kind):
    exception = {
        "interrupt": comfy.model_management.InterruptProcessingException(),
        "error": RuntimeError("broken block"),
        "out of memory": torch.OutOfMemoryError("no memory"),
    }[kind]
    plain = build(family)
    expected = sample(plain, family)
    weights, attributes = weights_at_rest(plain), vars_of_blocks(plain, family)
    model = offload(plain, resident_blocks=2)
    sample(model, family)
    for index in range(family.blocks):
        victim = blocks_of(plain, family)[index]
        calls = []

        def broken(*args, victim=victim, calls=calls, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                raise exception
            return type(victim).forward(victim, *args, **kwargs)

        vars(victim)["forward"] = broken
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            sample(model, family)
        assert caught.value is exception
        assert vars(victim)["forward"] is broken
        del vars(victim)["forward"]
        assert vars_of_blocks(plain, family) == attributes
        state = plain.model.state_dict()
        assert all(torch.equal(state[name], weights[name]) for name in weights)
        assert torch.equal(sample(model, family), expected)


def test_models_that_stay_on_the_device_pass_unchanged(offload, report, pack, monkeypatch):
    plain = build(FLUX)
    versions = pack.module("comfy_adapter.versions")
    monkeypatch.setattr(versions.comfy.model_management, "is_device_cpu", lambda device: False)
    passed = offload(plain, resident_blocks=0)
    assert type(passed) is type(plain)
    assert passed.patches_uuid == plain.patches_uuid
    monkeypatch.undo()
    sample(passed, FLUX)
    assert report(passed)["engine"] == "comfyui"
    assert report(passed)["engine_reason"] == "it was told to keep models on the device"


@pytest.mark.parametrize(
    ("engine", "reason"),
    [("auto", "the model is not under ComfyUI's dynamic VRAM"), ("layerwise", "asked for")],
)
def test_the_report_says_why_the_engine(offload, dbcache, report, engine, reason):
    model = offload(build(FLUX), engine=engine, resident_blocks=2)
    sample(model, FLUX)
    assert (report(model)["engine"], report(model)["engine_reason"]) == ("layerwise", reason)
    alone = dbcache(build(FLUX))
    sample(alone, FLUX)
    assert report(alone)["engine"] == "comfyui"
    assert report(alone)["engine_reason"] == "DiT Layerwise Offload is not on this model"


def test_a_patcher_that_resets_its_class_when_cloned(offload, report):
    """GGUF-style: a patcher subclass whose clone sets the class of the copy."""
    plain = build(WAN)

    class Resetting(type(plain)):
        def clone(self, *args, **kwargs):
            copy = super().clone(*args, **kwargs)
            copy.__class__ = Resetting
            return copy

    expected = sample(plain, WAN)
    plain.__class__ = Resetting
    model = offload(plain, resident_blocks=0).clone().clone()
    assert isinstance(model, Resetting)
    assert torch.equal(sample(model, WAN), expected)
    assert report(model)["totals"]["bytes_streamed"] > 0


def test_a_dropped_model_leaves_no_state(offload, pack):
    import gc
    import weakref

    model = offload(build(WAN), resident_blocks=0)
    sample(model, WAN)
    root = weakref.ref(model.model.diffusion_model)
    streaming = pack.module("comfy_adapter.streaming.shared_state")
    assert root() in streaming._streaming_of
    del model
    gc.collect()
    assert root() is None
    assert not any(key is None for key in streaming._streaming_of)
