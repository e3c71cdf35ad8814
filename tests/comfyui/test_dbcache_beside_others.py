"""DBCache on real ComfyUI beside what other nodes do: replaced blocks, guidance, several conditions, ControlNet."""

from __future__ import annotations

import dataclasses

import comfy.controlnet
import pytest
import torch
from rigs.real_comfy import FAMILIES, FLUX, FORCED, STEPS, WAN, build, cond, lora, sample, with_lora
from rigs.tiny_models import noise

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def test_a_replace_patch_of_another_node_wraps_a_block(dbcache):
    """``patches_replace`` that calls the original: with no hits the output equals the uncached one."""
    plain = build(FLUX)
    seen = []

    def wrap(args, extra):
        seen.append(1)
        out = extra["original_block"](args)
        return {**out, "img": out["img"] * 1.01}

    plain.set_model_patch_replace(wrap, "dit", "double_block", 1)
    expected = sample(plain, FLUX)
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "warmup_steps": 1000}), FLUX), expected)
    assert seen
    assert sample(dbcache(plain, **FORCED), FLUX).isfinite().all()


def test_a_replace_patch_that_drops_a_needed_block_is_computed_exactly(dbcache, report):
    plain = build(WAN)
    plain.set_model_patch_replace(lambda args, extra: {"img": args["img"]}, "dit", "double_block", 1)
    expected = sample(plain, WAN)
    model = dbcache(plain, **FORCED)
    assert torch.equal(sample(model, WAN), expected)
    run = report(model)
    assert run["totals"]["hits"] == 0
    assert any("block 1 was replaced" in note for note in run["notes"])


def test_skip_layer_guidance_has_its_own_branch(dbcache, report, comfy_nodes):
    """The same condition called again with a block left out must not share a cache with the plain call."""
    import asyncio

    from comfy_extras import nodes_slg

    plain = build(WAN)
    node = nodes_slg.SkipLayerGuidanceDiT
    arguments = {"double_layers": "3", "single_layers": "", "scale": 3.0, "start_percent": 0.0, "end_percent": 1.0}
    run_node = getattr(node, "execute", None) or node().skip_guidance
    result = run_node(plain, **arguments, **({"rescaling_scale": 0.0}))
    assert not asyncio.iscoroutine(result)
    guided = result[0] if isinstance(result, tuple) else result.result[0]
    expected = sample(guided, WAN)
    model = dbcache(guided, **{**FORCED, "warmup_steps": 1000})
    assert torch.equal(sample(model, WAN), expected)
    branches = {call["branch"] for call in report(model)["calls"]}
    assert branches == {"uncond+cond", "cond"}


def test_two_samplers_in_one_graph(dbcache, report):
    """An upscale pass from the same MODEL output: another size, another schedule."""
    model = dbcache(build(WAN), **FORCED)
    sample(model, WAN)
    first = report(model)
    sample(model, WAN, latent=(1, 16, 2, 12, 12), steps=8, denoise=0.6)
    second = report(model)
    assert first["steps"] == STEPS
    assert second["steps"] == 8
    assert [call["outcome"] for call in second["calls"]][:4] == ["miss", "miss", "miss", "hit"]


@each_family
def test_several_conditions_and_conditions_that_come_and_go(dbcache, report, family):
    import node_helpers

    late = node_helpers.conditioning_set_values(cond(7), {"start_percent": 0.4, "end_percent": 0.8})
    plain = build(family)
    expected = sample(plain, family, positive=[*cond(2), *late])
    model = dbcache(plain, **{**FORCED, "warmup_steps": 1000})
    assert torch.equal(sample(model, family, positive=[*cond(2), *late]), expected)
    model = dbcache(plain, **FORCED)
    assert sample(model, family, positive=[*cond(2), *late]).isfinite().all()
    calls = report(model)["calls"]
    first_of = {}
    for call in calls:
        first_of.setdefault(call["branch"], call)
    assert len(first_of) > 1
    assert all(call["outcome"] == "miss" for call in first_of.values())


def test_a_batch_of_two(dbcache):
    model = dbcache(build(WAN), **FORCED)
    assert sample(model, WAN, latent=(2, *WAN.latent[1:])).shape[0] == 2


def test_context_windows_are_branches_of_their_own(dbcache, report):
    context_windows = pytest.importorskip("comfy.context_windows")
    plain = build(WAN)

    def windowed(model):
        model = model.clone()
        model.model_options["context_handler"] = context_windows.IndexListContextHandler(
            context_schedule=context_windows.get_matching_context_schedule("standard_static"),
            fuse_method=context_windows.get_matching_fuse_method("pyramid"),
            context_length=4,
            context_overlap=1,
            context_stride=1,
            closed_loop=False,
            dim=2,
        )
        return model

    long = (1, 16, 7, 8, 8)
    expected = sample(windowed(plain), WAN, latent=long, cfg=1.0)
    model = windowed(dbcache(plain, **{**FORCED, "warmup_steps": 1000}))
    assert torch.equal(sample(model, WAN, latent=long, cfg=1.0), expected)
    assert len({call["branch"] for call in report(model)["calls"]}) > 1
    model = windowed(dbcache(plain, **FORCED))
    assert sample(model, WAN, latent=long, cfg=1.0).isfinite().all()
    assert report(model)["totals"]["hits"] > 0


