"""The streaming engine on the virtual device: late copies, NaN in unfinished buffers, a virtual clock."""

from __future__ import annotations

import itertools

import pytest
import torch
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import RaceError, VirtualDevice
from pack.offload.residency import streamed_blocks
from pack.offload.streamer import BlockStreamer
from pack.stack.call import StackCall
from pack.stack.hooks import HookManager
from pack.stack.outlook import Outlook, Plan
from rigs.scripted_gate import ScriptedGate

WIDTH = 8
BLOCK_BYTES = WIDTH * WIDTH * 4


class Block(torch.nn.Module):
    """One matrix; takes ``duration`` of the virtual compute stream."""

    def __init__(self, seed: int, device: VirtualDevice | None = None, duration: float = 1.0, width: int = WIDTH):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(width, WIDTH, generator=generator) / 3, requires_grad=False)
        self.device, self.duration = device, duration
        self.on_call = lambda: None

    def forward(self, x):
        self.on_call()
        if self.device is not None:
            self.device.compute(self.duration)
        return x + torch.tanh(x @ self.weight.t()[:, :WIDTH])


class Rig:
    """A stack, the virtual device, and the engine between them."""

    def __init__(self, total=8, *, streamed=None, prefetch=1, bandwidth=1e9, duration=1.0, widths=None):
        self.device = VirtualDevice(bandwidth)
        widths = widths or [WIDTH] * total
        self.blocks = [Block(i, self.device, duration, widths[i]) for i in range(total)]
        self.originals = [block.weight for block in self.blocks]
        self.checksums = [block.weight.clone() for block in self.blocks]
        self.streamed = tuple(range(total)) if streamed is None else tuple(streamed)
        weights = {index: BlockWeights(self.blocks[index]) for index in self.streamed}
        self.streamer = BlockStreamer(weights, total, self.device, prefetch)
        self.total = total
        self.ran: list[int] = []
        for index, block in enumerate(self.blocks):
            block.on_call = lambda index=index: self.check_running(index)

    def check_running(self, index):
        """A running block sees its own true weights, streamed ones not on the host."""
        weight = self.blocks[index].weight
        assert torch.equal(weight, self.checksums[index])
        assert (weight is self.originals[index]) == (index not in self.streamed)

    def check_at_rest(self):
        for block, original, checksum in zip(self.blocks, self.originals, self.checksums, strict=True):
            assert block.weight is original
            assert torch.equal(original, checksum)

    def call(self, run=None, *, plan=None, next_head=-1, always=None, later=True, x=None):
        run = range(self.total) if run is None else run
        next_head = self.total if next_head == -1 else next_head
        x = torch.linspace(-1, 1, WIDTH) if x is None else x
        before = self.streamer.counts.copy()
        announced = None
        if always is not None and plan is not None:
            plan, announced = Plan((0,), complete=False), plan.blocks
        elif always is not None:
            plan = Plan((0,), complete=False)
        outlook = Outlook(plan, next_head, tuple(always) if always is not None else None, later)
        read_back = [lambda blocks, ran: self.device.synchronise()]
        call = StackCall(self.blocks, ScriptedGate(run, announced), self.streamer, outlook, read_back)

        def forward():
            hidden = x
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

        result = call.run(forward)
        self.ran = result.ran
        self.check_at_rest()
        copied = self.streamer.counts.since(before)
        self.moved, self.wasted = copied.streamed, copied.wasted_bytes
        return result.output

    def expected(self, run=None, x=None):
        run = range(self.total) if run is None else run
        x = torch.linspace(-1, 1, WIDTH) if x is None else x
        for index in run:
            x = x + torch.tanh(x @ self.checksums[index].t()[:, :WIDTH])
        return x


FN_BN = [(1, 0), (1, 2), (2, 0), (4, 2), (3, 5), (8, 0)]
MATRIX = [
    pytest.param(total, fn, bn, prefetch, policy, id=f"{total}-F{fn}B{bn}-P{prefetch}-{policy}")
    for total, (fn, bn), prefetch, policy in itertools.product(
        (8, 12), FN_BN, (1, 2), ("leading", "strided", "cache_aware")
    )
]


