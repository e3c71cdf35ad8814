"""What is expected next, from the order observed and the plan announced."""

from __future__ import annotations

from pack.offload.schedule import Horizon, learned_order
from pack.stack.outlook import Plan, head_plan

ORDER = (0, 1, 2, 3, 4, 5)


def coming(current, *, plan=None, next_head=6, streamed=(0, 1, 2, 3, 4, 5), window=2, order=ORDER):
    return Horizon(order, streamed, plan, next_head).upcoming(current, window)


def test_without_a_plan_the_order_goes_on_and_wraps_to_the_head():
    assert coming(None) == (0, 1)
    assert coming(2) == (3, 4)
    assert coming(5) == (0, 1)
    assert coming(4) == (5, 0)


def test_residents_are_passed_over():
    assert coming(0, streamed=(1, 4)) == (1, 4)
    assert coming(1, streamed=(1, 4)) == (4,)
    assert coming(4, streamed=(0, 4, 5)) == (5, 0)


def test_no_wrap_when_there_is_no_next_call():
    assert coming(5, next_head=None) == ()
    assert coming(4, next_head=None) == (5,)


def test_only_the_certain_head_of_the_next_call_is_expected():
    assert coming(5, next_head=1) == (0,)


def test_a_plan_is_followed_and_then_the_head():
    plan = Plan((4, 5))
    assert coming(0, plan=plan) == (4, 5)
    assert coming(4, plan=plan) == (5, 0)
    assert coming(5, plan=plan, next_head=1) == (0,)


def test_nothing_is_expected_beyond_an_incomplete_plan():
    plan = Plan((0, 1), complete=False)
    horizon = Horizon(ORDER, ORDER, plan, next_head=6)
    assert list(horizon.certain(None)) == [0, 1]
    assert list(horizon.certain(1)) == []


def test_before_the_cache_decides_its_first_blocks_are_certain():
    assert head_plan(2, 6) == Plan((0, 1), complete=False)
    assert head_plan(6, 6) == Plan(ORDER)


def test_a_learned_order_counts():
    order = (0, 2, 1, 3, 4, 5)
    assert coming(0, order=order) == (2, 1)
    assert list(Horizon(order, order).certain(2)) == [1, 3, 4, 5]


def test_only_a_call_in_which_every_block_ran_teaches_the_order():
    assert learned_order([1, 0, 2], 3, (0, 1, 2)) == (1, 0, 2)
    assert learned_order([0, 2], 3, (0, 1, 2)) == (0, 1, 2)
    assert learned_order([0, 1, 1], 3, (0, 1, 2)) == (0, 1, 2)


def test_what_is_held_over_comes_after_everything_certain():
    assert Horizon(ORDER, {2, 3}, Plan((5,)), 1).upcoming(0, 1, held_over=4) == (2,)
    assert Horizon(ORDER, {2, 3, 4}, Plan((1, 2, 3, 4, 5)), 1).upcoming(3, 4, held_over=4) == (4, 2)
    assert Horizon(ORDER, {2, 3}, Plan((5,)), None).upcoming(0, 4, held_over=4) == ()


def test_a_block_that_has_run_may_be_the_next_calls():
    assert Horizon(ORDER, {0, 2}, Plan(()), 1).upcoming(0, 2) == ()
    assert Horizon(ORDER, {0, 2}, Plan(()), 1).upcoming(0, 2, running=False) == (0,)


def either_way(plan, streamed, window, *, current=0, next_head=1, held_over=0, always=(0, 5)):
    return Horizon(ORDER, streamed, plan, next_head, always).upcoming(current, window, held_over, running=False)


def test_before_the_cache_decides_only_what_comes_either_way_is_expected():
    undecided = Plan((0,), complete=False)
    # the last block runs in any case, but a computed call needs the slots for others first
    assert either_way(undecided, {2, 3, 5}, 2) == ()
    assert either_way(undecided, {2, 3, 5}, 3) == (5,)
    assert either_way(undecided, {5}, 1) == (5,)
    # the next call's head, as soon as it fits behind everything that this one may need
    assert either_way(undecided, {0, 3}, 2) == (0,)
    assert either_way(undecided, {0, 3}, 1) == ()
    assert either_way(undecided, {0, 3}, 2, next_head=None) == ()


def test_before_the_cache_decides_what_was_held_over_stays():
    undecided = Plan((0,), complete=False)
    assert either_way(undecided, {2, 3, 4}, 2, held_over=2) == (2, 3)
    assert either_way(undecided, {2, 3, 5}, 3, held_over=2) == (5, 2, 3)
    # in the last call too, which may be the one they were held over for
    assert either_way(undecided, {0, 2, 3}, 3, held_over=2, next_head=None) == (2, 3)


def test_no_more_is_held_over_than_there_are_slots_to_spare():
    streamed = {0, 1, 2, 3, 5}
    assert Horizon(ORDER, streamed, Plan((4, 5)), 1).upcoming(4, 4, held_over=0) == (5, 0)
    assert Horizon(ORDER, streamed, Plan((4, 5)), 1).upcoming(4, 4, held_over=1) == (5, 0, 1)
    assert Horizon(ORDER, streamed, Plan((4, 5)), 1).upcoming(4, 3, held_over=4) == (5, 0, 1)
