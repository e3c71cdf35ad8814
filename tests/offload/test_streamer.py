"""The streaming engine on the virtual device: late copies, NaN in unfinished buffers, a virtual clock."""

from __future__ import annotations

import itertools

import pytest
import torch
from pack.offload.residency import streamed_blocks
from pack.stack.hooks import HookManager
from pack.stack.outlook import Outlook, Plan
from rigs.streaming_rig import BLOCK_BYTES, WIDTH, StreamingRig

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
    rig = StreamingRig(total, streamed=streamed_blocks(policy, total, 3, front=fn, back=bn), prefetch=prefetch)
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
    rig = StreamingRig(12, streamed=streamed_blocks("strided", 12, 4), prefetch=2)
    ran = 0
    for number, run in enumerate([range(12), (0, 10, 11), range(12), (0, 10, 11)]):
        rig.call(run, plan=Plan(tuple(run)), next_head=None if number == 3 else 1)
        ran += len([index for index in run if index in rig.streamed])
    assert rig.streamer.counts.streamed == ran * BLOCK_BYTES
    assert rig.streamer.counts.wasted_bytes == 0


def test_a_hit_moves_nothing_when_the_residents_cover_fn_and_bn():
    rig = StreamingRig(12, streamed=streamed_blocks("cache_aware", 12, 3, front=1, back=2))
    rig.call(plan=Plan(tuple(range(12))), next_head=1)
    rig.call((0, 10, 11), plan=Plan((0, 10, 11)), next_head=1)
    assert rig.moved == 0


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_slots_hold_the_next_computed_calls_first_blocks_over_cached_ones(prefetch):
    """With everything a cached call runs resident: the blocks wait in the slots, cached calls move nothing."""
    rig = StreamingRig(12, streamed=range(2, 11), prefetch=prefetch, bandwidth=BLOCK_BYTES / 2)
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


@pytest.mark.parametrize(("prefetch", "spare"), [(0, 0), (1, 1), (3, 3)])
def test_a_cached_call_keeps_the_slots_it_needs(prefetch, spare):
    """One of the blocks that a cached call runs is streamed: what its slot leaves is held over."""
    rig = StreamingRig(8, streamed=range(1, 8), prefetch=prefetch)
    held = list(range(1, 1 + spare))
    for _ in range(2):
        rig.call(plan=Plan(tuple(range(1, 8))), next_head=1, always=(0, 7))
        assert [index for index in range(8) if rig.streamer.holds(index)] == held
        for _ in range(2):
            rig.call((0, 7), plan=Plan((7,)), next_head=1, always=(0, 7))
            assert (rig.moved, rig.wasted) == (BLOCK_BYTES, 0)
            assert [index for index in range(8) if rig.streamer.holds(index)] == held


def test_every_slot_is_used_while_a_resident_block_runs():
    rig = StreamingRig(8, streamed=(4, 5, 6, 7), prefetch=1)
    rig.streamer.begin_call(Outlook(Plan(tuple(range(8))), next_head=8))
    assert [index for index in range(8) if rig.streamer.holds(index)] == [4, 5]
    rig.streamer.end_call()


def test_an_undecided_plan_prefetches_nothing_beyond_it():
    rig = StreamingRig(8, prefetch=2)
    rig.streamer.begin_call(Outlook(Plan((0,), complete=False), next_head=1))
    assert [index for index in range(8) if rig.streamer.holds(index)] == [0]
    rig.streamer.announce(Plan((7,)))
    assert rig.streamer.holds(7)
    rig.streamer.end_call()


def test_the_last_block_wraps_to_the_next_calls_head():
    rig = StreamingRig(6, prefetch=1)
    rig.call()
    assert rig.streamer.holds(0)
    rig.call()
    assert rig.moved == 6 * BLOCK_BYTES
    rig.call(next_head=None)
    assert not any(rig.streamer.holds(index) for index in range(6))


def test_a_jump_releases_the_gap_and_loads_the_destination():
    rig = StreamingRig(8, prefetch=2)
    output = rig.call([0, 1, 6, 7])
    assert torch.equal(output, rig.expected([0, 1, 6, 7]))
    # 2 and 3 were on their way when 6 came
    assert rig.wasted == 2 * BLOCK_BYTES


def test_residents_survive_every_jump():
    rig = StreamingRig(8, streamed=(1, 3, 5, 7))
    for run in ([0, 7], [0, 1, 2, 6], range(8), [2, 4, 6], [5]):
        assert torch.equal(rig.call(run), rig.expected(run))


def test_the_order_is_learned_from_a_full_call():
    rig = StreamingRig(4, prefetch=1)
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
    rig = StreamingRig(8, streamed=streamed_blocks("strided", 8, 2), prefetch=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        run = sorted(
            torch.randperm(8, generator=generator)[: int(torch.randint(1, 9, (1,), generator=generator))].tolist()
        )
        output = rig.call(run, plan=Plan(tuple(run)) if len(run) % 2 else None)
        assert torch.equal(output, rig.expected(run))
