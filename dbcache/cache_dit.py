"""The only module that touches cache-dit: it holds the decision, the residual buffers and the calibrators.

cache-dit (https://github.com/vipshop/cache-dit) is driven block by block through ``CachedContextManager``, one
context a branch. Its own block wrappers do not fit ComfyUI: they keep references where blocks work in place,
and tell the conditions apart by counting calls.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .calibrators import Forecaster, SecantCalibrator, SigmaTaylorCalibrator
from .memory import Compared, tensor_bytes
from .rules import RunSettings

if TYPE_CHECKING:
    import torch

log = logging.getLogger("dit_layerwise_offload.dbcache")

TESTED_VERSIONS = ((1, 5, 3), (1, 6))


def load_cache_dit() -> Any:
    """Import cache-dit (several seconds the first time) and return its package ``cache_dit.caching``.

    Raises:
        RuntimeError: it is not installed, is outside the tested range, or fails to import.
    """
    check_version()
    if "cache_dit" not in sys.modules:
        log.info("DBCache: importing cache-dit, which takes several seconds the first time.")
    started = time.perf_counter()
    try:
        import cache_dit.caching as caching
    except Exception as error:
        raise RuntimeError(
            f"DBCache could not import cache-dit {_installed_version()}: {error}. Reinstall it in ComfyUI's own Python:"
            " python -m pip install --force-reinstall -r requirements.txt (in this pack's folder)."
        ) from error
    log.debug("cache-dit imported in %.1f s.", time.perf_counter() - started)
    return caching


def check_version() -> None:
    """Raise ``RuntimeError`` unless a tested version of cache-dit is installed. Imports nothing of it."""
    lowest, above = TESTED_VERSIONS
    wanted = f">={'.'.join(map(str, lowest))},<{'.'.join(map(str, above))}"
    version = _installed_version()
    how = f"install it in ComfyUI's own Python: python -m pip install 'cache-dit{wanted}'"
    if version is None:
        raise RuntimeError(f"DBCache needs the package cache-dit, which is not installed; {how}")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not lowest <= numbers < above:
        raise RuntimeError(f"DBCache is tested with cache-dit{wanted}, but {version} is installed; {how}")


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version("cache-dit")
    except importlib.metadata.PackageNotFoundError:
        return None


class CacheContexts:
    """cache-dit's contexts of one sampling run."""

    def __init__(self, run: RunSettings, steps: int) -> None:
        caching = load_cache_dit()
        settings = run.settings
        mask = caching.steps_mask(mask_policy=settings.scm, total_steps=steps) if run.use_scm else None
        self._new_config = lambda: caching.DBCacheConfig(
            Fn_compute_blocks=settings.fn,
            Bn_compute_blocks=settings.bn,
            residual_diff_threshold=settings.threshold,
            max_warmup_steps=settings.warmup_steps,
            max_cached_steps=settings.max_cached,
            max_continuous_cached_steps=settings.max_continuous,
            enable_separate_cfg=False,
            steps_computation_mask=mask,
            steps_computation_policy=settings.scm_policy,
        )
        self._new_calibrator = lambda: _calibrator_config(caching, settings.calibrator, settings.calibrator_order)
        self._new_forecaster = lambda: _own_forecaster(settings.calibrator, settings.calibrator_order)
        self._manager = caching.CachedContextManager(name="dit_layerwise_offload")
        self._keep_on_cpu = settings.cache_device == "cpu"

    def new_context(self, name: str) -> BranchContext:
        """Make the context of one branch. ``name`` is unique in the run."""
        context = self._manager.new_context(
            name=name, cache_config=self._new_config(), calibrator_config=self._new_calibrator()
        )
        forecaster = self._new_forecaster()
        if forecaster is not None:
            context.calibrator = forecaster
        return BranchContext(self._manager, context, self._keep_on_cpu, forecaster)

    def clear(self) -> None:
        """Drop every context with its tensors."""
        self._manager.clear_contexts()
        self._manager._current_context = None


def _calibrator_config(caching: Any, calibrator: str, order: int) -> Any:
    # Every state is forecast under a name of its own by the context's one calibrator, so none is needed for
    # cache-dit's separate notion of encoder states.
    if calibrator in ("taylorseer", "secant", "sigma_taylor"):  # the pack's own take TaylorSeer's place in the context
        return caching.TaylorSeerCalibratorConfig(enable_encoder_calibrator=False, taylorseer_order=order)
    if calibrator == "foca":
        return caching.FoCaCalibratorConfig(enable_encoder_calibrator=False)
    if calibrator == "dmd":
        return caching.DMDCalibratorConfig(enable_encoder_calibrator=False)
    return None


def _own_forecaster(calibrator: str, order: int) -> Forecaster | None:
    if calibrator == "secant":
        return SecantCalibrator()
    return SigmaTaylorCalibrator(order) if calibrator == "sigma_taylor" else None


