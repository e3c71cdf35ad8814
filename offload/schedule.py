"""Which blocks are needed next: pure functions over the observed order and the announced plan.

Law of the pack: trust only blocks that really ran. The order is learned from a call in which every block ran
(until then: ascending), a plan is the cache's word on the call in progress, and nothing is assumed about blocks
that neither covers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ..stack.outlook import Plan


def learned_order(observed: Sequence[int], total: int, known: Sequence[int]) -> tuple[int, ...]:
    """Return the order of a call that ran every block exactly once, else the order ``known`` so far."""
    return tuple(observed if ran_whole(observed, total) else known)


def ran_whole(observed: Sequence[int], total: int) -> bool:
    """Whether a call ran each of ``total`` blocks exactly once."""
    return len(observed) == len(set(observed)) == total


@dataclass(frozen=True)
class Horizon:
    """The blocks to come, as known at one moment of a model call.

    Attributes:
        order: all blocks in the order they run in a full call.
        streamed: the blocks that take a slot.
        plan: announced by the cache; without one, every later block of ``order`` is expected.
        next_head: how many blocks at the head of the next call are certain to run; ``None`` when there is no
            next call.
        always: the blocks that a cached call runs.
    """

    order: Sequence[int]
    streamed: Collection[int]
    plan: Plan | None = None
    next_head: int | None = None
    always: Collection[int] = ()

    def upcoming(self, current: int | None, window: int, held_over: int = 0, running: bool = True) -> tuple[int, ...]:
        """Return the streamed blocks to have in slots, nearest first.

        Before the cache has decided, those that are needed whatever it decides: nothing of that can turn out to be
        copied for nothing.

        Args:
            current: the block that runs, or that ran last; ``None`` before the first.
            window: how many blocks at most.
            held_over: how many of them may be kept for a later full call, beyond those certain to run.
            running: whether ``current`` runs now. The running block is left out; a block that has finished may be
                listed again, for the next call.
        """
        if self.plan is not None and not self.plan.complete:
            return self._either_way(self.plan, current, window, held_over, running)
        later = () if self.next_head is None else self.order
        return self._nearest(current, window, held_over, running, later)

    def certain(self, current: int | None) -> Iterable[int]:
        """Yield the blocks certain to run after ``current``, then the head of the next call."""
        if self.plan is None:
            yield from self.order if current is None else self.order[self.order.index(current) + 1 :]
        else:
            yield from _after(self.plan.blocks, current)
            if not self.plan.complete:
                return
        if self.next_head is not None:
            yield from self.order[: self.next_head]

    def _nearest(
        self, current: int | None, window: int, held_over: int, running: bool, later: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the first ``window`` certain blocks, then at most ``held_over`` of those needed ``later``."""
        found: list[int] = []

        def take(blocks: Iterable[int], most: int) -> None:
            for index in blocks:
                if len(found) >= most:
                    return
                if index in self.streamed and index not in found and not (running and index == current):
                    found.append(index)

        take(self.certain(current), window)
        take(later, min(window, len(found) + held_over))
        return tuple(found)

    def _either_way(
        self, plan: Plan, current: int | None, window: int, held_over: int, running: bool
    ) -> tuple[int, ...]:
        """Return the blocks needed on a hit **and** on a miss."""
        rest = _after(self.order, plan.blocks[-1] if plan.blocks else None)
        skipped = [index for index in rest if index not in self.always]
        on_hit = replace(self, plan=Plan((*plan.blocks, *(index for index in rest if index in self.always))))
        on_miss = replace(self, plan=Plan((*plan.blocks, *rest)))
        if_computed = on_miss.upcoming(current, window, 0, running)
        # even in a last call: it may be the one for which the skipped blocks were held over
        if_cached = on_hit._nearest(current, window, held_over, running, skipped)
        return tuple(index for index in if_cached if index in if_computed)


def _after(blocks: Sequence[int], current: int | None) -> Sequence[int]:
    if current is not None and current in blocks:
        return blocks[blocks.index(current) + 1 :]
    return blocks
