"""The gate of one model call: runs the first Fn blocks, decides, and on a hit stands in for the middle ones.

Scheme (measured over every family of ComfyUI): on a computed call keep, for each segment and state, the
residual from the input of the first middle block to the output of the last. On a hit compute
``y = input of the first skipped block + residual`` once, let the skipped blocks return their inputs, and return
``y`` from the last skipped one. Adding the residual at the first skipped block instead would count what the
model itself adds between blocks (ControlNet, VACE) twice.

The first-block comparison is First Block Cache's, generalised to Fn and Bn by cache-dit's DBCache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..stack.layout import Hidden, PlacedSegment
from .block_order import Follower
from .branches import Branch
from .calls import CallInfo, CallOutcome, base_name
from .session import DBCacheSession

Forward = Callable[..., Any]


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
        self._branch: Branch | None = None
        self._known_miss = ""
        self._hit: bool | None = None
        self._reason = ""
        self._diffs: dict[str, float] = {}
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
        placed, middle = self._route.at[index]
        if index in middle:
            stand_in = self._stand_in if self._hit else self._compute
            return stand_in(index, placed, middle, forward, args, kwargs)
        if index == 0:
            self._start(placed, args, kwargs)
        result = forward(*args, **kwargs)
        if index == self._route.judged_at and not self._ungated:
            self._has_room(self._judge, placed, args, kwargs, result)
        return result

    def finish(self) -> CallOutcome:
        """Close the call after the model returned, and say what became of it."""
        self._before = {}
        if not self._ungated:
            self._lost(self._follower.end())
        name = self._branch.name if self._branch is not None else base_name(self._call.kinds)
        if self._ungated:
            return CallOutcome(name, False, self._ungated, self._diffs)
        if not self._hit:
            self._branch.recorded = True
            self._branch.control = self._call.control
        return CallOutcome(name, bool(self._hit), self._reason, self._diffs)

    def _lost(self, why: str) -> bool:
        """Stop gating this call and its branch if there is a ``why``; return whether there is."""
        if not why:
            return False
        self._ungated = f"not supported: {why}"
        self._before = {}
        if self._branch is not None:
            self._branch.unsupported = self._ungated
            self._branch.recorded = False
        self._session.note_once(f"DBCache: {why}. Calls of this kind are computed exactly and not cached.")
        self._announce(self._route.all_blocks)
        return True

    def _start(self, placed: PlacedSegment, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = placed.segment.read_inputs(args, kwargs)
        if hidden is None:
            self._lost("block 0 is not called the way its family's table entry says")
            return
        self._branch = self._session.branch(self._call, hidden)
        if self._branch.unsupported:
            self._ungated = self._branch.unsupported
            self._announce(self._route.all_blocks)
            return
        self._branch.context.begin(self._call.step, self._call.sigma)
        self._known_miss = self._reason_to_compute()
        if self._has_room(self._copy, hidden) and self._known_miss:
            self._announce(self._route.all_blocks)

    def _reason_to_compute(self) -> str:
        last = "last step" if self._call.last and self._session.settings.compute_last_step else ""
        known = self._call.closed or last or self._branch.context.known_miss()
        if known:
            return known
        if not self._branch.recorded:
            return "first call of the branch"
        return "control input changed" if self._branch.control != self._call.control else ""

    def _judge(self, placed: PlacedSegment, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        residuals = self._residuals(placed.segment.read_outputs(result))
        if residuals is not None:
            residuals = placed.segment.judged_states(residuals, args, kwargs)
        if residuals is None:
            self._lost(f"block {self._route.judged_at} does not return what its family's table entry says")
            return
        context = self._branch.context
        if self._known_miss:
            self._hit, self._reason = False, self._known_miss
        else:
            with self._session.keeping():
                self._hit, self._diffs, self._reason = context.judge(residuals)
            self._announce(self._route.blocks_after_hit if self._hit else self._route.blocks_after_miss)
        if self._hit:
            context.add_cached_step()
            return
        self._branch.recorded = False
        with self._session.keeping():
            for state, residual in residuals.items():
                context.set_fn_residual(state, residual)

    def _stand_in(
        self, index: int, placed: PlacedSegment, middle: range, forward: Forward, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        hidden = placed.segment.read_inputs(args, kwargs)
        if hidden is None:
            self._lost(f"block {index} is not called the way its family's table entry says")
            return forward(*args, **kwargs)
        if index == middle[0]:
            kept = self._kept_shapes(placed)
            if not kept or any(hidden[name].shape != shape for name, shape in kept.items()):
                self._lost(f"the hidden states have another shape before block {index} than when they were kept")
                return forward(*args, **kwargs)
            if not self._has_room(self._forecast, placed, {name: hidden[name] for name in kept}):
                return forward(*args, **kwargs)
        self._skipped = True
        if index != middle[-1]:
            return placed.segment.build_output(hidden)
        result, self._before = self._before, {}
        if any(hidden[name].shape != value.shape for name, value in result.items()):
            self._lost(f"the hidden states changed shape before block {index}")
            return forward(*args, **kwargs)
        # Newer ComfyUI records where hidden states are freed, and fails when blocks that work in place replace theirs.
        in_place = self._branch.in_place
        return placed.segment.build_output(
            {
                name: hidden[name].copy_(value) if in_place[_residual_name(placed, name)] else value
                for name, value in result.items()
            }
        )

    def _kept_shapes(self, placed: PlacedSegment) -> dict[str, torch.Size]:
        """Return the shapes of the kept residuals over the middle of a segment, by state: those that go on."""
        shapes = self._branch.shapes
        names = (state.name for state in placed.segment.states)
        return {name: shapes[_residual_name(placed, name)] for name in names if _residual_name(placed, name) in shapes}

    def _forecast(self, placed: PlacedSegment, hidden: Hidden) -> None:
        add = self._branch.context.add_middle_residual
        with self._session.keeping():
            self._before = {name: add(_residual_name(placed, name), value) for name, value in hidden.items()}

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

    def _compute(
        self, index: int, placed: PlacedSegment, middle: range, forward: Forward, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        if index == middle[0]:
            hidden = placed.segment.read_inputs(args, kwargs)
            if hidden is None:
                self._lost(f"block {index} is not called the way its family's table entry says")
                return forward(*args, **kwargs)
            self._branch.context.drop_middle_residuals([_residual_name(placed, name) for name in hidden])
            if not self._has_room(self._copy, hidden):
                return forward(*args, **kwargs)
        result = forward(*args, **kwargs)
        if index == middle[-1]:
            given = placed.segment.read_inputs(args, kwargs) or {}
            self._has_room(self._record, index, placed, given, placed.segment.read_outputs(result))
        return result

    def _record(self, index: int, placed: PlacedSegment, given: Hidden, returned: Hidden | None) -> None:
        residuals = self._residuals(returned)
        if residuals is None:
            self._lost(f"block {index} does not return what its family's table entry says")
            return
        with self._session.keeping():
            for name, residual in residuals.items():
                self._branch.context.set_middle_residual(_residual_name(placed, name), residual)
                self._branch.shapes[_residual_name(placed, name)] = residual.shape
                self._branch.in_place[_residual_name(placed, name)] = given.get(name) is returned[name]

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


def _residual_name(placed: PlacedSegment, state: str) -> str:
    """A name for one residual: states of two segments may be called alike."""
    return f"{placed.start}_{state}"
