"""The gate of one model call: runs the first Fn blocks, decides, and on a hit stands in for the middle ones.

Scheme (measured over every family of ComfyUI): on a computed call keep, for each segment and state, the
residual from the input of the first middle block to the output of the last. On a hit compute
``y = input of the first skipped block + residual`` once, let the skipped blocks return their inputs, and return
``y`` from the last skipped one. Adding the residual at the first skipped block instead would count twice
the model's own additions between blocks (ControlNet, VACE).

The first-block comparison is First Block Cache's, generalised to Fn and Bn by cache-dit's DBCache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..stack.layout import Hidden, PlacedSegment
from .block_order import Follower
from .branches import Branch
from .calls import CallInfo, CallOutcome, base_name
from .decision import Verdict, compares, judge, known_miss
from .residual_names import middle_residual
from .session import DBCacheSession

Forward = Callable[..., Any]


@dataclass
class _BlockCall:
    """The call of one block, with its segment and the middle blocks of that."""

    index: int
    placed: PlacedSegment
    middle: range
    forward: Forward
    args: tuple
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.forward(*self.args, **self.kwargs)

    def inputs(self) -> Hidden | None:
        return self.placed.segment.read_inputs(self.args, self.kwargs)

    def name(self, state: str) -> str:
        """Return the name of a state's residual over the middle blocks."""
        return middle_residual(self.placed.start, state)


@dataclass(frozen=True)
class _Started:
    """A call whose first block was called as it should: its branch, and why it cannot hit if that is known."""

    branch: Branch
    known_miss: str


