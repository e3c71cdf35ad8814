"""When a gated call hits: threshold, warm-up, caps, masks, window, and a change of control."""

from __future__ import annotations

import pytest
import torch
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.stack.hooks import HookManager
from rigs.gate_rig import GateRig, custom


def test_threshold_decides():
    rig = GateRig("out_of_place", custom(threshold=1.0, warmup_steps=1))
    rig.call(0)
    probe = GateRig("out_of_place", custom(threshold=0.999999, warmup_steps=1))
    probe.call(0)
    diff = probe.call(1)[1].diffs["video"]
    for threshold, hit in ((diff * 0.99, False), (diff * 1.01, True)):
        rig = GateRig("out_of_place", custom(threshold=threshold, warmup_steps=1))
        rig.call(0)
        assert rig.call(1)[1].hit is hit


@pytest.mark.parametrize("warmup", [0, 1, 3, 5])
def test_warm_up_is_counted_in_steps(warmup):
    rig = GateRig("in_place", custom(warmup_steps=warmup))
    hits = []
    for step in range(8):
        hits += [rig.call(step)[1].hit for _ in range(2)]
    # two evaluations a step; the very first call has nothing to compare with
    assert hits.index(True) == max(1, 2 * warmup)
    assert all(hits[max(1, 2 * warmup) :])


@pytest.mark.parametrize("cap", [0, 1, 2, 5])
@pytest.mark.parametrize("evaluations", [1, 2])
def test_continuous_cap_counts_steps(cap, evaluations):
    rig = GateRig("in_place", custom(warmup_steps=1, max_continuous=cap))
    steps = []
    for step in range(12):
        outcomes = {rig.call(step)[1].hit for _ in range(evaluations)}
        steps.append(outcomes)
    pattern = [{False}] + [{index % (cap + 1) != cap} for index in range(11)]
    assert steps == (pattern if cap else [{False}] * 12)


def test_cap_on_all_cached_steps():
    rig = GateRig("in_place", custom(warmup_steps=1, max_cached=3))
    outcomes = [rig.call(step)[1] for step in range(8)]
    assert [outcome.hit for outcome in outcomes] == [False, True, True, True, False, False, False, False]
    assert outcomes[-1].reason == "cap: 3 cached steps in all"


def test_threshold_zero_never_hits_and_keeps_nothing():
    rig = GateRig("double_single", custom(threshold=0.0))
    for step in range(4):
        output, outcome = rig.call(step)
        assert (outcome.hit, outcome.reason) == (False, "threshold is 0")
        assert torch.equal(output, rig.plain(step))


@pytest.mark.parametrize("policy", ["dynamic", "static"])
def test_step_masks(policy):
    import cache_dit.caching

    mask = cache_dit.caching.steps_mask(mask_policy="fast", total_steps=12)
    threshold = 1.0 if policy == "dynamic" else 0.0
    rig = GateRig("in_place", custom(warmup_steps=0, threshold=threshold, scm="fast", scm_policy=policy))
    outcomes = [rig.call(step)[1] for step in range(12)]
    assert [int(not outcome.hit) for outcome in outcomes] == mask
    assert rig.call(12)[1].reason == "mask: beyond the schedule"


def test_a_static_mask_cannot_hit_before_anything_was_computed():
    rig = GateRig("in_place", custom(warmup_steps=0, threshold=0.0, scm="fast", scm_policy="static"))
    cached = next(step for step in range(12) if rig.call(step)[1].hit)
    output, outcome = rig.call(cached, branch="late")
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(cached))


def test_a_closed_window_computes():
    rig = GateRig("in_place", custom(warmup_steps=0))
    rig.call(0)
    output, outcome = rig.call(1, closed="before start_percent")
    assert (outcome.hit, outcome.reason) == (False, "before start_percent")
    assert torch.equal(output, rig.plain(1))
    assert rig.call(2)[1].hit


def test_a_change_of_control_makes_the_next_call_a_miss():
    rig = GateRig("double_single", custom(warmup_steps=1))
    control = {"input": [torch.ones(1, 10, 16)] * 3}
    rig.call(0)
    assert rig.call(1)[1].hit
    output, outcome = _with_signature(rig, 3, control, ("input", 3))
    assert (outcome.hit, outcome.reason) == (False, "control input changed")
    assert torch.equal(output, rig.plain(3, control=control))
    assert _with_signature(rig, 4, control, ("input", 3))[1].hit
    assert rig.call(5)[1].reason == "control input changed"


def _with_signature(rig, step, control, signature):
    gate = CallGate(rig.session, CallInfo(step=step, sigma=0.5, conds=("a",), kinds=(0,), control=signature))
    with HookManager(rig.blocks, [gate]):
        output = rig.plain(step, control=control)
    return output, gate.finish()
