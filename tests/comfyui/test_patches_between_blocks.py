"""``patches`` that ComfyUI's own loops call after each block, as model-patch ControlNets use them, with DBCache."""

from __future__ import annotations

import pytest
import torch
from rigs.family_rig import FORCED, STEPS, build, sample
from rigs.tiny_families import TINY_FAMILIES
from rigs.tiny_models import noise

FAMILIES = [family for family in TINY_FAMILIES if family.name in ("qwen_image", "zimage")]


def patched(plain, in_place=True):
    """A clone with a patch that adds to the picture's tokens what only depends on the block, and the blocks it saw."""
    blocks = []

    def patch(args):
        image, index = args["img"], args["block_index"]
        blocks.append(index)
        add = noise(1, 1, image.shape[-1], seed=200 + index).to(image) * 0.2
        return {**args, "img": image.add_(add) if in_place else image + add}

    model = plain.clone()
    model.set_model_patch(patch, "double_block")
    return model, blocks


def standing_still(model):
    """A clone whose every evaluation gets the first one's input: what is cached then equals what is computed."""
    import comfy.patcher_extension

    copy, first, answers = model.clone(), [], []

    def still(executor, x, t, *args, **kwargs):
        first[:] = first or [x.clone(), t.clone()]
        answers.append(executor(first[0].clone(), first[1].clone(), *args, **kwargs))
        return answers[-1]

    copy.add_wrapper_with_key(comfy.patcher_extension.WrappersMP.APPLY_MODEL, "still", still)
    return copy, answers


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def patchable(request):
    plain = build(request.param)
    model, called = patched(plain)
    expected = sample(model, request.param)
    if not called:
        pytest.skip("this ComfyUI's model calls no patches between blocks")
    assert not torch.equal(expected, sample(plain, request.param))
    return plain, request.param, expected, called


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "new tensors"])
def test_without_hits_nothing_changes(patchable, dbcache, in_place):
    plain, family, expected, blocks = patchable
    model, called = patched(plain, in_place)
    assert torch.equal(sample(dbcache(model, **{**FORCED, "warmup_steps": 1000}), family), expected)
    assert called == blocks


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "new tensors"])
def test_a_hit_adds_everything_once(patchable, dbcache, report, in_place):
    """With a still input a cached answer is the computed one: neither without a block's addition nor with it twice."""
    plain, family, _, blocks = patchable
    model, called = patched(plain, in_place)
    cached = dbcache(model, **FORCED)
    still, answers = standing_still(cached)
    sample(still, family)
    outcomes = [call["outcome"] for call in report(cached)["calls"]]
    assert len(answers) == len(outcomes)
    assert outcomes.count("hit") >= STEPS // 2
    for answer, outcome in zip(answers, outcomes, strict=True):
        assert torch.equal(answer, answers[0]) or outcome == "hit"
        assert torch.allclose(answer, answers[0], rtol=1e-4, atol=1e-5)
    bare, without = standing_still(plain)
    sample(bare, family)
    assert not torch.allclose(without[0], answers[0], rtol=1e-2, atol=1e-2)
    # the loop calls the patches on cached calls too
    assert called == blocks


class RangedPatch:
    """A model-patch ControlNet with a range of its own: outside it adds nothing."""

    def __init__(self, sigma_start, sigma_end, seed):
        self.sigma_start, self.sigma_end, self._seed = sigma_start, sigma_end, seed

    def __call__(self, args):
        sigma = float(args["transformer_options"]["sigmas"][0])
        if self.sigma_end <= sigma <= self.sigma_start:
            args["img"] += noise(1, 1, args["img"].shape[-1], seed=self._seed).to(args["img"]) * 0.2
        return args


def test_a_patch_that_takes_over_makes_the_next_call_a_miss(patchable, dbcache, report):
    plain, family, _, _ = patchable
    plainly = dbcache(plain, **{**FORCED, "warmup_steps": 1000})
    sample(plainly, family)
    levels = sorted({call["sigma"] for call in report(plainly)["calls"]}, reverse=True)
    handover = (levels[2] + levels[3]) / 2  # there is a hit before it, and time for one after it
    model = plain.clone()
    for start, end, seed in ((1e9, handover, 300), (handover, -1.0, 400)):
        model.set_model_patch(RangedPatch(start, end, seed), "double_block")
    cached = dbcache(model, **FORCED)
    sample(cached, family)
    calls = report(cached)["calls"]
    after = next(call for call in calls if call["sigma"] < handover)
    assert any(call["outcome"] == "hit" for call in calls if call["sigma"] > handover)
    assert (after["outcome"], after["reason"]) == ("miss", "control input changed")
    assert any(call["outcome"] == "hit" for call in calls if call["sigma"] < handover)