class CallGate:
    """Intercepts every block of one model call (see :meth:`run_block`).

    A call the gate cannot follow (a block replaced, run twice, a shape that changes half way) goes on ungated,
    its branch stops caching, and :attr:`must_recompute` says whether its output is unusable. Exceptions of the
    blocks pass through unchanged.
    """

    def __init__(self, session: DBCacheSession, call: CallInfo) -> None:
        self._session = session
        self._call = call
        self._announce: Callable[[tuple[int, ...]], None] = lambda blocks: None
        self._route = session.route
        self._follower = Follower(session.route)
        self._name = base_name(call.kinds)
        self._started: _Started | None = None
        self._verdict = Verdict(False, "")
        self._before: Hidden = {}
        self._ungated = session.off
        self._skipped = False

    @property
    def must_recompute(self) -> bool:
        """Whether blocks were skipped in a call that could then not be finished. Valid after :meth:`finish`."""
        return self._skipped and bool(self._ungated)

    def begin_call(self, announce: Callable[[tuple[int, ...]], None]) -> None:
        """Take whom to tell the blocks that the call will still run, as soon as they are certain."""
        self._announce = announce

    def run_block(self, index: int, forward: Forward, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run, or stand in for, block ``index``."""
        if self._ungated or self._lost(_captured() or self._follower.visit(index)):
            return forward(*args, **kwargs)
        placed, middle = self._route.segment_at[index]
        block = _BlockCall(index, placed, middle, forward, args, kwargs)
        if index == 0:
            self._started = self._start(block)
        started = self._started
        if started is None:
            return block.run()
        if index in middle:
            return self._stand_in(started.branch, block) if self._verdict.hit else self._compute(started.branch, block)
        result = block.run()
        if index == self._route.judged_at and not self._ungated:
            self._has_room(self._judge, started, block, result)
        return result

    def finish(self) -> CallOutcome:
        """Close the call after the model returned, and return its outcome."""
        self._before = {}
        if not self._ungated:
            self._lost(self._follower.end())
        verdict = self._verdict
        if self._ungated:
            return CallOutcome(self._name, False, self._ungated, verdict.diffs)
        if not verdict.hit and self._started is not None:
            self._started.branch.recorded = True
            self._started.branch.control = self._call.control
        return CallOutcome(self._name, verdict.hit, verdict.reason, verdict.diffs)

    def _lost(self, why: str) -> bool:
        """Stop gating this call and its branch if there is a ``why``; return whether there is."""
        if not why:
            return False
        self._ungated = f"not supported: {why}"
        self._before = {}
        if self._started is not None:
            self._started.branch.unsupported = self._ungated
            self._started.branch.recorded = False
        self._session.note_once(f"DBCache: {why}. Calls of this kind are computed exactly and not cached.")
        self._announce(self._route.all_blocks)
        return True

    def _start(self, block: _BlockCall) -> _Started | None:
        hidden = block.inputs()
        if hidden is None:
            self._lost("block 0 is not called the way its family's table entry says")
            return None
        call = self._call
        branch = self._session.branch(call, hidden)
        self._name = branch.name
        if branch.unsupported:
            self._ungated = branch.unsupported
            self._announce(self._route.all_blocks)
            return None
        branch.context.begin(call.step, call.sigma)
        known = known_miss(self._session.rules, branch.history(call.control), call.closed, call.last)
        if self._has_room(self._copy, hidden) and known:
            self._announce(self._route.all_blocks)
        return _Started(branch, known)

    def _judge(self, started: _Started, block: _BlockCall, result: Any) -> None:
        segment = block.placed.segment
        residuals = self._residuals(segment.read_outputs(result))
        if residuals is not None:
            residuals = segment.judged_states(residuals, block.args, block.kwargs)
        if residuals is None:
            self._lost(f"block {block.index} does not return what its family's table entry says")
            return
        context = started.branch.context
        if started.known_miss:
            self._verdict = Verdict(False, started.known_miss)
        else:
            self._verdict = self._verdict_on(residuals, started.branch)
            self._announce(self._route.blocks_after_hit if self._verdict.hit else self._route.blocks_after_miss)
        if self._verdict.hit:
            context.add_cached_step()
            return
        started.branch.recorded = False
        with self._session.keeping():
            for state, residual in residuals.items():
                context.set_fn_residual(state, residual)

    def _verdict_on(self, residuals: Hidden, branch: Branch) -> Verdict:
        context, rules = branch.context, self._session.rules
        with self._session.keeping():
            context.look(residuals)
            measured = context.differences(residuals) if compares(rules) else {}
        return judge(rules, measured, context.has_kept(residuals))

    def _stand_in(self, branch: Branch, block: _BlockCall) -> Any:
        segment, middle = block.placed.segment, block.middle
        hidden = block.inputs()
        if hidden is None:
            self._lost(f"block {block.index} is not called the way its family's table entry says")
            return block.run()
        if block.index == middle[0]:
            shapes = {state.name: branch.shapes.get(block.name(state.name)) for state in segment.states}
            kept = {state: shape for state, shape in shapes.items() if shape is not None}  # those that go on
            if not kept or any(hidden[state].shape != shape for state, shape in kept.items()):
                self._lost(f"the hidden states have another shape before block {block.index} than when they were kept")
                return block.run()
            if not self._has_room(self._forecast, branch, block, {state: hidden[state] for state in kept}):
                return block.run()
        self._skipped = True
        if block.index != middle[-1]:
            return segment.build_output(hidden)
        result, self._before = self._before, {}
        if any(hidden[state].shape != value.shape for state, value in result.items()):
            self._lost(f"the hidden states changed shape before block {block.index}")
            return block.run()
        # Newer ComfyUI records where hidden states are freed, and fails when blocks that work in place replace theirs.
        return segment.build_output(
            {
                state: hidden[state].copy_(value) if branch.in_place[block.name(state)] else value
                for state, value in result.items()
            }
        )

    def _forecast(self, branch: Branch, block: _BlockCall, hidden: Hidden) -> None:
        add = branch.context.add_middle_residual
        with self._session.keeping():
            self._before = {state: add(block.name(state), value) for state, value in hidden.items()}

    def _has_room(self, keep: Callable[..., None], *arguments: Any) -> bool:
        """Make tensors for the cache; where the device has no room for them, the run goes on without a cache."""
        try:
            keep(*arguments)
        except torch.OutOfMemoryError:
            self._ungated = self._session.run_out_of_memory()
            self._before = {}
            self._announce(self._route.all_blocks)
            return False
        return True

    def _compute(self, branch: Branch, block: _BlockCall) -> Any:
        if block.index == block.middle[0]:
            hidden = block.inputs()
            if hidden is None:
                self._lost(f"block {block.index} is not called the way its family's table entry says")
                return block.run()
            branch.context.drop_middle_residuals([block.name(state) for state in hidden])
            if not self._has_room(self._copy, hidden):
                return block.run()
        result = block.run()
        if block.index == block.middle[-1]:
            self._has_room(self._record, branch, block, result)
        return result

    def _record(self, branch: Branch, block: _BlockCall, result: Any) -> None:
        given, returned = block.inputs() or {}, block.placed.segment.read_outputs(result)
        residuals = self._residuals(returned)
        if residuals is None or returned is None:
            self._lost(f"block {block.index} does not return what its family's table entry says")
            return
        with self._session.keeping():
            for state, residual in residuals.items():
                name = block.name(state)
                branch.context.set_middle_residual(name, residual)
                branch.shapes[name] = residual.shape
                branch.in_place[name] = given.get(state) is returned[state]

    def _copy(self, hidden: Hidden) -> None:
        """Keep copies: the block may work in place."""
        with self._session.keeping():
            self._before = {name: value.clone() for name, value in hidden.items()}

    def _residuals(self, after: Hidden | None) -> Hidden | None:
        """Return after - before of every state in ``after``, written over the ``before`` copies; None if they do not
        match."""
        before, self._before = self._before, {}
        if not after or not after.keys() <= before.keys():
            return None
        before = {name: before[name] for name in after}
        if any(after[name].shape != value.shape or after[name].dtype != value.dtype for name, value in before.items()):
            return None
        with self._session.keeping():
            return {name: torch.sub(after[name], value, out=value) for name, value in before.items()}


def _captured() -> str:
    """Say so when blocks are being captured into CUDA graphs: no number can be read back then, and replays call no
    block. Newer ComfyUI does that under dynamic VRAM."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return "blocks are captured into CUDA graphs" if capturing else ""
