"""The certain part of a model call: before the cache has decided, after it has, and of the call that follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The blocks that the call in progress will still run, in order.

    ``complete`` is False while the cache has not decided yet: then nothing is known beyond ``blocks``.
    """

    blocks: tuple[int, ...]
    complete: bool = True


def head_plan(head: int, total: int) -> Plan:
    """Return the plan before the cache has decided: the first ``head`` of ``total`` blocks will run."""
    return Plan(tuple(range(head)), complete=head == total)


@dataclass(frozen=True)
class Outlook:
    """Everything that is certain when a model call begins. Without arguments: every block runs, and no call follows.

    Attributes:
        plan: this call's blocks; ``None`` expects every block, in the order of the last call that ran all of them.
        next_head: how many blocks at the head of the call after this one are certain to run; ``None`` when this is
            the last call.
        always: the blocks that even a cached call runs, ``None`` when calls are not cached.
        computed_later: whether a call that runs every block is certain to follow.
    """

    plan: Plan | None = None
    next_head: int | None = None
    always: tuple[int, ...] | None = None
    computed_later: bool = False

    def exact(self) -> Outlook:
        """Return the outlook on the same call made once more without the cache."""
        return Outlook(next_head=self.next_head)
