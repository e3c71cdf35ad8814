"""Every preset caches steps of a run of 20 along a smooth trajectory, and never more than it says."""

from __future__ import annotations

import pytest
import torch
from pack.dbcache.rules import DBCacheSettings
from rigs.gate_rig import GateRig
from rigs.toy_stacks import SHAPES

STEPS = 20
WARM_UP = {"quality": 8, "balanced": 4, "fast": 2}
IN_A_ROW = {"quality": 2, "balanced": 2, "fast": 16}
THRESHOLD = {"quality": 0.08, "balanced": 0.12, "fast": 0.24}
STANDING_STILL = {
    "quality": "........HH.HH.HH.HH.",
    "balanced": "....HH.HH.HH.HH.HH.H",
    "fast": "..HHHHHHHHHHHHHHHH.H",
}

each_preset = pytest.mark.parametrize("preset", STANDING_STILL)
each_shape = pytest.mark.parametrize("shape", SHAPES)


@torch.no_grad()
def outcomes_of(shape, preset, at=None):
    """Every call's outcome along a trajectory that moves a little each step, or stands still ``at`` one of them."""
    rig = GateRig(shape, DBCacheSettings(preset=preset, calibrator="none"), STEPS)
    return [rig.call(step, at=at)[1] for step in range(STEPS)]


def pattern(outcomes) -> str:
    return "".join("H" if outcome.hit else "." for outcome in outcomes)


@each_shape
@each_preset
def test_a_moving_trajectory_is_cached_within_the_caps(shape, preset):
    outcomes = outcomes_of(shape, preset)
    hits = pattern(outcomes)
    assert 3 <= hits.count("H") <= STANDING_STILL[preset].count("H")
    assert hits.startswith("." * WARM_UP[preset])
    assert "H" * (IN_A_ROW[preset] + 1) not in hits
    for outcome in outcomes:
        if outcome.diffs:
            assert (max(outcome.diffs.values()) < THRESHOLD[preset]) == outcome.hit
    assert any(outcome.diffs for outcome in outcomes if outcome.hit)


@each_shape
@each_preset
def test_one_that_stands_still_is_cached_up_to_the_caps(shape, preset):
    assert pattern(outcomes_of(shape, preset, at=0)) == STANDING_STILL[preset]


@each_shape
def test_faster_presets_cache_more(shape):
    counts = [pattern(outcomes_of(shape, preset)).count("H") for preset in ("quality", "balanced", "fast")]
    assert counts == sorted(set(counts))