@pytest.mark.parametrize("planned", [False, True], ids=["reactive", "planned"])
@pytest.mark.parametrize(("total", "fn", "bn", "prefetch", "policy"), MATRIX)
def test_hits_and_misses_in_any_order(total, fn, bn, prefetch, policy, planned):
    """The matrix of SGLang pull request 35858: hit, miss, hit, hit again, with step boundaries between."""
    rig = Rig(total, streamed=streamed_blocks(policy, total, 3, front=fn, back=bn), prefetch=prefetch)
    hit = sorted({*range(fn), *range(total - bn, total)})
    every = list(range(total))
    for run in (every, hit, every, hit, hit, every):
        plan = Plan(tuple(run)) if planned else None
        output = rig.call(run, plan=plan, next_head=fn if planned else total)
        assert rig.ran == run
        assert torch.isfinite(output).all()
        assert torch.equal(output, rig.expected(run))
        streamed_ran = [index for index in run if index in rig.streamed]
        if planned:
            assert rig.wasted == 0
        else:
            jumps = sum(b != a + 1 for a, b in itertools.pairwise(run)) + (run[-1] != total - 1)
            assert rig.wasted <= jumps * prefetch * BLOCK_BYTES
        for index in every:
            # at a step boundary only the head of the next call may still be on the device; what is certain fills
            # every slot, a guess leaves one free
            most = prefetch + 1 if planned else prefetch
            assert not rig.streamer.holds(index) or index in [i for i in every if i in rig.streamed][:most]
        assert len(streamed_ran) * BLOCK_BYTES <= rig.moved + prefetch * BLOCK_BYTES
    assert rig.streamer.peak_slot_bytes == min(prefetch + 1, len(rig.streamed)) * BLOCK_BYTES


def test_everything_moved_with_a_plan_ran():
    rig = Rig(12, streamed=streamed_blocks("strided", 12, 4), prefetch=2)
    ran = 0
    for number, run in enumerate([range(12), (0, 10, 11), range(12), (0, 10, 11)]):
        rig.call(run, plan=Plan(tuple(run)), next_head=None if number == 3 else 1)
        ran += len([index for index in run if index in rig.streamed])
    assert rig.streamer.counts.streamed == ran * BLOCK_BYTES
    assert rig.streamer.counts.wasted_bytes == 0


def test_a_hit_moves_nothing_when_the_residents_cover_fn_and_bn():
    rig = Rig(12, streamed=streamed_blocks("cache_aware", 12, 3, front=1, back=2))
    rig.call(plan=Plan(tuple(range(12))), next_head=1)
    rig.call((0, 10, 11), plan=Plan((0, 10, 11)), next_head=1)
    assert rig.moved == 0


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_slots_hold_the_next_computed_calls_first_blocks_over_cached_ones(prefetch):
    """With everything a cached call runs resident: the blocks wait in the slots, cached calls move nothing."""
    rig = Rig(12, streamed=range(2, 11), prefetch=prefetch, bandwidth=BLOCK_BYTES / 2)
    always, slots = (0, 1, 11), tuple(range(2, 3 + prefetch))

    def computed(**values):
        rig.call(plan=Plan(tuple(range(1, 12))), next_head=2, always=always, **values)

    def cached(next_head=2):
        rig.call(always, plan=Plan((1, 11)), next_head=next_head, always=always)

    computed()
    held = [index for index in range(12) if rig.streamer.holds(index)]
    assert tuple(held) == slots
    for _ in range(3):
        cached()
        assert (rig.moved, rig.wasted) == (0, 0)
        assert [index for index in range(12) if rig.streamer.holds(index)] == held
    stalled = rig.device.stall
    computed()
    assert (rig.moved, rig.wasted) == (9 * BLOCK_BYTES, 0)
    # the blocks held over were there at once, each later one took its two milliseconds less the one computing
    assert rig.device.stall - stalled <= 2 * (9 - len(slots))
    # what is held is kept while cached calls go on, and used; without a computed call to come nothing is loaded
    computed(later=False)
    assert (rig.moved, rig.wasted) == ((9 - len(slots)) * BLOCK_BYTES, 0)
    for next_head in (2, None):
        cached(next_head)
        assert (rig.moved, rig.wasted) == (0, 0)


