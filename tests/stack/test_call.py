"""The one loop: the gate's verdict steers the copies, an exact second try, nothing left behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pack.stack.call import StackCall
from pack.stack.outlook import Outlook, Plan
from rigs.scripted_gate import ScriptedGate

TOTAL = 4


class Block(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Engine:
    """Notes what it is told; fails where it is asked to."""

    def __init__(self, fail_in=None):
        self.heard = []
        self._fail_in = fail_in

    def begin_call(self, outlook, copies):
        self.heard.append(("begin", outlook))
        copies.streamed += 5

    def announce(self, plan):
        self.heard.append(("announce", plan))

    def run_block(self, index, forward, args, kwargs):
        if index == self._fail_in:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    def end_call(self):
        self.heard.append(("end",))


class LostGate(ScriptedGate):
    """Skips a block and then finds that it should not have."""

    must_recompute = True


def stack():
    blocks = [Block() for _ in range(TOTAL)]

    def forward():
        x = torch.zeros(1)
        for block in blocks:
            x = block(x)
        return x

    return blocks, forward


def test_the_verdict_reaches_listeners_then_the_engine():
    blocks, forward = stack()
    engine, heard = Engine(), []
    outlook = Outlook(Plan((0,), complete=False), next_head=1, always=(0, 3))
    listener = lambda to_run, ran: (heard.append((to_run, list(ran))), engine.heard.append("listener"))  # noqa: E731
    result = StackCall(blocks, ScriptedGate((0, 3), (3,)), engine, outlook, [listener]).run(forward)
    assert result.output == 2
    assert result.ran == [0, 3]
    assert result.copies.streamed == 5
    assert heard == [((3,), [0])]
    assert engine.heard == [("begin", outlook), "listener", ("announce", Plan((3,))), ("end",)]


def test_without_gate_and_engine_every_block_runs():
    blocks, forward = stack()
    result = StackCall(blocks).run(forward)
    assert (result.output, result.outcome, result.ran) == (TOTAL, None, [0, 1, 2, 3])


def test_a_lost_call_is_made_once_more_without_the_gate():
    blocks, forward = stack()
    engine = Engine()
    outlook = Outlook(Plan((0,), complete=False), next_head=1, always=(0, 3), computed_later=True)
    result = StackCall(blocks, LostGate((0, 3), (3,)), engine, outlook).run(forward)
    assert result.output == TOTAL
    assert result.ran == [0, 3, 0, 1, 2, 3]
    assert result.copies.streamed == 10
    begun = [what[1] for what in engine.heard if what[0] == "begin"]
    assert begun == [outlook, Outlook(next_head=1)]


@pytest.mark.parametrize("at", [0, 2])
def test_an_interrupt_takes_everything_off(at):
    blocks, forward = stack()
    engine = Engine(fail_in=at)
    with pytest.raises(KeyboardInterrupt):
        StackCall(blocks, ScriptedGate(range(TOTAL)), engine).run(forward)
    assert engine.heard[-1] == ("end",)
    assert not any("forward" in vars(block) for block in blocks)


def test_what_the_gate_says_after_the_model_returned_is_not_passed_on():
    blocks, forward = stack()
    engine = Engine()

    class Late(ScriptedGate):
        def finish(self):
            self._announce((0, 1, 2, 3))

    StackCall(blocks, Late(range(TOTAL)), engine).run(forward)
    assert [what[0] for what in engine.heard] == ["begin", "end"]


def test_no_circle_keeps_the_gate():
    blocks, forward = stack()
    gc.collect()
    gc.disable()
    try:
        gate = ScriptedGate((0,), (3,))
        watched = weakref.ref(gate)
        StackCall(blocks, gate).run(forward)
        del gate
        assert watched() is None
    finally:
        gc.enable()
