"""Hit or miss, and why: every decision about a model call is made here, without tensors.

Three questions, in the order in which they come up: whether a call is a miss before its first blocks ran
(:func:`known_miss`), whether it hits once they have (:func:`judge`), and whether a later call is certain to be a miss
(:func:`computes_after`). The conditions are those of cache-dit's ``can_cache``, to which the pack adds the window
of the denoising process, the last step, the first call of a branch, and a change of control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from .rules import RunRules


@dataclass(frozen=True)
class History:
    """How a branch came to the call in progress.

    Attributes:
        step: the call's sampler step, from 0.
        cached_steps: how many steps were cached so far, with this one if an earlier call in it was.
        cached_in_a_row: how many cached steps in a row lead up to this step, without it.
        mask: for each step of the schedule 1 (computed) or 0 (may be cached); empty without a mask.
        recorded: whether the branch's last computed call was kept whole.
        control_changed: whether the control input is another than in that call.
    """

    step: int
    cached_steps: int = 0
    cached_in_a_row: int = 0
    mask: Sequence[int] = ()
    recorded: bool = True
    control_changed: bool = False


@dataclass(frozen=True)
class Verdict:
    """The decision about one call, with the difference of each state that was measured."""

    hit: bool
    reason: str
    diffs: dict[str, float] = field(default_factory=dict)


def known_miss(rules: RunRules, history: History, closed: str = "", last: bool = False) -> str:
    """Return why a call cannot hit, known before its first block ran, or an empty string.

    Args:
        rules: of the run.
        history: of the call's branch.
        closed: why no call may hit now, from outside, or an empty string.
        last: whether this is the last step of the schedule.
    """
    if closed:
        return closed
    if last and rules.compute_last_step:
        return "last step"
    by_step = _miss_by_step(rules, history)
    if by_step:
        return by_step
    if not history.recorded:
        return "first call of the branch"
    return "control input changed" if history.control_changed else ""


def _miss_by_step(rules: RunRules, history: History) -> str:
    step, mask = history.step, history.mask
    if step < _warm_up(rules, mask):
        return "warm-up"
    if mask and step >= len(mask):
        return "mask: beyond the schedule"
    if mask and mask[step] == 1:
        return "mask: computed step"
    if forces_hit(rules):
        return ""
    if 0 <= rules.max_cached <= history.cached_steps:
        return f"cap: {history.cached_steps} cached steps in all"
    if 0 <= rules.max_continuous <= history.cached_in_a_row:
        return f"cap: {history.cached_in_a_row} cached steps in a row"
    return "threshold is 0" if rules.threshold <= 0.0 else ""


def _warm_up(rules: RunRules, mask: Sequence[int]) -> int:
    """A mask ends the warm-up at its first step that may be cached."""
    computed = sum(1 for _ in takewhile(lambda step: step == 1, mask)) if mask else rules.warmup_steps
    return min(rules.warmup_steps, computed)


def forces_hit(rules: RunRules) -> bool:
    """Whether a mask alone decides: where it leaves a step open, neither differences nor caps count."""
    return rules.scm != "none" and rules.scm_policy == "static"


def compares(rules: RunRules) -> bool:
    """Whether :func:`judge` needs the differences: measuring them costs a number read back from the device."""
    return not forces_hit(rules) and rules.threshold < 1.0


def judge(rules: RunRules, differences: Mapping[str, float], complete: bool) -> Verdict:
    """Return the verdict on a call that is no :func:`known_miss`, once its first blocks ran: all states must agree.

    Args:
        rules: of the run.
        differences: the relative difference of each state from the last computed call; NaN where they cannot be
            compared. Empty where the rules do not compare.
        complete: whether every state has something to be compared with.
    """
    if forces_hit(rules):
        return Verdict(True, "mask: cached step")
    alike = rules.threshold >= 1.0 or all(difference < rules.threshold for difference in differences.values())
    hit = complete and alike
    measured = {state: difference for state, difference in differences.items() if difference >= 0.0}
    if not measured:
        return Verdict(hit, "threshold is 1" if hit else "nothing to compare with")
    state = max(measured, key=measured.__getitem__)
    sign = "<" if hit else ">="
    return Verdict(hit, f"threshold: {measured[state]:.4g} {sign} {rules.threshold:g} ({state})", measured)


def computes_after(rules: RunRules, mask: Sequence[int], step: int) -> bool:
    """Whether a later step than ``step`` is certain to run every block: the last one, one that still warms up, or
    one that the cap on cached steps in a row leaves no choice. False where only the residuals will tell."""
    left = rules.steps - 1 - step
    if left <= 0:
        return False
    capped = not forces_hit(rules) and 0 <= rules.max_continuous < left
    return bool(rules.off) or rules.compute_last_step or step + 1 < _warm_up(rules, mask) or capped
