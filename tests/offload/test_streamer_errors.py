"""The streaming engine when something raises, ends early or finds no room: nothing is lost and nothing stays."""

from __future__ import annotations

import itertools

import pytest
import torch
from pack.stack.hooks import HookManager
from pack.stack.outlook import Outlook, Plan
from rigs.streaming_rig import BLOCK_BYTES, WIDTH, StreamingRig


def test_a_call_is_over_even_when_a_copy_for_the_next_one_fails():
    rig = StreamingRig(6, streamed=range(1, 6), prefetch=1)
    plan, start, block = Plan(tuple(range(1, 6))), rig.device.start_copy, rig.blocks[5]

    def fail(*_):
        raise KeyboardInterrupt

    check = block.on_call
    block.on_call = lambda: (check(), setattr(rig.device, "start_copy", fail))
    rig.streamer.release_slots()
    with pytest.raises(KeyboardInterrupt):
        rig.call(plan=plan, next_head=1, always=(0,))
    assert not rig.streamer.active
    block.on_call, rig.device.start_copy = check, start
    rig.check_at_rest()
    assert torch.equal(rig.call(plan=plan, next_head=1, always=(0,)), rig.expected())


@pytest.mark.parametrize("verb", ["start_copy", "copy_stamp", "stamp", "wait"])
@pytest.mark.parametrize("at", range(1, 7))
def test_no_slot_is_lost_wherever_the_device_raises(verb, at):
    """Also between a copy and what is noted of it: a slot lost is one too few in every later call."""
    rig = StreamingRig(6, streamed=(0, 1, 3, 4, 5), prefetch=1)
    own, calls = getattr(rig.device, verb), itertools.count(1)

    def fail(*args):
        if next(calls) == at:
            raise KeyboardInterrupt
        return own(*args)

    setattr(rig.device, verb, fail)

    def twice():
        return [rig.call() for _ in range(2)]

    with pytest.raises(KeyboardInterrupt):
        twice()
    setattr(rig.device, verb, own)
    assert all(torch.equal(output, rig.expected()) for output in twice())


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), torch.OutOfMemoryError("x"), RuntimeError("x")])
@pytest.mark.parametrize("index", range(8))
def test_an_exception_in_any_block_leaves_a_clean_engine(index, exception):
    rig = StreamingRig(8, streamed=(0, 1, 3, 4, 6, 7), prefetch=2)
    check = rig.blocks[index].on_call

    def fail():
        check()
        raise exception

    rig.blocks[index].on_call = fail
    with pytest.raises(type(exception)) as caught:
        rig.call()
    assert caught.value is exception
    rig.check_at_rest()
    assert not rig.streamer.active
    assert not any(rig.streamer.holds(block) for block in range(2, 8))
    rig.blocks[index].on_call = check
    assert torch.equal(rig.call(), rig.expected())
    assert rig.streamer.release_slots() == 3 * BLOCK_BYTES
    assert rig.streamer.slot_bytes == 0
    assert torch.equal(rig.call(), rig.expected())


class Raising:
    """An interceptor between the hooks and the streamer that raises before or after a block's forward."""

    def __init__(self, index, when):
        self.index, self.when = index, when

    def run_block(self, index, forward, args, kwargs):
        if (index, self.when) == (self.index, "before"):
            raise KeyboardInterrupt
        result = forward(*args, **kwargs)
        if (index, self.when) == (self.index, "after"):
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("outside", [True, False], ids=["outside the streamer", "inside"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("index", range(8))
def test_an_exception_beside_any_block_leaves_a_clean_engine(index, when, outside):
    rig = StreamingRig(8, streamed=(0, 1, 3, 4, 6, 7), prefetch=2)
    raising = Raising(index, when)
    rig.streamer.begin_call(Outlook(None, next_head=8))
    order = [raising, rig.streamer] if outside else [rig.streamer, raising]

    def run():
        x = torch.linspace(-1, 1, WIDTH)
        with HookManager(rig.blocks, order):
            for block in rig.blocks:
                x = block(x)

    with pytest.raises(KeyboardInterrupt):
        run()
    rig.streamer.end_call()
    rig.check_at_rest()
    assert not any(rig.streamer.holds(block) for block in range(2, 8))
    assert torch.equal(rig.call(), rig.expected())


def test_slots_stay_while_a_call_is_in_progress():
    rig = StreamingRig(4)
    freed = []
    rig.blocks[2].on_call = lambda: freed.append(rig.streamer.release_slots())
    rig.call()
    assert freed == [0]
    assert rig.streamer.slot_bytes == 2 * BLOCK_BYTES


def test_slots_are_given_back_only_after_the_copies_into_them_have_arrived():
    rig = StreamingRig(6, prefetch=2)
    rig.call()
    assert rig.device._pending
    rig.streamer.release_slots()
    assert not rig.device._pending
    assert rig.device.host_time == rig.device.bus_time


def test_an_engine_retired_during_a_call_ends_with_it():
    rig = StreamingRig(6, prefetch=2)
    order = []

    def retire():
        if not order:
            rig.streamer.retire(lambda: order.append(len(rig.device._pending)))
            order.append("still running")

    check = rig.blocks[2].on_call
    rig.blocks[2].on_call = lambda: (check(), retire())
    assert torch.equal(rig.call(), rig.expected())
    # only once no copy was under way any more
    assert order == ["still running", 0]
    assert rig.streamer.slot_bytes == 0


def test_a_call_that_fails_before_its_first_block_is_over():
    rig = StreamingRig(6, prefetch=2)
    start = rig.device.start_copy

    def fail(*_):
        raise KeyboardInterrupt

    rig.device.start_copy = fail
    with pytest.raises(KeyboardInterrupt):
        rig.call()
    assert not rig.streamer.active
    rig.device.start_copy = start
    assert torch.equal(rig.call(), rig.expected())
    assert rig.streamer.release_slots() == 3 * BLOCK_BYTES


def test_fewer_slots_where_there_is_no_room_and_an_error_where_there_is_none():
    rig = StreamingRig(6, prefetch=3)
    rig.device._capacity = 2 * BLOCK_BYTES
    assert torch.equal(rig.call(), rig.expected())
    assert rig.streamer.peak_slot_bytes == 2 * BLOCK_BYTES
    rig = StreamingRig(6, prefetch=3)
    rig.device._capacity = BLOCK_BYTES - 1
    with pytest.raises(RuntimeError, match="Lower resident_blocks or vram_budget_gb"):
        rig.call()
    assert not rig.streamer.active
