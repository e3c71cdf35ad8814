"""Calls that the gate cannot follow, blocks that fail, memory that runs out: the run goes on, exactly."""

from __future__ import annotations

import contextlib

import pytest
import torch
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.stack.hooks import HookManager
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_shape
@pytest.mark.parametrize("missing", [0, 2, 7])
def test_a_call_the_gate_cannot_follow_is_exact_and_its_branch_stops(shape, missing):
    """Blocks 0 (judged), 2 (first of the middle) and 7 (last of the middle) are needed."""
    rig = GateRig(shape, custom(fn=2, bn=0, warmup_steps=0))
    for step in range(3):
        assert rig.call(step)[1].hit == (step > 0)

    def call(step):
        gate = CallGate(rig.session, CallInfo(step=step, sigma=0.5, conds=("a",), kinds=(0,)))
        victim = rig.blocks[missing]
        with HookManager(rig.blocks, [gate]):
            hooked = vars(victim)["forward"]
            vars(victim)["forward"] = lambda *args, **kwargs: type(victim).forward(victim, *args, **kwargs)
            output = rig.plain(step)
            vars(victim)["forward"] = hooked
        return output, gate, gate.finish()

    output, gate, outcome = call(3)
    assert not outcome.hit
    assert outcome.reason.startswith("not supported: ")
    assert gate.must_recompute or torch.equal(output, rig.plain(3))
    assert len(rig.session.notes) == 1
    call(4)
    assert len(rig.session.notes) == 1
    output, outcome = rig.call(5)
    if missing:
        # the branch was known by then: it computes from now on
        assert outcome.reason.startswith("not supported: ")
    assert torch.equal(output, rig.plain(5)) or outcome.hit


def test_a_block_that_runs_twice_is_noticed():
    rig = GateRig("in_place", custom(warmup_steps=0))
    rig.call(0)
    twice = rig.blocks[4]
    gate = CallGate(rig.session, CallInfo(step=1, sigma=0.5, conds=("a",), kinds=(0,)))
    with HookManager(rig.blocks, [gate]):
        hooked = vars(twice)["forward"]
        vars(twice)["forward"] = lambda *args, **kwargs: hooked(hooked(*args, **kwargs), *args[1:], **kwargs)
        rig.plain(1)
        vars(twice)["forward"] = hooked
    outcome = gate.finish()
    assert "block 4 ran after block 4" in outcome.reason
    assert gate.must_recompute


@each_shape
@pytest.mark.parametrize("index", [0, 1, 4, 7])
def test_an_exception_leaves_a_session_that_goes_on_right(index, shape):
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=0))
    victim = rig.blocks[index]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    rig.call(0)
    vars(victim)["forward"] = fail
    with pytest.raises(KeyboardInterrupt):
        rig.call(1, branch="b")
    del vars(victim)["forward"]
    output, outcome = rig.call(1, branch="b")
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(1))
    assert rig.call(2, branch="b")[1].hit


@each_shape
@pytest.mark.parametrize("index", [1, 4, 7])
def test_a_computed_call_that_fails_half_way_invalidates_what_was_recorded_before(index, shape):
    """Its first blocks are newer than its middle: the two must not be combined."""
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=0))
    rig.call(0)
    assert rig.call(1)[1].hit
    victim = rig.blocks[index]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    vars(victim)["forward"] = fail
    with pytest.raises(KeyboardInterrupt):
        rig.call(2, closed="before start_percent")
    del vars(victim)["forward"]
    output, outcome = rig.call(3)
    assert (outcome.hit, outcome.reason) == (False, "first call of the branch")
    assert torch.equal(output, rig.plain(3))


@each_shape
@pytest.mark.parametrize("number", range(10))
def test_running_out_of_memory_for_the_cache_switches_it_off(shape, number, monkeypatch):
    """The n-th tensor made for the cache does not fit: the run goes on, exactly, and says so once."""
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=1, max_continuous=1))
    count = []

    def keeping():
        count.append(1)
        if len(count) == number + 1:
            raise torch.OutOfMemoryError("no room")
        return contextlib.nullcontext()

    rig.session.keeping = keeping
    off = False
    for step in range(8):
        output, outcome = rig.call(step)
        off = off or outcome.reason == "out of memory for the cache"
        if off:
            assert rig.gate.must_recompute or torch.equal(output, rig.plain(step))
            assert not outcome.hit
        if off and len(count) > number + 1:
            pytest.fail("the cache was used after it had been switched off")
    assert off
    assert sum("no room for the cache" in note for note in rig.session.notes) == 1
    assert not rig.session._branches


@each_shape
def test_blocks_captured_into_cuda_graphs_are_left_alone(shape, monkeypatch):
    rig = GateRig(shape, custom(warmup_steps=0))
    for step in range(3):
        assert rig.call(step)[1].hit == (step > 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    output, outcome = rig.call(3)
    assert outcome.reason == "not supported: blocks are captured into CUDA graphs"
    assert torch.equal(output, rig.plain(3))
