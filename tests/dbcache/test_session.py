"""What a session knows of the steps to come, which decides whether weights are copied ahead for them."""

from __future__ import annotations

import pytest
from pack.dbcache.rules import DBCacheSettings
from pack.dbcache.session import DBCacheSession
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout

STEPS = 10
LAYOUT = StackLayout((PlacedSegment(Segment((HiddenState("image", "x", position=0, output=None),)), 0, 8),))
FREE = {"preset": "custom", "fn": 1, "bn": 1, "warmup_steps": 0, "max_continuous": -1, "compute_last_step": False}
FREE["calibrator"] = "none"


@pytest.mark.parametrize(
    ("values", "certain"),
    [
        ({}, 0),
        ({"compute_last_step": True}, 9),
        ({"warmup_steps": 4}, 3),
        ({"max_continuous": 2}, 7),
        ({"max_continuous": 2, "scm": "fast"}, 7),
        ({"max_continuous": 2, "scm": "fast", "scm_policy": "static"}, 0),
        ({"threshold": 0.0}, 9),
    ],
)
def test_a_computed_step_is_certain_to_follow(values, certain):
    """``certain``: how many steps, from the first on, can count on one."""
    session = DBCacheSession(DBCacheSettings(**{**FREE, **values}).rules(LAYOUT.total), STEPS, LAYOUT)
    assert [session.computes_after(step) for step in range(STEPS + 2)] == [step < certain for step in range(STEPS + 2)]
