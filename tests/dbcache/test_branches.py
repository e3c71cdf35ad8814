"""Branches of a run never mix: conditions, shapes and settings each have a cache of their own."""

from __future__ import annotations

import pytest
import torch
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_shape
def test_branches_never_mix(shape):
    """Two very different conditions through one model, in changing order: each equals its own single run."""
    alone = {}
    for name, seed in (("a", 1), ("b", 99)):
        rig = GateRig(shape, custom(warmup_steps=2, max_continuous=2))
        alone[name] = [rig.call(step, branch=name, seed=seed)[0] for step in range(10)]
    rig = GateRig(shape, custom(warmup_steps=2, max_continuous=2))
    for step in range(10):
        order = [("a", 1), ("b", 99)]
        for name, seed in order if step % 3 else reversed(order):
            output, _ = rig.call(step, branch=name, seed=seed)
            assert torch.equal(output, alone[name][step])
    assert {branch.name for branch in rig.session._branches.values()} == {"cond", "cond #2"}


def test_a_branch_that_appears_late_starts_with_a_computed_call():
    rig = GateRig("in_place", custom(warmup_steps=1))
    for step in range(5):
        rig.call(step, branch="a")
    output, outcome = rig.call(5, branch="new", seed=9)
    assert (outcome.hit, outcome.reason) == (False, "first call of the branch")
    assert outcome.branch == "cond #2"
    assert torch.equal(output, rig.plain(5, seed=9))
    assert rig.call(6, branch="new", seed=9)[1].hit


def test_a_branch_that_was_away_comes_back():
    rig = GateRig("in_place", custom(warmup_steps=1, max_continuous=2))
    rig.call(0, branch="a")
    assert rig.call(1, branch="a")[1].hit
    for step in range(2, 7):
        rig.call(step, branch="b")
    assert [rig.call(step, branch="a")[1].hit for step in (7, 8, 9)] == [True, True, False]


def test_shape_is_part_of_the_branch():
    rig = GateRig("in_place", custom(warmup_steps=1))
    for step in range(3):
        rig.call(step)
    output, outcome = rig.call(3, x=rig.x(3)[:, :6])
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(3, x=rig.x(3)[:, :6]))
    assert rig.call(4)[1].hit


def test_settings_of_the_call_are_part_of_the_branch():
    rig = GateRig("in_place", custom(warmup_steps=1))
    rig.call(0)
    assert rig.call(1)[1].hit
    assert not rig.call(1, setting=("window", (0, 1)))[1].hit
    assert rig.call(2)[1].hit
