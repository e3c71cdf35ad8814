"""Whether a model call visits its blocks the way the gate needs it to."""

from __future__ import annotations

from functools import cached_property

from ..stack.layout import PlacedSegment, StackLayout


class StackRoute:
    """What Fn and Bn make of a stack: computed once a run, shared by all its gates."""

    def __init__(self, layout: StackLayout, fn: int, bn: int) -> None:
        self.layout = layout
        self.total = layout.total
        self.fn = fn
        self.bn = bn
        self.judged_at = min(fn, layout.segments[0].stop) - 1
        placed = [layout.placed(index) for index in range(self.total)]
        self.at: list[tuple[PlacedSegment, range]] = [(one, layout.middle_of(one, fn, bn)) for one in placed]

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """The blocks that must be called, ascending: the first, the judged, and each middle's first and last."""
        blocks = {0, self.judged_at}
        for segment in self.layout.segments:
            middle = self.layout.middle_of(segment, self.fn, self.bn)
            if middle:
                blocks |= {middle[0], middle[-1]}
        return tuple(sorted(blocks))

    @cached_property
    def all_blocks(self) -> tuple[int, ...]:
        return tuple(range(self.total))

    @cached_property
    def blocks_after_hit(self) -> tuple[int, ...]:
        """The blocks that a hit still runs once the judged block is done."""
        return (*range(self.judged_at + 1, self.fn), *range(self.total - self.bn, self.total))

    @cached_property
    def blocks_after_miss(self) -> tuple[int, ...]:
        return tuple(range(self.judged_at + 1, self.total))


class Follower:
    """Watches one call: blocks must come in ascending order, once each, and no needed one may be missing."""

    def __init__(self, route: StackRoute) -> None:
        self._needed = route.needed
        self._met = 0
        self.last: int | None = None

    def visit(self, index: int) -> str:
        """Note that block ``index`` is called; return what is wrong with that, or an empty string."""
        last, self.last = self.last, index
        if last is not None and index <= last:
            return f"block {index} ran after block {last}"
        if self._met < len(self._needed):
            due = self._needed[self._met]
            if due < index:
                return f"block {due} was replaced or left out by something else"
            if due == index:
                self._met += 1
        return ""

    def end(self) -> str:
        """Return what is missing now that the model has returned, or an empty string."""
        if self._met == len(self._needed):
            return ""
        return "no block ran" if self.last is None else f"no block ran after block {self.last}"
