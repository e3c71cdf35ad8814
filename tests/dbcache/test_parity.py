"""The gate against cache-dit's own cached blocks on the same out-of-place stack: same decisions, same bits."""

from __future__ import annotations

import functools

import cache_dit
import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS as TABLE
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.dbcache.rules import DBCacheSettings
from pack.dbcache.session import DBCacheSession
from pack.stack.call import StackCall
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout

STEPS = 20
TOTAL = 12
WIDTH = 16


class Block(torch.nn.Module):
    def __init__(self, seed: int, in_place: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(WIDTH, WIDTH, generator=generator) * 0.1
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.in_place = in_place

    def forward(self, hidden_states, vec):
        change = torch.tanh((hidden_states + vec) @ self.weight)
        return hidden_states.add_(change) if self.in_place else hidden_states + change


class Stack(torch.nn.Module):
    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(index, in_place) for index in range(TOTAL)])

    def forward(self, x, vec):
        for block in self.blocks:
            x = block(x, vec)
        return x


CALIBRATORS = {
    "none": ("none", 1, lambda: None),
    "taylorseer": ("taylorseer", 1, cache_dit.TaylorSeerCalibratorConfig),
    "taylorseer of order 2": ("taylorseer", 2, lambda: cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=2)),
    "foca": ("foca", 1, cache_dit.FoCaCalibratorConfig),
    "dmd": ("dmd", 1, cache_dit.DMDCalibratorConfig),
}
"""The setting, its order, and cache-dit's config for the same."""


def inputs(step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    start, change = (torch.randn(1, 6, WIDTH, generator=generator) for _ in range(2))
    return (start + 0.03 * step * change).to(dtype), torch.full((1, 1, WIDTH), 0.05 * step, dtype=dtype)


def theirs(
    fn: int, bn: int, threshold: float, calibrator: str, scm: str, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[int]]:
    stack = Stack().to(dtype)
    mask = None if scm == "none" else cache_dit.steps_mask(mask_policy=scm, total_steps=STEPS)
    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=fn,
        Bn_compute_blocks=bn,
        residual_diff_threshold=threshold,
        max_warmup_steps=3,
        max_continuous_cached_steps=3,
        num_inference_steps=STEPS,
        steps_computation_mask=mask,
    )
    adapter = cache_dit.BlockAdapter(
        pipe=None,
        transformer=stack,
        blocks=stack.blocks,
        forward_pattern=cache_dit.ForwardPattern.Pattern_3,
        check_forward_pattern=False,
        has_separate_cfg=False,
    )
    cache_dit.enable_cache(adapter, cache_config=config, calibrator_config=CALIBRATORS[calibrator][2]())
    outputs = [stack(*inputs(step, dtype)) for step in range(STEPS)]
    return outputs, cache_dit.summary(stack, logging=False)[0].cached_steps


def ours(
    fn: int,
    bn: int,
    threshold: float,
    calibrator: str,
    scm: str,
    in_place: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[torch.Tensor], list[int]]:
    stack = Stack(in_place).to(dtype)
    name, order, _ = CALIBRATORS[calibrator]
    settings = DBCacheSettings(
        preset="custom",
        fn=fn,
        bn=bn,
        threshold=threshold,
        warmup_steps=3,
        max_continuous=3,
        calibrator=name,
        calibrator_order=order,
        scm=scm,
    )
    segment = Segment((HiddenState("hidden", "hidden_states", position=0),))
    session = DBCacheSession(settings.rules(TOTAL), STEPS, StackLayout((PlacedSegment(segment, 0, TOTAL),)))
    outputs, hits = [], []
    for step in range(STEPS):
        call = StackCall(stack.blocks, CallGate(session, CallInfo(step=step, sigma=0.0)))
        result = call.run(functools.partial(stack, *inputs(step, dtype)))
        outputs.append(result.output)
        if result.outcome.hit:
            hits.append(step)
    return outputs, hits


@pytest.mark.parametrize("scm", ["none", "medium"])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("threshold", [0.06, 0.12, 0.3])
@pytest.mark.parametrize(("fn", "bn"), [(1, 0), (1, 2), (4, 4)])
@torch.no_grad()
def test_same_decisions_and_same_bits(fn, bn, threshold, calibrator, scm):
    expected, cached_steps = theirs(fn, bn, threshold, calibrator, scm)
    outputs, hits = ours(fn, bn, threshold, calibrator, scm)
    assert hits == cached_steps
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    in_place, hits_in_place = ours(fn, bn, threshold, calibrator, scm, in_place=True)
    assert hits_in_place == hits
    assert all(torch.equal(a, b) for a, b in zip(in_place, outputs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("calibrator", ["none", "taylorseer"])
@pytest.mark.parametrize("threshold", [0.06, 0.12, 0.3])
@torch.no_grad()
def test_it_is_so_in_half_precision(threshold, calibrator, dtype):
    expected, cached_steps = theirs(1, 0, threshold, calibrator, "none", dtype)
    outputs, hits = ours(1, 0, threshold, calibrator, "none", dtype=dtype)
    assert hits == cached_steps
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_the_calibrators_above_are_all_that_are_cache_dits():
    packs = {name for name, choice in TABLE.items() if choice.forecaster is not None}
    assert {name for name, _, _ in CALIBRATORS.values()} == set(TABLE) - packs


def test_the_thresholds_above_give_both_hits_and_misses():
    counts = [len(ours(1, 0, threshold, "none", "none")[1]) for threshold in (0.06, 0.12, 0.3)]
    assert 0 < counts[0] < counts[2]


def test_the_calibrators_above_differ():
    """So that the comparison tells them apart."""
    last = [ours(1, 0, 0.3, calibrator, "none")[0][-1] for calibrator in CALIBRATORS]
    for index, output in enumerate(last):
        assert not any(torch.equal(output, other) for other in last[:index])
