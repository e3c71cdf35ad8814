"""Sampler steps from sigmas: changes of interval are counted, never calls."""

from __future__ import annotations

import pytest
from pack.dbcache.steps import StepCounter, interval_of

SIGMAS = [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def steps(sigmas, calls):
    counter = StepCounter(sigmas)
    return [counter.at(sigma) for sigma in calls]


def test_one_call_a_step():
    assert steps(SIGMAS, SIGMAS[:-1]) == [0, 1, 2, 3, 4]


def test_split_conditions_call_twice_at_one_sigma():
    assert steps(SIGMAS, [1.0, 1.0, 0.8, 0.8]) == [0, 0, 1, 1]


def test_heun_evaluates_at_both_ends_of_a_step():
    assert steps(SIGMAS, [1.0, 0.8, 0.8, 0.6, 0.6, 0.4]) == [0, 1, 1, 2, 2, 3]


def test_evaluations_between_two_entries_belong_to_the_step():
    assert steps(SIGMAS, [1.0, 0.9, 0.8, 0.7, 0.6]) == [0, 0, 1, 1, 2]


def test_restarts_go_up_again_and_count_on():
    assert steps(SIGMAS, [1.0, 0.8, 0.6, 1.0, 0.8]) == [0, 1, 2, 3, 4]
    assert steps([1.0, 0.6, 0.2, 0.8, 0.4, 0.0], [1.0, 0.6, 0.2, 0.8, 0.4]) == [0, 1, 2, 3, 4]


def test_repeated_sigmas_do_not_count_twice():
    assert steps([1.0, 0.5, 0.5, 0.2, 0.0], [1.0, 0.5, 0.5, 0.2]) == [0, 1, 1, 2]


def test_partial_denoise_starts_at_step_zero():
    assert steps([0.6, 0.4, 0.2, 0.0], [0.6, 0.4, 0.2]) == [0, 1, 2]


def test_a_sigma_outside_the_schedule_belongs_to_the_nearer_end():
    assert interval_of(SIGMAS, 1.5, None) == 0
    assert interval_of([1.0, 0.5, 0.2], 0.1, None) == 1


def test_rounding_of_the_sigma_does_not_matter():
    assert steps(SIGMAS, [1.0, 0.8000001, 0.5999999]) == [0, 1, 2]


@pytest.mark.parametrize("sigmas", [[], [1.0], [1.0, 0.0]])
def test_short_schedules(sigmas):
    counter = StepCounter(sigmas)
    assert counter.steps == max(0, len(sigmas) - 1)
    if sigmas:
        assert counter.at(1.0) == 0
        assert counter.at_last


def test_the_last_step_is_known():
    counter = StepCounter(SIGMAS)
    assert not counter.at_last
    seen = []
    for sigma in SIGMAS[:-1]:
        counter.at(sigma)
        seen.append(counter.at_last)
    assert seen == [False, False, False, False, True]


def test_repeated_sigmas_do_not_end_the_schedule_early_nor_late():
    counter = StepCounter([1.0, 0.5, 0.2, 0.5, 0.0])
    seen = []
    for sigma in (1.0, 0.5, 0.2, 0.5):
        counter.at(sigma)
        seen.append(counter.at_last)
    assert seen == [False, False, False, True]
