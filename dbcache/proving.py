"""Finds out, on one exact call, how hidden states travel through a stack that no table entry describes.

A stack is proven when its blocks run in order, once each, and every block is given, in the same arguments, the very
tensors that the block before it returned, and none that an earlier one returned. Nothing is kept but the last block's
result.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from .calls import CallInfo, CallOutcome, base_name


@dataclass(frozen=True)
class ArgumentPlace:
    """Where a block is given a tensor: its argument's position or keyword, and its index where that is a tuple."""

    argument: int | str
    item: int | None = None


class StackProver:
    """Intercepts every block of one call (see ``HookManager``) without changing it.

    Args:
        total: number of blocks in the stack.
        call: the call, for its outcome.
    """

    must_recompute = False

    def __init__(self, total: int, call: CallInfo) -> None:
        self._total = total
        self._call = call
        self._next = 0
        self._results: tuple[torch.Tensor, ...] = ()
        self._earlier: list[weakref.ref[torch.Tensor]] = []
        self._bare = True
        self._places: list[set[ArgumentPlace]] | None = None
        self.why = ""

    def begin_call(self, announce: Callable[[tuple[int, ...]], None]) -> None:
        """Every block runs: there is nothing to announce."""

    def run_block(self, index: int, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run block ``index`` and look at its arguments and its result."""
        if not self.why:
            self._look(index, args, kwargs)
        result = forward(*args, **kwargs)
        if not self.why:
            self._note(index, result)
        return result

    def finish(self) -> CallOutcome:
        """Close the call and return its outcome."""
        self._results, self._earlier = (), []
        if not self.why and self._next < self._total:
            self.why = "not every block ran" if self._next else "no block ran"
        return CallOutcome(base_name(self._call.kinds), False, self.why or "first call: the block stack is looked at")

    def layout(self) -> StackLayout | None:
        """Return the proven layout; ``None`` when there is none, for the reason in ``why``. Valid after finish."""
        if self.why or not self._places:
            return None
        states = []
        for output, places in enumerate(self._places):
            place = min(places, key=str)
            position = place.argument if isinstance(place.argument, int) else None
            name = f"state {output}" if len(self._places) > 1 else "hidden"
            argument = place.argument if isinstance(place.argument, str) else ""
            states.append(HiddenState(name, argument, position, place.item, None if self._bare else output))
        return StackLayout((PlacedSegment(Segment(tuple(states)), 0, self._total),))

    def _look(self, index: int, args: tuple, kwargs: dict[str, Any]) -> None:
        if index != self._next:
            self.why = f"block {index} ran where block {self._next} was due"
            return
        self._next += 1
        if index == 0:
            return
        given = list(_tensors(args, kwargs))
        found = [{place for place, tensor in given if tensor is result} for result in self._results]
        self._places = found if self._places is None else [a & b for a, b in zip(self._places, found, strict=False)]
        if not all(self._places):
            self.why = f"block {index} is not given what block {index - 1} returned"
        elif self._is_given_older(given):
            self.why = f"block {index} is given what a block before block {index - 1} returned"

    def _is_given_older(self, given: list[tuple[ArgumentPlace, Any]]) -> bool:
        """Whether a block is given an earlier block's result: which may not be there when that block was skipped."""
        older = [result for ref in self._earlier if (result := ref()) is not None]
        return any(tensor is result for _, tensor in given for result in older)

    def _note(self, index: int, result: Any) -> None:
        bare = isinstance(result, torch.Tensor)
        results = (result,) if bare else tuple(result) if isinstance(result, tuple | list) else ()
        if not results or not all(isinstance(returned, torch.Tensor) for returned in results):
            self.why = f"block {index} returns something else than tensors"
        elif index > 0 and (bare != self._bare or len(results) != len(self._results)):
            self.why = f"block {index} returns something else than the block before it"
        # Blocks that work in place return one object every time: that is none of an earlier block.
        gone = [old for old in self._results if not any(old is result for result in results)]
        self._earlier += [weakref.ref(old) for old in gone]
        self._bare, self._results = bare, results


def _tensors(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple[ArgumentPlace, Any]]:
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for argument, value in given:
        yield ArgumentPlace(argument), value
        if isinstance(value, tuple | list):
            for item, inner in enumerate(value):
                yield ArgumentPlace(argument, item), inner