PRESET_STEPS = {
    "quality": "........HH.HH.HH.HH.",
    "balanced": "....HH.HH.HH.HH.HH..",
    "fast": "..HHHHHHHHHHHHHHHH..",
}


@pytest.mark.parametrize("preset", PRESET_STEPS)
def test_presets_cache_as_much_as_their_caps_allow(dbcache, report, preset):
    """On a model that changes little from step to step; the last step is computed."""
    gentle = dataclasses.replace(WAN, scale=0.2)
    model = dbcache(build(gentle), preset=preset)
    assert sample(model, gentle, steps=20, cfg=1.0).isfinite().all()
    run = report(model)
    assert run["steps"] == 20
    assert "".join("H" if call["outcome"] == "hit" else "." for call in run["calls"]) == PRESET_STEPS[preset]


class Control(comfy.controlnet.ControlBase):
    """A ControlNet that adds fixed tensors between blocks, down to a sigma."""

    def __init__(self, additions, until=0.0):
        super().__init__()
        self.additions, self.until = additions, until

    def get_control(self, x_noisy, t, cond, batched_number, transformer_options):
        return self.additions if float(t.flatten()[0]) > self.until else None


def controlled(until=0.0):
    additions = {
        "input": [noise(1, 16, 64, seed=60 + index) * 0.3 for index in range(3)],
        "output": [noise(1, 16, 64, seed=70 + index) * 0.3 for index in range(4)],
    }
    control = Control(additions, until)
    return {"positive": cond(2, control=control), "negative": cond(3, control=control)}


def test_controlnet_additions_between_blocks(dbcache, offload, report):
    plain = build(FLUX)
    expected = sample(plain, FLUX, **controlled())
    assert not torch.equal(expected, sample(plain, FLUX))
    model = dbcache(plain, **{**FORCED, "warmup_steps": 1000})
    assert torch.equal(sample(model, FLUX, **controlled()), expected)
    assert torch.equal(sample(offload(plain, resident_blocks=1), FLUX, **controlled()), expected)
    cached = dbcache(plain, **FORCED)
    with_control, without = sample(cached, FLUX, **controlled()), sample(cached, FLUX)
    assert report(cached)["totals"]["hits"] > 0
    # a cached picture is near the computed one with control, and not near the one without
    assert (with_control - expected).abs().mean() < 0.5 * (without - expected).abs().mean()


def test_a_control_that_ends_makes_the_next_call_a_miss(dbcache, report):
    model = dbcache(build(FLUX), **{**FORCED, "warmup_steps": 1, "max_continuous_cached_steps": -1})
    sample(model, FLUX, **controlled(until=0.7))
    calls = report(model)["calls"]
    changed = [call for call in calls if call["reason"] == "control input changed"]
    assert len(changed) == 1
    assert changed[0]["sigma"] <= 0.7
    before = calls[calls.index(changed[0]) - 1]
    assert before["outcome"] == "hit"


@each_family
def test_a_schedule_that_rises_again(dbcache, report, family):
    import comfy.sample
    import comfy.samplers

    sigmas = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0])
    model = dbcache(build(family), **FORCED)
    sampler = comfy.samplers.sampler_object("euler")
    with torch.inference_mode():
        samples = comfy.sample.sample_custom(
            model,
            noise(*family.latent, seed=1),
            3.0,
            sampler,
            sigmas,
            cond(2),
            cond(3),
            torch.zeros(family.latent),
            disable_pbar=True,
            seed=1,
        )
    assert samples.isfinite().all()
    calls = report(model)["calls"]
    assert [call["step"] for call in calls] == list(range(9))
    assert [call["outcome"] for call in calls] == ["miss"] * 3 + ["hit", "hit", "miss"] * 2


@each_family
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_very_short_schedules(dbcache, offload, family, steps):
    plain = build(family)
    expected = sample(plain, family, steps=steps)
    assert torch.equal(sample(dbcache(plain, preset="fast"), family, steps=steps), expected)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family, steps=steps), expected)


@each_family
def test_a_branch_without_offload_never_meets_the_engine_of_another(offload, dbcache, report, family):
    """One base model: a streamed branch with a LoRA, and a cached one that is neither streamed nor patched."""
    plain = build(family)
    expected = sample(plain, family)
    streamed = with_lora(offload(plain, resident_blocks=0), lora(plain, family))
    cached = dbcache(plain, **{**FORCED, "warmup_steps": 1000})
    with_patch = sample(streamed, family)
    for _ in range(2):
        assert torch.equal(sample(cached, family), expected)
        assert report(cached)["totals"]["bytes_streamed"] == 0
        assert torch.equal(sample(streamed, family), with_patch)
