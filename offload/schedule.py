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
    return tuple(observed if ran_whole(observed, total) else known)


def ran_whole(observed: Sequence[int], total: int) -> bool:
    """Whether a call ran each of ``total`` blocks exactly once."""
    return len(observed) == len(set(observed)) == total


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
    running: bool = True,
    beyond: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the next ``window`` distinct streamed blocks to come, nearest first: the certain ones (see
    :func:`blocks_to_come`), then at most ``held_over`` more of those ``beyond``.

    Without ``beyond`` these are what a computed call begins with: the next one, or one after it, will need them.
    While ``current`` is ``running`` it is none of them; once it has run, it may be the next call's.
    """
    found: list[int] = []

    def take(blocks: Iterable[int], most: int) -> None:
        for index in blocks:
            if len(found) >= most:
                return
            if index in streamed and index not in found and not (running and index == current):
                found.append(index)

    take(blocks_to_come(current, order, plan, next_head), window)
    if beyond is None:
        beyond = () if next_head is None else order
    take(beyond, min(window, len(found) + held_over))
    return tuple(found)


def upcoming_either_way(
    current: int | None,
    order: Sequence[int],
    plan: Plan,
    next_head: int | None,
    streamed: Collection[int],
    window: int,
    held_over: int,
    running: bool,
    always: Collection[int],
) -> tuple[int, ...]:
    """Return what :func:`upcoming_streamed` says of an undecided call both if it will be cached and if it will be
    computed: nothing of that can turn out to be copied for nothing. A cached call runs the blocks in ``always``."""
    rest = _after(order, plan.blocks[-1] if plan.blocks else None)
    cached = Plan((*plan.blocks, *(index for index in rest if index in always)))
    computed = Plan((*plan.blocks, *rest))
    if_computed = upcoming_streamed(current, order, computed, next_head, streamed, window, 0, running)
    # even in a last call: it may be the one for which they were held over
    beyond = [index for index in rest if index not in always]
    if_cached = upcoming_streamed(current, order, cached, next_head, streamed, window, held_over, running, beyond)
    return tuple(index for index in if_cached if index in if_computed)
