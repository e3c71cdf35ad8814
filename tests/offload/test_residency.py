"""Residency: properties every policy must have, over all small stacks."""

from __future__ import annotations

import itertools

import pytest
from pack.offload.residency import (
    POLICIES,
    choose_prefetch,
    choose_streamed,
    slot_bytes,
    streamed_blocks,
    strided_positions,
)

SIZES = range(1, 14)


@pytest.mark.parametrize("policy", POLICIES)
def test_exactly_the_asked_number_stays_and_the_stack_is_partitioned(policy):
    for total in SIZES:
        for resident, front, back in itertools.product(range(-1, total + 2), range(total + 1), range(total + 1)):
            streamed = streamed_blocks(policy, total, resident, front=front, back=back)
            assert len(streamed) == total - max(0, min(resident, total))
            assert list(streamed) == sorted(set(streamed))
            assert set(streamed) <= set(range(total))


def test_leading_keeps_the_first():
    assert streamed_blocks("leading", 6, 2) == (2, 3, 4, 5)


def test_strided_spreads_the_streamed_ones_evenly():
    assert streamed_blocks("strided", 8, 4) == (0, 2, 4, 6)
    assert streamed_blocks("strided", 10, 7) == (0, 3, 7)
    for total in SIZES:
        for count in range(1, total + 1):
            positions = strided_positions(count, total)
            gaps = [b - a for a, b in itertools.pairwise(positions)]
            assert all(gap >= 1 for gap in gaps)
            assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_cache_aware_keeps_what_a_cached_call_runs_first():
    assert streamed_blocks("cache_aware", 8, 1, front=2, back=2) == (1, 2, 3, 4, 5, 6, 7)
    assert streamed_blocks("cache_aware", 8, 3, front=2, back=2) == (2, 3, 4, 5, 7)
    for total in SIZES:
        for front, back in itertools.product(range(total), repeat=2):
            always = set(range(min(front, total))) | set(range(max(0, total - back), total))
            for resident in range(len(always), total + 1):
                assert not always & set(streamed_blocks("cache_aware", total, resident, front=front, back=back))


def test_unknown_policy_is_named():
    with pytest.raises(ValueError, match="residency_policy is 'random'"):
        streamed_blocks("random", 8, 1)


def test_choice_is_the_largest_that_fits():
    sizes, other = [10, 10, 40, 10, 10], 5
    for budget in range(0, 200):
        streamed = choose_streamed(sizes, other, budget, policy="leading", prefetch=1)
        used = other + sum(sizes) - sum(sizes[i] for i in streamed) + slot_bytes(sizes, streamed, 1)
        if len(streamed) < len(sizes):
            assert used <= budget
        for more in range(len(sizes) - len(streamed) + 1, len(sizes) + 1):
            other_choice = streamed_blocks("leading", len(sizes), more)
            needed = other + sum(sizes) - sum(sizes[i] for i in other_choice) + slot_bytes(sizes, other_choice, 1)
            assert needed > budget


def test_choice_respects_the_limit_on_residents():
    assert choose_streamed([1] * 6, 0, float("inf"), policy="leading", prefetch=1, max_resident=2) == (2, 3, 4, 5)
    assert choose_streamed([1] * 6, 0, float("inf"), policy="leading", prefetch=1) == ()


def test_slots_never_outnumber_the_streamed_blocks():
    assert slot_bytes([3, 5, 7], (0, 1), 4) == 2 * 5
    assert slot_bytes([3, 5, 7], (0, 1, 2), 1) == 2 * 7
    assert slot_bytes([3, 5, 7], (), 3) == 0


def test_the_prefetch_window_gives_way_only_when_no_resident_is_left():
    sizes, other = [10] * 8, 5
    assert choose_prefetch(sizes, other, float("inf"), 16) == 16
    assert choose_prefetch(sizes, other, 5 + 40, 16) == 3
    assert choose_prefetch(sizes, other, 5 + 20, 16) == 1
    assert choose_prefetch(sizes, other, 5 + 19, 16) == 0
    assert choose_prefetch(sizes, other, 0, 2) == 0


def test_what_no_slot_holds_is_there_once_for_the_running_block():
    sizes, unpacked = [30, 50, 70], [10, 30, 0]
    assert slot_bytes(sizes, (0, 1), 1, unpacked) == 2 * 20 + 30
    assert slot_bytes(sizes, (0, 1, 2), 1, unpacked) == 2 * 70 + 30
    assert slot_bytes(sizes, (), 1, unpacked) == 0
    assert choose_prefetch(sizes, 5, 5 + 2 * 70 + 30, 2, unpacked) == 1
    assert choose_prefetch(sizes, 5, 5 + 2 * 70 + 29, 2, unpacked) == 0
    # one block of 60 that stays, two slots of 20, the 40 beside them
    for budget, streamed in ((140, (1, 2)), (139, (0, 1, 2))):
        assert choose_streamed([60] * 3, 0, budget, policy="leading", prefetch=1, unpacked=[40] * 3) == streamed
