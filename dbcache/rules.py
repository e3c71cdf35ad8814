"""DBCache's rules in three stages: a node's inputs, the rules for its model, the rules of a run of known length.

Names are cache-dit's (``DBCacheConfig``): Fn and Bn blocks always run, W warm-up steps, R the residual
difference threshold, MC the cap on cached steps in a row. Preset values and their sources: README, "Presets".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .calibrators import calibrator_choice

SCM_MASKS = ("none", "slow", "medium", "fast", "ultra")
SCM_POLICIES = ("dynamic", "static")
CACHE_DEVICES = ("auto", "device", "cpu")

FEWEST_STEPS = 6
FEWEST_STEPS_FOR_SCM = 9


@dataclass(frozen=True)
class Preset:
    """One row of the preset table."""

    fn: int
    bn: int
    warmup_steps: int
    threshold: float
    max_continuous: int


PRESETS = {
    "quality": Preset(1, 2, 8, 0.08, 2),
    "balanced": Preset(1, 0, 4, 0.12, 2),
    "fast": Preset(1, 0, 2, 0.24, 16),
}
PRESET_NAMES = (*PRESETS, "custom")


@dataclass(frozen=True)
class _Values:
    """The values that all three stages have; the defaults are the node's.

    Attributes:
        preset: a row of ``PRESETS``, or ``custom``.
        fn: how many blocks at the stack's start always run and are compared.
        bn: how many blocks at its end always run.
        warmup_steps: how many steps at the schedule's start are computed.
        threshold: the relative difference below which a call is cached, 0 to 1; 0 never caches, 1 does not compare.
        max_continuous: the most cached steps in a row, -1 for no limit.
        max_cached: the most cached steps of a run, -1 for no limit.
        calibrator: a row of ``CALIBRATORS``.
        calibrator_order: of those calibrators that have one, at least 1.
        scm: the mask of the steps that may be cached, one of ``SCM_MASKS``.
        scm_policy: ``dynamic`` compares in the steps that the mask leaves open, ``static`` caches them.
        start_percent: the part of the denoising process, 0 to 1, at which caching begins.
        end_percent: the part of it at which caching ends.
        cache_device: where kept tensors live between calls, one of ``CACHE_DEVICES``.
        verbose: whether every call is logged.
        compute_last_step: whether the schedule's last step is always computed.
    """

    preset: str = "quality"
    fn: int = 1
    bn: int = 2
    warmup_steps: int = 8
    threshold: float = 0.08
    max_continuous: int = 2
    max_cached: int = -1
    calibrator: str = "secant"
    calibrator_order: int = 1
    scm: str = "none"
    scm_policy: str = "dynamic"
    start_percent: float = 0.0
    end_percent: float = 1.0
    cache_device: str = "auto"
    verbose: bool = False
    compute_last_step: bool = True


@dataclass(frozen=True)
class DBCacheSettings(_Values):
    """The node's inputs, validated.

    Raises:
        ValueError: a value is not allowed; the message names field, value and the allowed ones.
    """

    def __post_init__(self) -> None:
        _one_of("preset", self.preset, PRESET_NAMES)
        calibrator_choice(self.calibrator)
        _one_of("scm", self.scm, SCM_MASKS)
        _one_of("scm_policy", self.scm_policy, SCM_POLICIES)
        _one_of("cache_device", self.cache_device, CACHE_DEVICES)
        _at_least("Fn", self.fn, 1)
        _at_least("Bn", self.bn, 0)
        _at_least("warmup_steps", self.warmup_steps, 0)
        _between("residual_diff_threshold", self.threshold)
        _at_least("max_continuous_cached_steps", self.max_continuous, -1)
        _at_least("max_cached_steps", self.max_cached, -1)
        _at_least("calibrator_order", self.calibrator_order, 1)
        _between("start_percent", self.start_percent)
        _between("end_percent", self.end_percent)
        if self.start_percent >= self.end_percent:
            raise ValueError(
                f"start_percent is {self.start_percent} and end_percent is {self.end_percent}: caching would never be"
                " on. Set start_percent below end_percent."
            )

    def rules(self, blocks: int, long_skips_of: str = "") -> CacheRules:
        """Return the rules for a stack: the preset's values filled in, ``custom`` taken at its word.

        Args:
            blocks: number of blocks in the stack.
            long_skips_of: name of the model if its late blocks take the outputs of early ones. Those must then have
                run, so a preset's Bn is lowered to its Fn.

        Raises:
            ValueError: no block is left to skip, or a ``custom`` Bn is above Fn in a stack with long skips.
        """
        rules = CacheRules(**{**vars(self), **self._preset_values(bool(long_skips_of))})
        if long_skips_of and rules.bn > rules.fn:
            raise ValueError(
                f"Bn is {rules.bn} and Fn is {rules.fn}, but in {long_skips_of} late blocks take the outputs of early"
                " ones, which must then have run. Set Fn to at least Bn."
            )
        if rules.fn + rules.bn >= blocks:
            source = "" if self.preset == "custom" else f" (preset {self.preset!r})"
            raise ValueError(
                f"Fn is {rules.fn} and Bn is {rules.bn}{source}, but the model has {blocks} blocks: Fn + Bn must be"
                " smaller than the number of blocks, or nothing is left to skip. Lower Fn or Bn, or use preset"
                " 'custom'."
            )
        return rules

    def _preset_values(self, long_skips: bool) -> dict[str, Any]:
        if self.preset == "custom":
            return {}
        preset = PRESETS[self.preset]
        bn = min(preset.bn, preset.fn) if long_skips else preset.bn
        return {**vars(preset), "bn": bn, "max_cached": -1}


@dataclass(frozen=True)
class CacheRules(_Values):
    """The rules for one model, made once by :meth:`DBCacheSettings.rules`. Equal where the values are."""


@dataclass(frozen=True)
class RunRules(_Values):
    """The rules of one run, made by :func:`rules_for_run`.

    Attributes:
        steps: sampler steps in the schedule.
        off: why nothing is cached in this run, or an empty string.
        notes: to be said once.
    """

    steps: int = 0
    off: str = ""
    notes: tuple[str, ...] = ()


def rules_for_run(rules: CacheRules, steps: int) -> RunRules:
    """Fit ``rules`` to a schedule of ``steps`` sampler steps.

    A preset's warm-up shrinks to a third of the steps on schedules shorter than twice the warm-up, and below
    6 steps a preset switches caching off; ``custom`` is taken at its word. cache-dit's step masks are drawn for
    28 steps and only scale down to 9: shorter schedules go without.
    """
    notes = []
    off = ""
    warmup_steps, scm = rules.warmup_steps, rules.scm
    if rules.preset != "custom":
        if steps < FEWEST_STEPS:
            off = f"{steps} steps are too few to gain from caching"
            notes.append(f"DBCache: {off}; every step is computed.")
        elif steps < 2 * warmup_steps:
            warmup_steps = max(1, steps // 3)
            notes.append(
                f"DBCache: preset {rules.preset!r} warms up for {warmup_steps} instead of {rules.warmup_steps}"
                f" steps, because the schedule has only {steps}."
            )
    if not off and rules.threshold == 0.0 and not (scm != "none" and rules.scm_policy == "static"):
        off = "threshold is 0"
    if scm != "none" and steps < FEWEST_STEPS_FOR_SCM:
        notes.append(
            f"DBCache: scm {scm!r} is left out, because a step mask needs at least {FEWEST_STEPS_FOR_SCM}"
            f" steps and the schedule has {steps}."
        )
        scm = "none"
    fitted = {**vars(rules), "warmup_steps": warmup_steps, "scm": scm}
    return RunRules(**fitted, steps=steps, off=off, notes=tuple(notes))


def _one_of(field: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}, but must be one of {', '.join(allowed)}.")


def _at_least(field: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise ValueError(f"{field} is {value}, but must be at least {lowest}.")


def _between(field: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{field} is {value}, but must be between 0 and 1.")
