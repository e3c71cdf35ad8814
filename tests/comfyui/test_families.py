"""Both nodes on every DiT family that this ComfyUI ships, each as a tiny random model of ComfyUI's own classes."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import comfy.model_management
import pytest
import torch
from rigs.family_rig import FORCED, HITS, ByHand, build, sample
from rigs.tiny_families import TINY_FAMILIES
from rigs.tiny_models import noise
from rigs.tiny_rarer_families import RARER_FAMILIES


class Case:
    """One family's tiny model, with the results that several tests compare with."""

    def __init__(self, family, pack) -> None:
        self.family = family
        self._pack = pack
        self.plain = build(family)

    @cached_property
    def stack(self):
        return self._pack.module("comfy_adapter.families.find").find_stack(self.plain.model.diffusion_model)

    @cached_property
    def expected(self) -> torch.Tensor:
        return sample(self.plain, self.family)

    @cached_property
    def cached(self) -> torch.Tensor:
        return sample(self.dbcache(), self.family)

    def dbcache(self, model=None, **settings):
        return self._pack.execute("DiTDBCache", model or self.plain, **{**FORCED, **settings})[0]

    def offload(self, model=None, **settings):
        return self._pack.execute("DiTLayerwiseOffload", model or self.plain, **settings)[0]


@pytest.fixture(scope="module", params=(*TINY_FAMILIES, *RARER_FAMILIES), ids=lambda family: family.name)
def case(request, pack):
    return Case(request.param, pack)


@pytest.fixture
def cached_case(case):
    if not case.family.cached:
        pytest.skip("DBCache is refused for this family")
    return case


def counted(stack, counts: list[int]) -> list:
    """Count in ``counts`` how often each block runs, whatever stands in for its forward."""
    handles = []
    for index, block in enumerate(stack.blocks):
        inner = next(module for module in block.modules() if module is not block and not list(module.children()))

        def count(module, args, index=index):
            counts[index] += 1

        handles.append(inner.register_forward_pre_hook(count))
    return handles


def test_offload_changes_no_bit(case, report):
    assert case.expected.isfinite().all()
    assert case.expected.std() > 0
    for resident in (0, 2):
        model = case.offload(resident_blocks=resident)
        for _ in range(2 - bool(resident)):
            assert torch.equal(sample(model, case.family), case.expected)
        totals = report(model)["totals"]
        assert totals["bytes_streamed"] > 0
        assert totals["bytes_wasted"] == 0
        assert totals["blocks_skipped"] == 0


def test_no_hits_change_no_bit(cached_case, report):
    """A threshold that nothing stays below: everything is kept and compared, each stream of the table on its own."""
    model = cached_case.dbcache(residual_diff_threshold=1e-9)
    assert torch.equal(sample(model, cached_case.family), cached_case.expected)
    run = report(model)
    assert run["totals"]["hits"] == 0
    assert len(run["notes"]) == 1  # that nothing was cached, and no other
    assert {name for call in run["calls"] for name in call["diffs"]} == set(cached_case.stack.family.judged)


@pytest.mark.parametrize("bn", [0, 1])
def test_hits_equal_the_cache_written_out_by_hand(cached_case, report, bn, monkeypatch):
    """And the blocks that are skipped do not run."""
    case = cached_case
    stack, last = case.stack, len(case.stack.blocks) - 1
    monkeypatch.setitem(FORCED, "Bn", bn)
    expected = sample(ByHand(stack).on(case.plain), case.family)
    counts = [0] * len(stack.blocks)
    handles = counted(stack, counts)
    model = case.dbcache()
    cached = sample(model, case.family)
    for handle in handles:
        handle.remove()
    assert torch.equal(cached, expected)
    assert not torch.equal(cached, case.expected)
    run = report(model)
    assert {call["step"] for call in run["calls"] if call["outcome"] == "hit"} == set(HITS)
    for call in run["calls"]:
        assert call["blocks_run"] == ([0, *([last] * bn)] if call["step"] in HITS else [*range(last + 1)])
    assert run["notes"] == []
    computed = sum(call["outcome"] == "miss" for call in run["calls"])
    every = [counts[0] // len(run["calls"]) * count for count in (len(run["calls"]), computed)]
    assert counts == [every[0], *[every[1]] * (last - 1), every[0 if bn else 1]]


def test_both_nodes_in_either_order(cached_case, report):
    case = cached_case
    one = case.offload(case.dbcache(), resident_blocks=2)
    other = case.dbcache(case.offload(resident_blocks=2))
    for model in (one, other, other):
        assert torch.equal(sample(model, case.family), case.cached)
        for call in report(model)["calls"]:
            assert call["bytes_wasted"] == 0
            assert call["outcome"] == "miss" or call["bytes_streamed"] == 0


def test_an_interrupt_leaves_nothing_behind(cached_case):
    case = cached_case
    assert case.expected is not None
    before = [dict(vars(block)) for block in case.stack.blocks]
    model = case.dbcache(case.offload(resident_blocks=1))

    def interrupt(step, *_):
        if step == HITS[1]:
            raise comfy.model_management.InterruptProcessingException()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(model, case.family, callback=interrupt)
    assert [dict(vars(block)) for block in case.stack.blocks] == before
    assert torch.equal(sample(model, case.family), case.cached)
    assert torch.equal(sample(case.plain, case.family), case.expected)


def test_prompts_of_different_length(case, report):
    if not case.family.varies:
        pytest.skip("this family's prompts have one length")
    lengths = {"tokens": (8, 12)}
    expected = sample(case.plain, case.family, **lengths)
    offloaded = case.offload(resident_blocks=1)
    if not case.family.cached:
        assert torch.equal(sample(offloaded, case.family, **lengths), expected)
        return
    model = case.dbcache(offloaded, residual_diff_threshold=0.0)
    assert torch.equal(sample(model, case.family, **lengths), expected)
    model = case.dbcache(offloaded)
    assert sample(model, case.family, **lengths).isfinite().all()
    calls = report(model)["calls"]
    for branch in {call["branch"] for call in calls}:
        assert [call["step"] for call in calls if call["branch"] == branch and call["outcome"] == "hit"] == [*HITS]


def test_the_face_that_wan_animate_adds_between_blocks(pack, report):
    """Also in cached steps, once: its encoder is too big to be tried more than this."""
    animate = next(family for family in TINY_FAMILIES if family.name == "wan22_animate")
    face = {"face_video_pixels": noise(1, 3, 1, 512, 512), "pose_video_latent": noise(1, 16, 1, 8, 8)}
    case = Case(dataclasses.replace(animate, latent=(1, 16, 1, 8, 8), extras=face), pack)
    expected = sample(ByHand(case.stack).on(case.plain), case.family)
    model = case.dbcache(case.offload(resident_blocks=1))
    assert torch.equal(sample(model, case.family), expected)
    assert report(model)["totals"]["hits"] > 0
    without = dataclasses.replace(case.family, extras={"pose_video_latent": face["pose_video_latent"]})
    assert not torch.equal(sample(model, without), expected)