def test_a_call_is_over_even_when_a_copy_for_the_next_one_fails():
    rig = Rig(6, streamed=range(1, 6), prefetch=1)
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
    rig = Rig(6, streamed=(0, 1, 3, 4, 5), prefetch=1)
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


@pytest.mark.parametrize(("prefetch", "spare"), [(0, 0), (1, 1), (3, 3)])
def test_a_cached_call_keeps_the_slots_it_needs(prefetch, spare):
    """One of the blocks that a cached call runs is streamed: what its slot leaves is held over."""
    rig = Rig(8, streamed=range(1, 8), prefetch=prefetch)
    held = list(range(1, 1 + spare))
    for _ in range(2):
        rig.call(plan=Plan(tuple(range(1, 8))), next_head=1, always=(0, 7))
        assert [index for index in range(8) if rig.streamer.holds(index)] == held
        for _ in range(2):
            rig.call((0, 7), plan=Plan((7,)), next_head=1, always=(0, 7))
            assert (rig.moved, rig.wasted) == (BLOCK_BYTES, 0)
            assert [index for index in range(8) if rig.streamer.holds(index)] == held


def test_every_slot_is_used_while_a_resident_block_runs():
    rig = Rig(8, streamed=(4, 5, 6, 7), prefetch=1)
    rig.streamer.begin_call(Outlook(Plan(tuple(range(8))), next_head=8))
    assert [index for index in range(8) if rig.streamer.holds(index)] == [4, 5]
    rig.streamer.end_call()


def test_an_undecided_plan_prefetches_nothing_beyond_it():
    rig = Rig(8, prefetch=2)
    rig.streamer.begin_call(Outlook(Plan((0,), complete=False), next_head=1))
    assert [index for index in range(8) if rig.streamer.holds(index)] == [0]
    rig.streamer.announce(Plan((7,)))
    assert rig.streamer.holds(7)
    rig.streamer.end_call()


def test_the_last_block_wraps_to_the_next_calls_head():
    rig = Rig(6, prefetch=1)
    rig.call()
    assert rig.streamer.holds(0)
    rig.call()
    assert rig.moved == 6 * BLOCK_BYTES
    rig.call(next_head=None)
    assert not any(rig.streamer.holds(index) for index in range(6))


def test_a_jump_releases_the_gap_and_loads_the_destination():
    rig = Rig(8, prefetch=2)
    output = rig.call([0, 1, 6, 7])
    assert torch.equal(output, rig.expected([0, 1, 6, 7]))
    # 2 and 3 were on their way when 6 came
    assert rig.wasted == 2 * BLOCK_BYTES


def test_residents_survive_every_jump():
    rig = Rig(8, streamed=(1, 3, 5, 7))
    for run in ([0, 7], [0, 1, 2, 6], range(8), [2, 4, 6], [5]):
        assert torch.equal(rig.call(run), rig.expected(run))


def test_the_order_is_learned_from_a_full_call():
    rig = Rig(4, prefetch=1)
    order = [0, 2, 1, 3]
    for _ in range(2):
        rig.streamer.begin_call(Outlook(None, next_head=4))
        x = torch.linspace(-1, 1, WIDTH)
        with HookManager(rig.blocks, [rig.streamer]):
            for index in order:
                x = rig.blocks[index](x)
        before = rig.streamer.counts.wasted_bytes
        rig.streamer.end_call()
    assert torch.equal(x, rig.expected(order))
    assert rig.streamer.counts.wasted_bytes == before


