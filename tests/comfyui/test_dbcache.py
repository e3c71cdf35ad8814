"""DBCache on real ComfyUI, alone and with the offload."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import comfy.controlnet
import pytest
import torch
from rigs.real_comfy import FAMILIES, FLUX, STEPS, WAN, blocks_of, build, cond, lora, sample, with_lora
from rigs.tiny_models import noise

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
FORCED = {
    "preset": "custom",
    "Fn": 1,
    "Bn": 1,
    "warmup_steps": 3,
    "residual_diff_threshold": 1.0,
    "max_continuous_cached_steps": 2,
    "calibrator": "none",
    "compute_last_step": False,
}


def differing_prompts():
    """Prompts of different length, which ComfyUI cannot join into one call."""
    return {"positive": cond(2, tokens=8), "negative": cond(3, tokens=12)}


@each_family
@pytest.mark.parametrize("prompts", [dict, differing_prompts], ids=["joined", "split"])
def test_threshold_zero_is_bit_identical(dbcache, report, family, prompts):
    plain = build(family)
    expected = sample(plain, family, **prompts())
    model = dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.0})
    assert torch.equal(sample(model, family, **prompts()), expected)
    run = report(model)
    assert run["totals"]["hits"] == 0
    branches = {call["branch"] for call in run["calls"]}
    assert branches == ({"cond", "uncond"} if prompts is differing_prompts else {"uncond+cond"})


@each_family
def test_recording_is_bit_identical(dbcache, family):
    plain = build(family)
    model = dbcache(plain, **{**FORCED, "warmup_steps": 1000})
    assert torch.equal(sample(model, family), sample(plain, family))


@each_family
@pytest.mark.parametrize("prompts", [dict, differing_prompts], ids=["joined", "split"])
def test_middle_blocks_do_not_run_on_a_hit(dbcache, report, family, prompts):
    plain = build(family)
    model = dbcache(plain, **FORCED)
    counts = [0] * family.blocks
    handles = []
    for index, block in enumerate(blocks_of(plain, family)):

        def count(*_, index=index):
            counts[index] += 1

        # counted inside the block, below every hook of ours
        handles.append(next(block.children()).register_forward_pre_hook(count))
    sample(model, family, **prompts())
    for handle in handles:
        handle.remove()
    run = report(model)
    calls, hits = run["totals"]["calls"], run["totals"]["hits"]
    assert hits > 0
    per_call = counts[0] // calls
    assert counts[0] == counts[-1] == calls * per_call
    assert counts[1:-1] == [(calls - hits) * per_call] * (family.blocks - 2)
    assert run["totals"]["blocks_skipped"] == hits * (family.blocks - 2)
    for call in run["calls"]:
        assert (len(call["blocks_run"]) == 2) == (call["outcome"] == "hit")
        assert call["step"] >= 3 or call["outcome"] == "miss"


@each_family
def test_in_a_row_cap_and_warm_up(dbcache, report, family):
    model = dbcache(build(family), **FORCED)
    sample(model, family, cfg=1.0)
    outcomes = [call["outcome"] for call in report(model)["calls"]]
    assert outcomes == ["miss"] * 3 + (["hit", "hit", "miss"] * STEPS)[: STEPS - 3]


@each_family
def test_a_real_threshold_gives_hits_and_misses_with_their_differences(dbcache, report, family):
    always = {**FORCED, "residual_diff_threshold": 0.999, "max_continuous_cached_steps": -1}
    probe = dbcache(build(family), **always)
    sample(probe, family)
    first = next(max(call["diffs"].values()) for call in report(probe)["calls"] if call["diffs"])
    threshold = first * 1.01
    model = dbcache(build(family), **{**always, "residual_diff_threshold": threshold})
    sample(model, family)
    compared = [call for call in report(model)["calls"] if call["diffs"]]
    assert {call["outcome"] for call in compared} == {"hit", "miss"}
    streams = {"flux": {"image", "text"}, "wan": {"video"}}[family.name]
    for call in compared:
        assert set(call["diffs"]) == streams
        assert (max(call["diffs"].values()) < threshold) == (call["outcome"] == "hit")


@each_family
@pytest.mark.parametrize(
    "sampler", ["euler", "heun", "dpmpp_2s_ancestral", "dpmpp_sde", "res_multistep", "uni_pc", "lcm"]
)
def test_samplers(dbcache, report, family, sampler):
    """Calls may be several a step: warm-up and caps count steps, and nothing breaks."""
    plain = build(family)
    model = dbcache(plain, **FORCED)
    assert sample(model, family, sampler=sampler).isfinite().all()
    run = report(model)
    assert run["steps"] == STEPS
    assert all(call["outcome"] == "miss" for call in run["calls"] if call["step"] < 3)
    assert max(call["step"] for call in run["calls"]) < STEPS
    hit_steps = {call["step"] for call in run["calls"] if call["outcome"] == "hit"}
    assert hit_steps
    assert not any({step, step + 1, step + 2} <= hit_steps for step in hit_steps)


@each_family
def test_partial_denoise(dbcache, report, family):
    model = dbcache(build(family), **FORCED)
    sample(model, family, denoise=0.5)
    run = report(model)
    assert [call["step"] for call in run["calls"]] == list(range(run["steps"]))
    assert [call["outcome"] for call in run["calls"]][:4] == ["miss", "miss", "miss", "hit"]


@each_family
def test_the_same_model_again_behaves_like_fresh(dbcache, family):
    plain = build(family)
    model = dbcache(plain, **FORCED)
    other_size = (*family.latent[:-2], 12, 8)
    for options in ({}, {"seed": 5}, {"latent": other_size}, {"steps": 9}, {"cfg": 1.0}, differing_prompts(), {}):
        assert torch.equal(
            sample(model, family, **options), sample(dbcache(build(family), **FORCED), family, **options)
        )


@each_family
@pytest.mark.parametrize("calibrator", ["none", "taylorseer"])
@pytest.mark.parametrize("resident", [0, 3])
def test_both_nodes_in_either_order(offload, dbcache, report, family, calibrator, resident):
    plain = build(family)
    settings = {**FORCED, "calibrator": calibrator}
    expected = sample(dbcache(plain, **settings), family)
    one = offload(dbcache(plain, **settings), resident_blocks=resident)
    other = dbcache(offload(plain, resident_blocks=resident), **settings)
    assert torch.equal(sample(one, family), expected)
    assert torch.equal(sample(other, family), expected)
    reports = [report(one), report(other)]
    assert reports[0] == reports[1]
    sizes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks_of(plain, family)]
    for call in reports[0]["calls"]:
        if call["outcome"] == "hit":
            assert call["blocks_run"] == [0, family.blocks - 1]
            assert call["bytes_streamed"] <= (sizes[0] + sizes[-1] if resident == 0 else 0)
    totals = reports[0]["totals"]
    if resident == 0:
        assert totals["bytes_streamed"] == sum(sizes[i] for call in reports[0]["calls"] for i in call["blocks_run"])
    assert totals["bytes_wasted"] == 0


@each_family
def test_both_nodes_with_a_lora(offload, dbcache, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(dbcache(with_lora(plain, contents), **FORCED), family)
    model = with_lora(dbcache(offload(plain, resident_blocks=1), **FORCED), contents)
    assert torch.equal(sample(model, family), expected)


@each_family
def test_the_plain_model_is_as_never_patched(offload, dbcache, family):
    plain = build(family)
    expected = sample(plain, family)
    attributes = dict(vars(plain.model.diffusion_model))
    sample(offload(dbcache(plain, **FORCED), resident_blocks=1), family)
    assert torch.equal(sample(plain, family), expected)
    assert dict(vars(plain.model.diffusion_model)) == attributes


@each_family
def test_an_interrupt_leaves_no_tensor_and_the_next_run_is_fresh(pack, offload, dbcache, family, monkeypatch):
    import comfy.model_management

    gate = pack.module("dbcache.gate").CallGate
    kept, copied = [], gate._copy

    def watched(self, hidden):
        copied(self, hidden)
        kept.extend(weakref.ref(copy) for copy in self._before.values())

    monkeypatch.setattr(gate, "_copy", watched)
    plain = build(family)
    model = dbcache(offload(plain, resident_blocks=1), **FORCED)
    expected = sample(model, family)

    def interrupt(step, *_):
        if step == 5:
            raise comfy.model_management.InterruptProcessingException()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(model, family, callback=interrupt)
    gc.collect()
    assert kept
    assert all(copy() is None for copy in kept)
    assert torch.equal(sample(model, family), expected)


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
