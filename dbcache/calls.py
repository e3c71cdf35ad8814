"""One model call as the cache sees it: the facts before its first block, and its outcome."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

KIND_NAMES = ("cond", "uncond")


@dataclass(frozen=True)
class CallInfo:
    """The facts about one model call before its first block runs.

    Attributes:
        step: sampler step, from 0.
        sigma: noise level of the call.
        conds: one identity for each condition in the call's batch, in order (ComfyUI's cond uuids).
        kinds: for each of them 0 (positive), 1 (negative) or a higher index.
        setting: other facts that tell series of calls apart: context window, replaced blocks.
        control: describes the control input and the changes scheduled on the weights; another one makes a miss.
        closed: why no call may hit now (outside start/end percent), or an empty string.
        last: whether this is the last step of the schedule.
    """

    step: int
    sigma: float
    conds: tuple[Hashable, ...] = ()
    kinds: tuple[int, ...] = ()
    setting: Hashable = ()
    control: Hashable = ()
    closed: str = ""
    last: bool = False


@dataclass
class CallOutcome:
    """The outcome of one call: plain numbers, no tensors."""

    branch: str
    hit: bool
    reason: str
    diffs: dict[str, float] = field(default_factory=dict)


def base_name(kinds: Sequence[int]) -> str:
    """Return a readable name for the conditions of a call, for example ``uncond+cond``."""
    return "+".join(KIND_NAMES[kind] if kind < len(KIND_NAMES) else f"cond{kind}" for kind in kinds) or "call"