class BranchContext:
    """cache-dit's context of one branch, driven by sampler steps.

    With ``keep_on_cpu`` every kept tensor lives in main memory, and at most one at a time is brought back.
    """

    def __init__(
        self, manager: Any, context: Any, keep_on_cpu: bool = False, forecaster: Forecaster | None = None
    ) -> None:
        self._manager = manager
        self._context = context
        self._keep_on_cpu = keep_on_cpu
        self._forecaster = forecaster or Forecaster()
        self._updated_at: dict[str, int] = {}

    def begin(self, step: int, sigma: float = 0.0) -> None:
        """Make this the current context and bring its step counter to ``step``; a step begins once, however often
        the sampler evaluates in it. ``sigma`` is the noise level of this evaluation."""
        self._manager.set_context(self._context)
        self._forecaster.begin(sigma)
        while self._manager.get_current_step() < step:
            self._manager.mark_step_begin()

    def known_miss(self) -> str:
        """Return why the call in progress cannot hit whatever its residual, or an empty string.

        These are cache-dit's own conditions, asked for before the first blocks ran. Only ``can_cache`` decides.
        """
        manager = self._manager
        if manager.is_in_warmup():
            return "warm-up"
        if manager.is_in_full_compute_steps():
            return "mask: computed step"
        config = self._context.cache_config
        mask = config.steps_computation_mask
        if mask is not None and manager.get_current_step() >= len(mask):
            return "mask: beyond the schedule"
        if self._mask_forces_hit():
            return ""
        cached = manager.get_cached_steps()
        if 0 <= config.max_cached_steps <= len(cached):
            return f"cap: {len(cached)} cached steps in all"
        in_a_row = manager.get_continuous_cached_steps()
        if cached and cached[-1] == manager.get_current_step():
            in_a_row -= 1
        if 0 <= config.max_continuous_cached_steps <= in_a_row:
            return f"cap: {in_a_row} cached steps in a row"
        if manager.get_residual_diff_threshold() <= 0.0:
            return "threshold is 0"
        return ""

    def _mask_forces_hit(self) -> bool:
        return self._manager.is_steps_computation_mask_enabled() and (
            self._manager.get_steps_computation_policy() == "static"
        )

    def judge(self, residuals: dict[str, torch.Tensor]) -> tuple[bool, dict[str, float], str]:
        """Ask cache-dit about every state's Fn residual, once :meth:`known_miss` found nothing: all must agree.

        Returns:
            Whether the call hits, the relative difference of each state that was measured, and the reason.
        """
        self._forecaster.look(residuals)
        if self._mask_forces_hit():
            return True, {}, "mask: cached step"
        diffs: dict[str, float] = {}
        hit = True
        for state, residual in residuals.items():
            self._forget_diff()
            with self._ready_to_compare(f"{state}_Fn_residual_buffer", residual.device):
                hit = self._manager.can_cache(residual, prefix=f"{state}_Fn_residual") and hit
            diff = self._manager.get_current_step_residual_diff()
            if diff is not None and diff >= 0.0:
                diffs[state] = diff
        return hit, diffs, self._reason(hit, diffs)

    def _forget_diff(self) -> None:
        # cache-dit keeps the first difference of a step only; every state and every evaluation needs its own.
        self._context.residual_diffs.pop(str(self._manager.get_current_step()), None)

    def _reason(self, hit: bool, diffs: dict[str, float]) -> str:
        threshold = self._manager.get_residual_diff_threshold()
        if not diffs:
            return "threshold is 1" if hit else "nothing to compare with"
        state = max(diffs, key=diffs.__getitem__)
        return f"threshold: {diffs[state]:.4g} {'<' if hit else '>='} {threshold:g} ({state})"

    @property
    def kept_bytes(self) -> int:
        """What is kept between calls, in bytes."""
        return tensor_bytes(self._context.buffers, self._context.calibrator, self._forecaster)

    def add_cached_step(self) -> None:
        """Count the step in progress as cached, once."""
        cached = self._manager.get_cached_steps()
        if not cached or cached[-1] != self._manager.get_current_step():
            self._manager.add_cached_step()

    def drop_middle_residuals(self, names: Sequence[str]) -> None:
        """Free the buffers that a computed call is about to replace (calibrators keep their own history)."""
        for name in names:
            self._manager.remove_buffer(f"{name}_Bn_residual_buffer")

    def set_fn_residual(self, state: str, residual: torch.Tensor) -> None:
        """Keep the residual over the first blocks, to compare the next calls' with."""
        kept = self._kept(residual)
        self._manager.set_Fn_buffer(kept, prefix=f"{state}_Fn_residual")
        if self._first_of_step(f"{state}_Fn_residual"):
            self._forecaster.anchor(state, kept)

    def set_middle_residual(self, name: str, residual: torch.Tensor) -> None:
        """Keep the residual over the middle blocks. A calibrator takes one sample a step: a second evaluation at
        the same step would be a division by an interval of zero."""
        if self._manager.is_calibrator_enabled() and not self._first_of_step(name):
            return
        self._manager.set_Bn_buffer(self._kept(residual), prefix=f"{name}_Bn_residual")

    def _first_of_step(self, name: str) -> bool:
        step = self._manager.get_current_step()
        last, self._updated_at[name] = self._updated_at.get(name), step
        return last != step

    def add_middle_residual(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """Return a new tensor: ``hidden`` plus the kept, or forecast, residual over the middle blocks."""
        prefix = f"{name}_Bn_residual"
        if self._keep_on_cpu:
            return (self._manager.get_Bn_buffer(prefix).to(hidden.device) + hidden).contiguous()
        result, _ = self._manager.apply_cache(hidden, prefix=prefix)
        return result

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self._keep_on_cpu else tensor

    @contextmanager
    def _ready_to_compare(self, name: str, device: torch.device) -> Iterator[None]:
        """Have one kept tensor on ``device``, sparing with memory, while cache-dit compares another with it."""
        kept = self._context.get_buffer(name)
        if kept is None:
            yield
            return
        self._context.set_buffer(name, kept.to(device).as_subclass(Compared))
        try:
            yield
        finally:
            self._context.set_buffer(name, kept)
