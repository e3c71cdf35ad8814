"""The only module that touches cache-dit: it counts the steps and holds the residuals and the calibrators.

cache-dit (https://github.com/vipshop/cache-dit) is driven block by block through ``CachedContextManager``, one
context a branch. Its own block wrappers do not fit ComfyUI: they keep references where blocks work in place,
and tell the conditions apart by counting calls.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .calibrators import calibrator_choice
from .calibrators.base import Forecaster
from .compare import differences
from .decision import History
from .main_memory import Arrival, OnDevice, Store
from .memory import tensor_bytes
from .residual_names import buffer_of, fn_residual
from .rules import RunRules

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
    """cache-dit's contexts of one sampling run.

    Args:
        rules: of the run.
        store: keeps the tensors between calls.
    """

    def __init__(self, rules: RunRules, store: Store | None = None) -> None:
        caching = load_cache_dit()
        with_mask = rules.scm != "none"
        mask = caching.steps_mask(mask_policy=rules.scm, total_steps=rules.steps) if with_mask else ()
        self.mask: tuple[int, ...] = tuple(mask)
        self._calibrator = calibrator_choice(rules.calibrator)
        self._order = rules.calibrator_order
        self._caching = caching
        self._manager = caching.CachedContextManager(name="dit_layerwise_offload")
        self._store = store or OnDevice()

    def new_context(self, name: str) -> BranchContext:
        """Make the context of one branch. ``name`` is unique in the run."""
        context = self._manager.new_context(
            name=name,
            cache_config=self._caching.DBCacheConfig(enable_separate_cfg=False),
            calibrator_config=self._calibrator.cache_dit_config(self._caching, self._order),
        )
        forecaster = None
        if self._calibrator.forecaster is not None:
            context.calibrator = forecaster = self._calibrator.forecaster(self._order)
        return BranchContext(self._manager, context, self.mask, self._store, forecaster)

    def clear(self) -> None:
        """Drop every context with its tensors."""
        self._manager.clear_contexts()
        self._manager._current_context = None


class BranchContext:
    """cache-dit's context of one branch, driven by sampler steps.

    A store that keeps tensors elsewhere brings at most one at a time back. Where a tensor may still be on its way
    when the host wants to read it, the reading waits for the branch's next call.
    """

    def __init__(
        self,
        manager: Any,
        context: Any,
        mask: tuple[int, ...],
        store: Store,
        forecaster: Forecaster | None,
    ) -> None:
        self._manager = manager
        self._context = context
        self._mask = mask
        self._store = store
        self._forecaster = forecaster
        self._updated_at: dict[str, int] = {}
        self._arrivals: dict[str, Arrival] = {}
        self._unread: list[tuple[Arrival, torch.Tensor, Callable[[torch.Tensor], None]]] = []

    def begin(self, step: int, sigma: float = 0.0) -> None:
        """Make this the current context and bring its step counter to ``step``; a step begins once, however often
        the sampler evaluates in it. ``sigma`` is the noise level of this evaluation."""
        self._manager.set_context(self._context)
        self._read_what_arrived()
        if self._forecaster is not None:
            self._forecaster.begin(sigma)
        while self._manager.get_current_step() < step:
            self._manager.mark_step_begin()

    def history(self, recorded: bool, control_changed: bool) -> History:
        """Return how the branch came to the call in progress, by cache-dit's counters."""
        manager = self._manager
        cached, in_a_row = manager.get_cached_steps(), manager.get_continuous_cached_steps()
        if cached and cached[-1] == manager.get_current_step():
            in_a_row -= 1
        return History(manager.get_current_step(), len(cached), in_a_row, self._mask, recorded, control_changed)

    def look(self, residuals: dict[str, torch.Tensor]) -> None:
        """Show a forecaster the fresh Fn residuals of a call that may be cached."""
        if self._forecaster is not None:
            self._forecaster.look(residuals)

    def differences(self, residuals: dict[str, torch.Tensor]) -> dict[str, float]:
        """Return how far each state's Fn residual is from the kept one, of those that have one (see
        :func:`.compare.differences`)."""
        return differences(residuals, lambda state: self._brought(fn_residual(state), residuals[state].device))

    def has_kept(self, states: Iterable[str]) -> bool:
        """Whether there is a kept Fn residual of every state."""
        return all(self._context.get_buffer(buffer_of(fn_residual(state))) is not None for state in states)

    @property
    def kept_bytes(self) -> int:
        """The size of everything kept between calls, in bytes."""
        return tensor_bytes(self._context.buffers, self._context.calibrator, [tensor for _, tensor, _ in self._unread])

    def add_cached_step(self) -> None:
        """Count the step in progress as cached, once."""
        cached = self._manager.get_cached_steps()
        if not cached or cached[-1] != self._manager.get_current_step():
            self._manager.add_cached_step()

    def drop_middle_residuals(self, names: Iterable[str]) -> None:
        """Free the buffers that a computed call is about to replace (calibrators keep their own history)."""
        for name in names:
            self._manager.remove_buffer(buffer_of(name))

    def set_fn_residual(self, state: str, residual: torch.Tensor) -> None:
        """Keep the residual over the first blocks, to compare the next calls' with."""
        name = fn_residual(state)
        kept = self._keep(name, residual)
        self._manager.set_Fn_buffer(kept, prefix=name)
        forecaster = self._forecaster
        if self._first_of_step(name) and forecaster is not None:
            self._read(name, kept, lambda tensor: forecaster.anchor(state, tensor))

    def set_middle_residual(self, name: str, residual: torch.Tensor) -> None:
        """Keep the residual over the middle blocks. A calibrator takes one sample a step: a second evaluation at
        the same step would be a division by an interval of zero."""
        if not self._manager.is_calibrator_enabled():
            self._manager.set_Bn_buffer(self._keep(name, residual), prefix=name)
        elif self._first_of_step(name):
            kept = self._keep(name, residual)
            self._read(name, kept, lambda tensor: self._manager.set_Bn_buffer(tensor, prefix=name))

    def add_middle_residual(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """Return a new tensor: ``hidden`` plus the kept, or forecast, residual over the middle blocks."""
        arrival = None if self._manager.is_calibrator_enabled() else self._arrivals.get(name)
        residual = self._store.bring(self._manager.get_Bn_buffer(name), hidden.device, arrival)
        return (residual + hidden).contiguous()

    def _first_of_step(self, name: str) -> bool:
        step = self._manager.get_current_step()
        last, self._updated_at[name] = self._updated_at.get(name), step
        return last != step

    def _keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        kept, arrival = self._store.keep(tensor)
        self._arrivals.pop(name, None)
        if arrival is not None:
            self._arrivals[name] = arrival
        return kept

    def _brought(self, name: str, device: torch.device) -> torch.Tensor | None:
        kept = self._context.get_buffer(buffer_of(name))
        return None if kept is None else self._store.bring(kept, device, self._arrivals.get(name))

    def _read(self, name: str, kept: torch.Tensor, read: Callable[[torch.Tensor], None]) -> None:
        """Have ``read`` called with a kept tensor: now, or with the branch's next call if it is on its way."""
        if name in self._arrivals:
            self._unread.append((self._arrivals[name], kept, read))
        else:
            read(kept)

    def _read_what_arrived(self) -> None:
        for arrival, kept, read in self._unread:
            arrival.finish()
            read(kept)
        self._unread.clear()
