"""DBCache's settings: presets, validation, and what they mean for a schedule of a given length.

Names are cache-dit's (``DBCacheConfig``): Fn and Bn blocks always run, W warm-up steps, R the residual
difference threshold, MC the cap on cached steps in a row. Preset values and their sources: README, "Presets".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CALIBRATORS = ("none", "taylorseer", "foca", "dmd", "secant", "sigma_taylor")
SCM_MASKS = ("none", "slow", "medium", "fast", "ultra")
SCM_POLICIES = ("dynamic", "static")
CACHE_DEVICES = ("auto", "device", "cpu")
PRESET_NAMES = ("quality", "balanced", "fast", "custom")

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


@dataclass(frozen=True)
class DBCacheSettings:
    """The node's inputs, validated. See the node's tooltips for what each does. ``most_bn`` limits a preset's Bn."""

    preset: str = "quality"
    fn: int = 1
    bn: int = 2
    warmup_steps: int = 8
    threshold: float = 0.08
    max_continuous: int = 2
    max_cached: int = -1
    calibrator: str = "none"
    calibrator_order: int = 1
    scm: str = "none"
    scm_policy: str = "dynamic"
    start_percent: float = 0.0
    end_percent: float = 1.0
    cache_device: str = "auto"
    verbose: bool = False
    compute_last_step: bool = True
    most_bn: int | None = None

    def __post_init__(self) -> None:
        _one_of("preset", self.preset, PRESET_NAMES)
        _one_of("calibrator", self.calibrator, CALIBRATORS)
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

    def with_preset(self) -> DBCacheSettings:
        """Return the settings with the preset's values filled in; ``custom`` keeps the node's own."""
        if self.preset == "custom":
            return self
        preset = PRESETS[self.preset]
        return replace(
            self,
            fn=preset.fn,
            bn=preset.bn if self.most_bn is None else min(preset.bn, self.most_bn),
            warmup_steps=preset.warmup_steps,
            threshold=preset.threshold,
            max_continuous=preset.max_continuous,
            max_cached=-1,
        )

    def with_long_skips(self, model: str) -> DBCacheSettings:
        """Return the settings for a stack whose late blocks take the outputs of early ones: a preset's Bn is lowered
        to its Fn; ``custom`` raises ``ValueError`` where Bn is above Fn."""
        if self.preset != "custom":
            return replace(self, most_bn=PRESETS[self.preset].fn)
        if self.bn <= self.fn:
            return self
        raise ValueError(
            f"Bn is {self.bn} and Fn is {self.fn}, but in {model} late blocks take the outputs of early ones, which"
            " must then have run. Set Fn to at least Bn."
        )

    def check_stack(self, blocks: int) -> None:
        """Raise ``ValueError`` unless at least one of the stack's ``blocks`` is left to skip."""
        settings = self.with_preset()
        if settings.fn + settings.bn < blocks:
            return
        source = "" if self.preset == "custom" else f" (preset {self.preset!r})"
        raise ValueError(
            f"Fn is {settings.fn} and Bn is {settings.bn}{source}, but the model has {blocks} blocks: Fn + Bn must be"
            " smaller than the number of blocks, or nothing is left to skip. Lower Fn or Bn, or use preset 'custom'."
        )


@dataclass(frozen=True)
class RunSettings:
    """Settings for one sampling run of known length.

    ``off`` is the reason caching is off for this run, or an empty string; ``notes`` are to be said once.
    """

    settings: DBCacheSettings
    use_scm: bool
    off: str
    notes: tuple[str, ...]


def settings_for_run(settings: DBCacheSettings, steps: int) -> RunSettings:
    """Fit ``settings`` to a schedule of ``steps`` sampler steps.

    A preset's warm-up shrinks to a third of the steps on schedules shorter than twice the warm-up, and below
    6 steps a preset switches caching off; ``custom`` is taken at its word. cache-dit's step masks are drawn for
    28 steps and only scale down to 9: shorter schedules go without.
    """
    settings_now = settings.with_preset()
    notes = []
    off = ""
    if settings.preset != "custom":
        if steps < FEWEST_STEPS:
            off = f"{steps} steps are too few to gain from caching"
            notes.append(f"DBCache: {off}; every step is computed.")
        elif steps < 2 * settings_now.warmup_steps:
            shorter = max(1, steps // 3)
            notes.append(
                f"DBCache: preset {settings.preset!r} warms up for {shorter} instead of {settings_now.warmup_steps}"
                f" steps, because the schedule has only {steps}."
            )
            settings_now = replace(settings_now, warmup_steps=shorter)
    use_scm = settings.scm != "none"
    if not off and settings_now.threshold == 0.0 and not (use_scm and settings.scm_policy == "static"):
        off = "threshold is 0"
    if use_scm and steps < FEWEST_STEPS_FOR_SCM:
        use_scm = False
        notes.append(
            f"DBCache: scm {settings.scm!r} is left out, because a step mask needs at least {FEWEST_STEPS_FOR_SCM}"
            f" steps and the schedule has {steps}."
        )
    return RunSettings(settings_now, use_scm, off, tuple(notes))


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}, but must be one of {', '.join(allowed)}.")


def _at_least(field: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise ValueError(f"{field} is {value}, but must be at least {lowest}.")


def _between(field: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{field} is {value}, but must be between 0 and 1.")
