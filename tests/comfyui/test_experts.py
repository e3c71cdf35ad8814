"""Experts for high and low noise: two models share one latent, each through ComfyUI's own KSamplerAdvanced node."""

from __future__ import annotations

import pytest
import torch
from rigs.real_comfy import FORCED, STEPS, WAN, build, cond

FIRST = 5
WARMUP = 2
CACHED = {**FORCED, "warmup_steps": WARMUP, "max_continuous_cached_steps": 1}


@pytest.fixture
def two_experts(comfy_nodes):
    """Sample the first steps with one model and the others with the other, of the noise that is left over."""

    def run(high, low):
        node = comfy_nodes.KSamplerAdvanced()

        def half(model, latent, noise, start, end, leftover):
            with torch.inference_mode():
                return node.sample(
                    model, noise, 1, STEPS, 3.0, "euler", "simple", cond(2), cond(3), latent, start, end, leftover
                )[0]

        latent = half(high, {"samples": torch.zeros(WAN.latent)}, "enable", 0, FIRST, "enable")
        return half(low, latent, "disable", FIRST, 10000, "disable")["samples"]

    return run


@pytest.fixture(scope="module")
def experts():
    return build(WAN, seed=0), build(WAN, seed=1)


def test_each_expert_has_a_run_of_its_own(two_experts, experts, dbcache, report):
    high, low = (dbcache(one, **CACHED) for one in experts)
    picture = two_experts(high, low)
    runs = report(high), report(low)
    assert [run["steps"] for run in runs] == [FIRST, STEPS - FIRST]
    for run in runs:
        assert [call["step"] for call in run["calls"]] == list(range(run["steps"]))
        expected = ["miss"] * WARMUP + (["hit", "miss"] * STEPS)[: run["steps"] - WARMUP]
        assert [call["outcome"] for call in run["calls"]] == expected
        assert {call["reason"] for call in run["calls"][:WARMUP]} == {"warm-up"}
    sigmas = [[call["sigma"] for call in run["calls"]] for run in runs]
    assert min(sigmas[0]) > max(sigmas[1])
    assert picture.isfinite().all()
    assert not torch.equal(picture, two_experts(*experts))


def test_without_hits_the_picture_is_the_plain_one(two_experts, experts, dbcache, report):
    expected = two_experts(*experts)
    models = [dbcache(one, **{**CACHED, "warmup_steps": 1000}) for one in experts]
    assert torch.equal(two_experts(*models), expected)
    assert [report(model)["totals"]["hits"] for model in models] == [0, 0]


def test_one_expert_cached_leaves_the_other_as_it_is(two_experts, experts, dbcache, report):
    """Only the second one is cached: what it is handed is the plain first one's, and a run before leaves no trace."""
    low = dbcache(experts[1], **CACHED)
    pictures = [two_experts(experts[0], low) for _ in range(2)]
    assert torch.equal(*pictures)
    assert [call["step"] for call in report(low)["calls"]] == list(range(STEPS - FIRST))
    assert report(low)["totals"]["hits"] > 0
