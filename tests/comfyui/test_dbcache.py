"""DBCache on real ComfyUI, alone and with the offload."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from rigs.real_comfy import FAMILIES, FORCED, STEPS, blocks_of, build, differing_prompts, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


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
@pytest.mark.parametrize("calibrator", CALIBRATORS)
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