def test_a_mixed_schedule_of_masks_and_skips():
    rig = Rig(8, streamed=streamed_blocks("strided", 8, 2), prefetch=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        run = sorted(
            torch.randperm(8, generator=generator)[: int(torch.randint(1, 9, (1,), generator=generator))].tolist()
        )
        output = rig.call(run, plan=Plan(tuple(run)) if len(run) % 2 else None)
        assert torch.equal(output, rig.expected(run))


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), torch.OutOfMemoryError("x"), RuntimeError("x")])
@pytest.mark.parametrize("index", range(8))
def test_an_exception_in_any_block_leaves_a_clean_engine(index, exception):
    rig = Rig(8, streamed=(0, 1, 3, 4, 6, 7), prefetch=2)
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
    rig = Rig(8, streamed=(0, 1, 3, 4, 6, 7), prefetch=2)
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
    rig = Rig(4)
    freed = []
    rig.blocks[2].on_call = lambda: freed.append(rig.streamer.release_slots())
    rig.call()
    assert freed == [0]
    assert rig.streamer.slot_bytes == 2 * BLOCK_BYTES


def test_slots_are_given_back_only_after_the_copies_into_them_have_arrived():
    rig = Rig(6, prefetch=2)
    rig.call()
    assert rig.device._pending
    rig.streamer.release_slots()
    assert not rig.device._pending
    assert rig.device.host_time == rig.device.bus_time


def test_an_engine_retired_during_a_call_ends_with_it():
    rig = Rig(6, prefetch=2)
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
    rig = Rig(6, prefetch=2)
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
    rig = Rig(6, prefetch=3)
    rig.device._capacity = 2 * BLOCK_BYTES
    assert torch.equal(rig.call(), rig.expected())
    assert rig.streamer.peak_slot_bytes == 2 * BLOCK_BYTES
    rig = Rig(6, prefetch=3)
    rig.device._capacity = BLOCK_BYTES - 1
    with pytest.raises(RuntimeError, match="Lower resident_blocks or vram_budget_gb"):
        rig.call()
    assert not rig.streamer.active


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("bandwidth", [0.25, 1.0, 4.0], ids=["bus-bound", "balanced", "compute-bound"])
def test_virtual_step_time_is_that_of_the_slower_engine(prefetch, bandwidth):
    """Uniform blocks, ``bandwidth`` in blocks per block time: with a prefetch at most 5 % above the bound."""
    rig = Rig(20, prefetch=prefetch, bandwidth=bandwidth * BLOCK_BYTES)
    rig.call()
    start = rig.device.compute_time
    for _ in range(5):
        rig.call()
    step = (rig.device.compute_time - start) / 5
    bound = max(20.0, 20 / bandwidth)
    if prefetch == 0:
        assert step == pytest.approx(20 + 20 / bandwidth)
    else:
        assert bound <= step * 1.0001
        assert step <= 1.05 * bound


@pytest.mark.parametrize("bandwidth", [0.1, 1.0, 10.0])
def test_virtual_step_time_with_blocks_of_different_size(bandwidth):
    widths = [WIDTH * (4 if index % 4 == 0 else 1) for index in range(20)]
    rig = Rig(20, prefetch=2, widths=widths, bandwidth=bandwidth * BLOCK_BYTES)
    size = sum(widths) * WIDTH * 4
    rig.call()
    start = rig.device.compute_time
    for _ in range(5):
        rig.call()
    step = (rig.device.compute_time - start) / 5
    assert step <= 1.05 * max(20.0, size / (bandwidth * BLOCK_BYTES))
    assert rig.streamer.peak_slot_bytes == 3 * 4 * BLOCK_BYTES


def test_the_virtual_device_catches_a_reused_slot():
    """The double itself: a copy into a buffer that compute may still read is an error."""
    device = VirtualDevice()
    buffer, source = device.empty(16), torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(RaceError):
        device.start_copy([(buffer, source)], None)
    early = device.mark()
    device.wait(device.start_copy([(buffer, source)], early))
    for event in (None, early):
        with pytest.raises(RaceError):
            device.start_copy([(buffer, source)], event)
    device.start_copy([(buffer, source)], device.mark())


def test_the_virtual_device_poisons_what_is_not_waited_for():
    device = VirtualDevice()
    buffer = device.empty(16)
    event = device.start_copy([(buffer.view(torch.float32), torch.ones(4))], device.mark())
    assert buffer.view(torch.float32).isnan().all()
    device.wait(event)
    assert torch.equal(buffer.view(torch.float32), torch.ones(4))
