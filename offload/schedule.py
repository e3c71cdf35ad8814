"""Which blocks are needed next: pure functions over the observed order and the announced plan.

Law of the pack: trust only blocks that really ran. The order is learned from a call in which every block ran
(until then: ascending), a plan is what the cache announces about the call in progress, and nothing is assumed
about blocks that neither covers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The blocks that the call in progress will still run, in order.

    ``complete`` is False while the cache has not decided yet: then nothing is known beyond ``blocks``.
    """

    blocks: tuple[int, ...]
    complete: bool = True


def learned_order(observed: Sequence[int], total: int, known: Sequence[int]) -> tuple[int, ...]:
    """Return the order of a call that ran every block exactly once, else the order ``known`` so far."""
    if len(observed) == total and len(set(observed)) == total:
        return tuple(observed)
    return tuple(known)


def blocks_to_come(
    current: int | None, order: Sequence[int], plan: Plan | None, next_head: int | None, hold_over: bool = False
) -> Iterable[int]:
    """Yield the blocks expected after ``current``, then the head of the next call.

    Args:
        current: the block that starts now, ``None`` before the first.
        order: all blocks in the order they run in a full call.
        plan: what is announced about this call; without one, every later block of ``order`` is expected.
        next_head: how many blocks at the head of the next call are certain to run; ``None`` when there is no
            next call.
        hold_over: also yield what a computed call runs beyond the certain blocks: it is going to be needed by this
            call, the next one, or one after it.
    """
    if plan is None:
        yield from order if current is None else order[order.index(current) + 1 :]
    else:
        yield from _after(plan.blocks, current)
        if not plan.complete:
            if hold_over:
                yield from _after(order, plan.blocks[-1] if plan.blocks else None)
            return
    if next_head is not None:
        yield from order if hold_over else order[:next_head]


def _after(blocks: Sequence[int], current: int | None) -> Sequence[int]:
    if current is not None and current in blocks:
        return blocks[blocks.index(current) + 1 :]
    return blocks


def upcoming_streamed(
    current: int | None,
    order: Sequence[int],
    plan: Plan | None,
    next_head: int | None,
    streamed: Collection[int],
    window: int,
    hold_over: bool = False,
) -> tuple[int, ...]:
    """Return the next ``window`` distinct streamed blocks to come, nearest first (see :func:`blocks_to_come`)."""
    found: list[int] = []
    for index in blocks_to_come(current, order, plan, next_head, hold_over):
        if len(found) == window:
            break
        if index in streamed and index not in found and index != current:
            found.append(index)
    return tuple(found)
