"""Hit, miss and why, without a model."""

from __future__ import annotations

import itertools

import pytest
from pack.dbcache.decision import History, Verdict, compares, computes_after, judge, known_miss
from pack.dbcache.rules import CacheRules, RunRules, rules_for_run

STEPS = 12
MASK = (1, 1, 0, 0, 1, 0, 0, 0, 1)
STATIC = {"scm": "fast", "scm_policy": "static"}
FREE = {"preset": "custom", "warmup_steps": 0, "threshold": 0.5, "max_continuous": -1}


def rules(**values) -> RunRules:
    return rules_for_run(CacheRules(**{**FREE, **values}), STEPS)


@pytest.mark.parametrize(
    ("values", "history", "outside", "reason"),
    [
        ({}, History(3), {}, ""),
        ({}, History(3), {"closed": "before start_percent"}, "before start_percent"),
        ({"warmup_steps": 9}, History(3), {"closed": "after end_percent", "last": True}, "after end_percent"),
        ({"warmup_steps": 9}, History(3), {"last": True}, "last step"),
        ({"compute_last_step": False}, History(3), {"last": True}, ""),
        ({"warmup_steps": 4}, History(3), {}, "warm-up"),
        ({"warmup_steps": 3}, History(3), {}, ""),
        ({"warmup_steps": 9, "scm": "fast"}, History(1, mask=MASK), {}, "warm-up"),
        ({"warmup_steps": 9, "scm": "fast"}, History(2, mask=MASK), {}, ""),
        ({"warmup_steps": 1, "scm": "fast"}, History(1, mask=MASK), {}, "mask: computed step"),
        ({"scm": "fast"}, History(4, mask=MASK), {}, "mask: computed step"),
        ({"scm": "fast"}, History(9, mask=MASK), {}, "mask: beyond the schedule"),
        ({"scm": "fast", "max_continuous": 1}, History(3, 1, 1, mask=MASK), {}, "cap: 1 cached steps in a row"),
        ({**STATIC, "max_continuous": 1, "max_cached": 1, "threshold": 0.0}, History(3, 1, 1, MASK), {}, ""),
        (STATIC, History(4, mask=MASK), {}, "mask: computed step"),
        ({"max_cached": 2}, History(5, 1, 1), {}, ""),
        ({"max_cached": 2}, History(5, 2, 1), {}, "cap: 2 cached steps in all"),
        ({"max_cached": 2, "max_continuous": 1}, History(5, 2, 1), {}, "cap: 2 cached steps in all"),
        ({"max_cached": 0}, History(5), {}, "cap: 0 cached steps in all"),
        ({"max_continuous": 2}, History(5, 3, 1), {}, ""),
        ({"max_continuous": 2, "threshold": 0.0}, History(5, 3, 2), {}, "cap: 2 cached steps in a row"),
        ({"threshold": 0.0}, History(5, recorded=False), {}, "threshold is 0"),
        ({}, History(5, recorded=False, control_changed=True), {}, "first call of the branch"),
        ({}, History(5, control_changed=True), {}, "control input changed"),
        (STATIC, History(3, mask=MASK, recorded=False), {}, "first call of the branch"),
    ],
)
def test_a_miss_that_is_known_before_the_first_blocks(values, history, outside, reason):
    assert known_miss(rules(**values), history, **outside) == reason


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "differences", "complete", "verdict"),
    [
        ({}, {"a": 0.25}, True, Verdict(True, "threshold: 0.25 < 0.5 (a)", {"a": 0.25})),
        ({}, {"a": 0.5}, True, Verdict(False, "threshold: 0.5 >= 0.5 (a)", {"a": 0.5})),
        ({}, {"a": 0.1, "b": 0.6}, True, Verdict(False, "threshold: 0.6 >= 0.5 (b)", {"a": 0.1, "b": 0.6})),
        ({}, {"a": 0.1, "b": 0.2}, True, Verdict(True, "threshold: 0.2 < 0.5 (b)", {"a": 0.1, "b": 0.2})),
        ({}, {"a": 0.0}, True, Verdict(True, "threshold: 0 < 0.5 (a)", {"a": 0.0})),
        ({}, {"a": INFINITE}, True, Verdict(False, "threshold: inf >= 0.5 (a)", {"a": INFINITE})),
        ({}, {"a": NAN}, True, Verdict(False, "nothing to compare with")),
        ({}, {"a": 0.75, "b": NAN}, True, Verdict(False, "threshold: 0.75 >= 0.5 (a)", {"a": 0.75})),
        ({}, {}, False, Verdict(False, "nothing to compare with")),
        ({}, {"a": 0.75}, False, Verdict(False, "threshold: 0.75 >= 0.5 (a)", {"a": 0.75})),
        ({"threshold": 1.0}, {}, True, Verdict(True, "threshold is 1")),
        ({"threshold": 1.0}, {}, False, Verdict(False, "nothing to compare with")),
        (STATIC, {}, True, Verdict(True, "mask: cached step")),
    ],
)
def test_the_verdict_after_the_first_blocks(values, differences, complete, verdict):
    assert judge(rules(**values), differences, complete) == verdict


@pytest.mark.parametrize(
    ("values", "needed"),
    [({}, True), ({"threshold": 1.0}, False), (STATIC, False), ({"scm": "fast"}, True)],
)
def test_differences_are_measured_only_where_they_count(values, needed):
    assert compares(rules(**values)) is needed


@pytest.mark.parametrize(
    ("values", "certain"),
    [
        ({"compute_last_step": False}, 0),
        ({}, STEPS - 1),
        ({"compute_last_step": False, "warmup_steps": 4}, 3),
        ({"compute_last_step": False, "max_continuous": 2}, STEPS - 3),
        ({"compute_last_step": False, "max_continuous": 2, **STATIC}, 0),
        ({"compute_last_step": False, "threshold": 0.0}, STEPS - 1),
    ],
)
def test_which_steps_can_count_on_a_computed_one(values, certain):
    foretold = [computes_after(rules(**values), (), step) for step in range(STEPS + 2)]
    assert foretold == [step < certain for step in range(STEPS + 2)]


def cached_whenever_it_may(run: RunRules, mask: tuple[int, ...]) -> list[bool]:
    """Return for each step of a run whether it was computed, if differences never forbid a hit."""
    cached, in_a_row, computed = 0, 0, []
    for step in range(run.steps):
        history = History(step, cached, in_a_row, mask, recorded=step > 0)
        computed.append(bool(run.off or known_miss(run, history, last=step == run.steps - 1)))
        in_a_row = 0 if computed[-1] else in_a_row + 1
        cached += not computed[-1]
    return computed


def test_what_is_foretold_comes_true_also_where_everything_hits():
    kinds = ({}, {"scm": "fast"}, STATIC)
    foretold = 0
    for warmup, row, last, kind, mask in itertools.product(
        (0, 1, 5), (-1, 0, 1, 3), (True, False), kinds, (MASK, MASK[1:])
    ):
        run = rules(warmup_steps=warmup, max_continuous=row, compute_last_step=last, **kind)
        mask = (mask + mask)[:STEPS] if kind else ()
        computed = cached_whenever_it_may(run, mask)
        for step in range(STEPS):
            if computes_after(run, mask, step):
                foretold += 1
                assert any(computed[step + 1 :])
    assert foretold
