"""How hidden states travel through a block stack: pure descriptions and the functions that read them.

A *segment* is a run of blocks with one calling convention, a *state* one hidden state that is judged on its
own. The descriptions are data, so that a model family is a table entry and not a branch in the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

Hidden = dict[str, torch.Tensor]


@dataclass(frozen=True)
class HiddenState:
    """One hidden state of a segment.

    Attributes:
        name: how the report calls it, for example ``image``.
        argument: the block's keyword for it.
        position: its place among the positional arguments, where a model passes it so.
        item: its index when that argument is a tuple of hidden states.
        output: its index in the tuple the block returns; ``None`` when the block returns it bare.
        may_end: the last block of the stack returns ``None`` in its place.
    """

    name: str
    argument: str
    position: int | None = None
    item: int | None = None
    output: int | None = None
    may_end: bool = False


@dataclass(frozen=True)
class PackedStates:
    """States that share one tensor, packed along its first dimension.

    One argument of the block lists the spans, each beginning with (start, stop). The last spans are the states
    in ``last``, in order; all before them are judged together as ``rest``.
    """

    argument: str
    position: int
    last: tuple[str, ...]
    rest: str

    def split(self, hidden: torch.Tensor, args: tuple, kwargs: Mapping[str, Any]) -> Hidden | None:
        """Return views of ``hidden`` by state; ``None`` when the spans are not as described."""
        spans = _argument(self.argument, self.position, args, kwargs)
        if not isinstance(spans, list | tuple) or len(spans) < len(self.last):
            return None
        tail = dict(zip(self.last, spans[-len(self.last) :], strict=True))
        views = {name: hidden[start:stop] for name, (start, stop, *_) in tail.items()}
        before = hidden[: min(span[0] for span in tail.values())]
        return {self.rest: before, **views} if len(before) else views


@dataclass(frozen=True)
class Segment:
    """A run of blocks with one calling convention; ``packed`` says how one tensor holds several states."""

    states: tuple[HiddenState, ...]
    packed: PackedStates | None = None

    def read_inputs(self, args: tuple, kwargs: Mapping[str, Any]) -> Hidden | None:
        """Return the hidden states a block is called with; ``None`` when the call does not look as described."""
        hidden: Hidden = {}
        for state in self.states:
            value = _hidden_argument(state, args, kwargs)
            if not isinstance(value, torch.Tensor):
                return None
            hidden[state.name] = value
        return hidden

    def read_outputs(self, result: Any) -> Hidden | None:
        """Return the hidden states a block returned, without states that end there; ``None`` when the result does
        not look as described."""
        places = self._output_places()
        if not places:
            return {self.states[0].name: result} if isinstance(result, torch.Tensor) else None
        if not isinstance(result, tuple | list) or len(result) != len(self.states):
            return None
        ended = {state.name for state in self.states if state.may_end and result[places[state.name]] is None}
        hidden = {name: result[place] for name, place in places.items() if name not in ended}
        return hidden if all(isinstance(value, torch.Tensor) for value in hidden.values()) else None

    def judged_states(self, residuals: Hidden, args: tuple, kwargs: Mapping[str, Any]) -> Hidden | None:
        """Return the residuals to be judged one by one, views of ``residuals``; ``None`` if they cannot be told."""
        if self.packed is None:
            return residuals
        return self.packed.split(residuals[self.states[0].name], args, kwargs)

    def build_output(self, hidden: Hidden) -> Any:
        """Return a block's result made of these hidden states; ``None`` for states that are not among them."""
        places = self._output_places()
        if not places:
            return hidden[self.states[0].name]
        return tuple(hidden.get(name) for name in sorted(places, key=lambda name: places[name]))

    def _output_places(self) -> dict[str, int]:
        """The index of every state in the tuple a block returns; empty when its only state is returned bare."""
        return {state.name: state.output for state in self.states if state.output is not None}


def _argument(name: str, position: int | None, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[position] if position is not None and position < len(args) else None


def _hidden_argument(state: HiddenState, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    value = _argument(state.argument, state.position, args, kwargs)
    if state.item is None:
        return value
    return value[state.item] if isinstance(value, tuple | list) and state.item < len(value) else None


@dataclass(frozen=True)
class PlacedSegment:
    """A segment and the block indices it covers, ``start`` to ``stop - 1``."""

    segment: Segment
    start: int
    stop: int


@dataclass(frozen=True)
class StackLayout:
    """The segments of a whole stack in execution order."""

    segments: tuple[PlacedSegment, ...]

    @property
    def total(self) -> int:
        """Number of blocks in the stack."""
        return self.segments[-1].stop

    def segment_at(self, index: int) -> PlacedSegment:
        """Return the segment that block ``index`` belongs to."""
        return next(placed for placed in self.segments if placed.start <= index < placed.stop)

    def middle_of(self, placed: PlacedSegment, fn: int, bn: int) -> range:
        """Return the blocks of one segment that a cached call skips."""
        return range(max(fn, placed.start), min(self.total - bn, placed.stop))
