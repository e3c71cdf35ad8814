"""Conditions of every kind in one run: each must get what it would get alone, and nothing of another's cache."""

from __future__ import annotations

import node_helpers
import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from rigs.real_comfy import FLUX, FORCED, WAN, blocks_of, build, cond, sample
from rigs.tiny_models import noise

AREAS = {"left": ("percentage", 1.0, 1.0, 0.5, 0.0, 0.0, 0.0), "right": ("percentage", 1.0, 1.0, 0.5, 0.0, 0.0, 0.5)}
CONDS = {name: cond(seed) for seed, name in enumerate(("whole", "left", "right", "masked", "negative"), 2)}
MASK = {"mask": torch.ones(1, 8, 8), "mask_strength": 0.7}


def somewhere(name: str, place: str) -> list:
    """Return a condition for the whole picture, or for one side of it."""
    return node_helpers.conditioning_set_values(CONDS[name], {"area": AREAS[place]} if place in AREAS else {})


class Recorded:
    """Evaluates a model along a fixed trajectory, whatever it answers, and keeps the answers by condition."""

    def __init__(self, model, batch: int = 1) -> None:
        import comfy.patcher_extension

        self.answers: dict[tuple[str, str], list[torch.Tensor]] = {}
        self._batch = batch
        self._model = model.clone()
        kind = comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL
        self._model.add_wrapper_with_key(kind, "recorder", self._record)

    def _record(self, executor, x, timestep, context, *args, **kwargs):
        output = executor(x, timestep, context, *args, **kwargs)
        chunks = (part.split(self._batch) for part in (context, x, output))
        for chunk, given, answer in zip(*chunks, strict=True):
            name = next(name for name, one in CONDS.items() if torch.equal(one[0][0], chunk[:1]))
            self.answers.setdefault((name, self._place(given)), []).append(answer.clone())
        return output

    def _place(self, given) -> str:
        width = self._noise.shape[-1]
        if given.shape[-1] == width:
            return "all"
        left = torch.nn.functional.cosine_similarity(given.flatten(), self._noise[..., : width // 2].flatten(), dim=0)
        return "left" if left > 0.9 else "right"

    def run(self, start, positive, negative, cfg):
        import comfy.samplers
        from comfy.sample import sample_custom

        def along(model, x, sigmas, extra_args=None, callback=None, disable=None, **kwargs):
            for sigma in sigmas[:-1]:
                model(x * (0.5 + sigma), sigma * x.new_ones(len(x)), **(extra_args or {}))
            return x

        self._noise = start
        sampler = comfy.samplers.KSAMPLER(along)
        sigmas = comfy.samplers.calculate_sigmas(self._model.get_model_object("model_sampling"), "simple", 10)
        with torch.inference_mode():
            sample_custom(
                self._model, start, cfg, sampler, sigmas, positive, negative, torch.zeros_like(start), disable_pbar=True
            )
        return self.answers


def test_every_condition_gets_what_it_would_get_alone(dbcache, report):
    """Areas, a mask, several conditions, cond and uncond, joined as ComfyUI likes: against runs of one condition.

    ComfyUI adds a condition for each area to the side that has none there.
    """
    start = noise(*WAN.latent, seed=1)
    model = dbcache(build(WAN), **FORCED)
    masked = node_helpers.conditioning_set_values(CONDS["masked"], MASK)
    positive = [*CONDS["whole"], *somewhere("left", "left"), *somewhere("right", "right"), *masked]
    together = Recorded(model).run(start, positive, CONDS["negative"], 3.0)
    hits = [call["step"] for call in report(model)["calls"] if call["outcome"] == "hit"]
    assert set(hits) == {3, 4, 6, 7, 9}
    assert {("whole", "all"), ("left", "left"), ("right", "right"), ("masked", "all")} < together.keys()
    assert {("negative", "all"), ("negative", "left"), ("negative", "right")} < together.keys()
    for (name, place), answers in together.items():
        single = Recorded(dbcache(build(WAN), **FORCED)).run(start, somewhere(name, place), [], 1.0)
        assert single.keys() == {(name, place)}
        alone = single[name, place]
        assert len(alone) == len(answers) == 10
        for one, other in zip(alone, answers, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_a_batch_gets_what_its_items_would_get(dbcache, batch, calibrator):
    """Hits forced at the same steps: cond and uncond joined, two and three pictures, against one at a time."""
    settings = {**FORCED, "calibrator": calibrator}
    start = noise(batch, *WAN.latent[1:], seed=1)
    together = Recorded(dbcache(build(WAN), **settings), batch).run(start, CONDS["whole"], CONDS["negative"], 3.0)
    for item in range(batch):
        model = dbcache(build(WAN), **settings)
        alone = Recorded(model).run(start[item : item + 1], CONDS["whole"], CONDS["negative"], 3.0)
        for name in ("whole", "negative"):
            for one, other in zip(alone[name, "all"], together[name, "all"], strict=True):
                assert torch.allclose(one[0], other[item], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", [FLUX, WAN], ids=lambda family: family.name)
def test_perturbed_attention_has_its_own_branch(dbcache, offload, report, family):
    """The same condition once more with an attention replaced, as ComfyUI's PerturbedAttentionGuidance does."""
    import comfy_extras.nodes_pag

    node = comfy_extras.nodes_pag.PerturbedAttentionGuidance
    run_node = getattr(node, "execute", None) or node().patch

    def guided(model):
        result = run_node(model, 2.0)
        return result[0] if isinstance(result, tuple) else result.result[0]

    plain = build(family)
    expected = sample(guided(plain), family)
    model = guided(dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.0}))
    assert torch.equal(sample(model, family), expected)
    model = guided(dbcache(offload(plain, resident_blocks=1), **FORCED))
    assert sample(model, family).isfinite().all()
    calls = report(model)["calls"]
    assert {call["branch"] for call in calls} == {"uncond+cond", "cond"}
    for branch in ("uncond+cond", "cond"):
        outcomes = [call["outcome"] for call in calls if call["branch"] == branch]
        assert outcomes == ["miss"] * 3 + ["hit", "hit", "miss"] * 3
    assert report(model)["totals"]["bytes_wasted"] == 0
    assert torch.equal(sample(guided(plain), family), expected)


def test_an_attention_patch_acts_in_every_block_that_runs(dbcache):
    """``attn1_patch`` and friends live inside the blocks: with no hits nothing changes, and it goes on acting."""
    plain = build(FLUX)
    seen = []

    def patch(q, k, v, pe=None, attn_mask=None, extra_options=None):
        seen.append(extra_options)
        return {"q": q * 1.02, "k": k, "v": v, "pe": pe, "attn_mask": attn_mask}

    plain.set_model_patch(patch, "attn1_patch")
    expected = sample(plain, FLUX)
    per_run = len(seen)
    if not per_run:
        pytest.skip("this ComfyUI's Flux has no attention patches")
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.0}), FLUX), expected)
    assert len(seen) == 2 * per_run
    sample(dbcache(plain, **FORCED), FLUX)
    assert per_run > len(seen) - 2 * per_run > 0


def test_an_attention_override_is_unaffected(dbcache, offload):
    """``optimized_attention_override``, as SageAttention nodes set it: called as often as blocks run."""
    plain = build(WAN)
    calls = []

    def override(attention, *args, **kwargs):
        calls.append(1)
        return attention(*args, **kwargs)

    model = plain.clone()
    model.model_options["transformer_options"]["optimized_attention_override"] = override
    expected = sample(model, WAN)
    whole = len(calls)
    if not whole:
        pytest.skip("this ComfyUI has no attention override")
    assert torch.equal(sample(offload(model, resident_blocks=0), WAN), expected)
    assert len(calls) == 2 * whole
    sample(dbcache(offload(model, resident_blocks=0), **FORCED), WAN)
    ran = (len(calls) - 2 * whole) / (whole / len(blocks_of(plain, WAN)) / 12)
    # 3 warm-up steps and 3 in between computed whole, 6 cached with the first and the last block
    assert ran == 6 * len(blocks_of(plain, WAN)) + 6 * 2
