"""Memory of the cache: what is kept between calls, and how much more is alive inside one."""

from __future__ import annotations

import re

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.dbcache.memory import tensor_bytes
from pack.stack.hooks import HookManager
from rigs.allocation_log import AllocationLog
from rigs.gate_rig import TOKENS, GateRig, custom
from rigs.toy_stacks import WIDTH

each_shape = pytest.mark.parametrize("shape", ["out_of_place", "in_place", "double_single", "two_streams"])
STREAMS = {"out_of_place": 1, "in_place": 1, "double_single": 3, "two_streams": 2}
# the packed tokens of the second are those of text and image
HIDDEN_BYTES = {"out_of_place": TOKENS * WIDTH * 4, "in_place": (3 + TOKENS) * WIDTH * 4}
JUDGED = {"out_of_place": 1, "in_place": 1, "double_single": 2, "two_streams": 2}


def branch_of(rig):
    return next(iter(rig.session._branches.values()))


@each_shape
def test_buffers_between_calls_are_few(shape):
    """Without a calibrator: the Fn residual of the first segment, and one middle residual a segment and stream."""
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=1))
    rig.call(0)
    rig.call(1)
    rig.gate = None
    buffers = branch_of(rig).context._context.buffers.values()
    assert len({buffer.untyped_storage().data_ptr() for buffer in buffers}) == JUDGED[shape] + STREAMS[shape]
    assert rig.session.kept_bytes == sum(buffer.numel() * buffer.element_size() for buffer in buffers)


class Watched:
    """A gate whose own work is logged, that of the blocks is not."""

    def __init__(self, gate, log):
        self._gate, self._log = gate, log

    def run_block(self, index, forward, args, kwargs):
        def silently(*args, **kwargs):
            self._log.on = False
            try:
                return forward(*args, **kwargs)
            finally:
                self._log.on = True

        self._log.on = True
        try:
            return self._gate.run_block(index, silently, args, kwargs)
        finally:
            self._log.on = False


def logged_run(rig, log):
    """Make eight calls; yields each one's outcome when nothing of it is left but what is kept."""
    with log:
        for step in range(8):
            gate = CallGate(rig.session, CallInfo(step=step, sigma=1 - step / 8, conds=("a",), kinds=(0,)))
            with HookManager(rig.blocks, [Watched(gate, log)]):
                rig.plain(step)
            outcome = gate.finish()
            del gate
            yield outcome


@pytest.mark.parametrize("shape", ["out_of_place", "in_place"])
@pytest.mark.parametrize("fn", [1, 2])
def test_at_most_two_more_tensors_inside_a_call(shape, fn):
    """Of a single stream: two kept between calls, and never more than four alive at once, cache-dit's own included."""
    rig = GateRig(shape, custom(fn=fn, bn=2, warmup_steps=2, max_continuous=1, threshold=0.9))
    log = AllocationLog(least=WIDTH)
    outcomes = []
    for outcome in logged_run(rig, log):
        assert log.alive == 2 * HIDDEN_BYTES[shape] == rig.session.kept_bytes
        outcomes.append(outcome)
    assert any(outcome.hit and outcome.diffs for outcome in outcomes)
    assert 3 * HIDDEN_BYTES[shape] < log.most <= 4 * HIDDEN_BYTES[shape]


@each_shape
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_what_a_calibrator_keeps_is_counted(shape, calibrator):
    rig = GateRig(shape, custom(calibrator=calibrator, warmup_steps=4))
    log = AllocationLog(least=1)
    for _ in logged_run(rig, log):
        assert rig.session.kept_bytes == log.alive > 0
    rig.session.close()
    assert rig.session.kept_bytes == log.alive == 0


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def residuals_in(keeps, order):
    """Read the words of ``CalibratorChoice.keeps``: "two residuals", "one residual for each order", "three residuals,
    five at order 2", "some 25 residuals", "nothing"."""
    if keeps == "nothing":
        return 0
    word, each = re.search(r"(\w+) residuals?( for each order)?", keeps).groups()
    at_order = re.search(rf"(\w+) at order {order}\b", keeps)
    word = at_order.group(1) if at_order else word
    number = NUMBERS.index(word) if word in NUMBERS else int(word)
    return number * order if each else number


def test_the_words_on_memory_are_read_as_numbers():
    read = {
        keeps: [residuals_in(keeps, order) for order in (1, 2)] for keeps in (c.keeps for c in CALIBRATORS.values())
    }
    assert read["three residuals, five at order 2"] == [3, 5]
    assert read["one residual for each order"] == [1, 2]
    assert read["two residuals"] == [2, 2]
    assert read["nothing"] == [0, 0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_a_calibrator_keeps_what_the_pages_say(calibrator, order):
    """So many residuals of a single stream in float32, beside the last two (``CalibratorChoice.keeps``)."""
    settings = custom(bn=1, calibrator=calibrator, calibrator_order=order, threshold=0.9, max_continuous=1)
    rig = GateRig("out_of_place", settings, steps=20)
    most, hits = 0, 0
    for step in range(20):
        _, outcome = rig.call(step)
        hits += outcome.hit
        most = max(most, rig.session.kept_bytes)
    assert hits > 5
    assert round(most / HIDDEN_BYTES["out_of_place"]) == 2 + residuals_in(CALIBRATORS[calibrator].keeps, order)


def test_kept_memory_counts_once_what_is_shared():
    one = torch.zeros(TOKENS, WIDTH)
    other = torch.zeros(3, dtype=torch.float16)

    class Holder:
        def __init__(self):
            self.states = {"a": [one, one[:2]], "b": (other, None, "text")}

    holder = Holder()
    holder.itself = holder
    assert tensor_bytes(holder, {"again": one}) == TOKENS * WIDTH * 4 + 3 * 2
    assert tensor_bytes(None, {}) == 0
