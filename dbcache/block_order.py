"""Whether a model call visits its blocks the way the gate needs it to."""

from __future__ import annotations

from functools import cached_property

from ..stack.layout import PlacedSegment, StackLayout


class StackRoute:
    """The blocks that Fn and Bn split a stack into: computed once a run, shared by all its gates.

    Attributes:
        layout: of the stack.
        total: number of blocks.
        fn: how many blocks at the start always run.
        bn: how many blocks at the end always run.
        judged_at: the block after which a call is judged: the last of the first ``fn``, or of the first segment.
        segment_at: for each block its segment, and the segment's middle blocks, which a hit skips.
    """

    def __init__(self, layout: StackLayout, fn: int, bn: int) -> None:
        self.layout = layout
        self.total = layout.total
        self.fn = fn
        self.bn = bn
        self.judged_at = min(fn, layout.segments[0].stop) - 1
        segments = [layout.segment_at(index) for index in range(self.total)]
        self.segment_at: list[tuple[PlacedSegment, range]] = [
            (segment, layout.middle_of(segment, fn, bn)) for segment in segments
        ]

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
        self._needed_blocks = route.needed
        self._next_needed = 0
        self._last_block: int | None = None

    def visit(self, index: int) -> str:
        """Note that block ``index`` is called; return the fault in the order of blocks, or an empty string."""
        last, self._last_block = self._last_block, index
        if last is not None and index <= last:
            return f"block {index} ran after block {last}"
        if self._next_needed < len(self._needed_blocks):
            due = self._needed_blocks[self._next_needed]
            if due < index:
                return f"block {due} was replaced or left out by something else"
            if due == index:
                self._next_needed += 1
        return ""

    def end(self) -> str:
        """Take note that the model has returned; return the fault if needed blocks did not run, or an empty
        string."""
        if self._next_needed == len(self._needed_blocks):
            return ""
        last = self._last_block
        return "no block ran" if last is None else f"no block ran after block {last}"
