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


def head_plan(head: int, total: int) -> Plan:
    """Return what is certain before the cache has decided: the first ``head`` of ``total`` blocks will run."""
    return Plan(tuple(range(head)), complete=head == total)


def blocks_to_come(
    current: int | None, order: Sequence[int], plan: Plan | None, next_head: int | None
) -> Iterable[int]:
    """Yield the blocks certain to run after ``current``, then the head of the next call.

    Args:
        current: the block that starts now, ``None`` before the first.
        order: all blocks in the order they run in a full call.
        plan: what is announced about this call; without one, every later block of ``order`` is expected.
        next_head: how many blocks at the head of the next call are certain to run; ``None`` when there is no
            next call.
    """
    if plan is None:
        yield from order if current is None else order[order.index(current) + 1 :]
    else:
        yield from _after(plan.blocks, current)
        if not plan.complete:
            return
    if next_head is not None:
        yield from order[:next_head]


def blocks_held_over(order: Sequence[int], plan: Plan | None, next_head: int | None) -> Sequence[int]:
    """Return what a computed call runs beyond the certain blocks, nearest first: this call, where the cache has not
    decided yet, or the next one, or one after it will need it."""
    if plan is not None and not plan.complete:
        return _after(order, plan.blocks[-1] if plan.blocks else None)
    return () if next_head is None else order


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
    held_over: int = 0,
) -> tuple[int, ...]:
    """Return the next ``window`` distinct streamed blocks to come, nearest first: the certain ones (see
    :func:`blocks_to_come`), then at most ``held_over`` others (see :func:`blocks_held_over`)."""
    found: list[int] = []

    def take(blocks: Iterable[int], most: int) -> None:
        for index in blocks:
            if len(found) >= most:
                return
            if index in streamed and index not in found and index != current:
                found.append(index)

    take(blocks_to_come(current, order, plan, next_head), window)
    take(blocks_held_over(order, plan, next_head), min(window, len(found) + held_over))
    return tuple(found)
