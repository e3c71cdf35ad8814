"""What a forecaster of the pack's own is asked and told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch


class Forecaster(ABC):
    """Forecasts, for one branch, the residuals over the middle blocks.

    cache-dit's contexts call it in the place of one of their calibrators: :meth:`reset_cache`,
    :meth:`mark_step_begin`, :meth:`update`, :meth:`approximate`. The pack calls :meth:`begin`, :meth:`look` and
    :meth:`anchor`, which cache-dit does not know. ``name`` tells the middle residuals of the segments and states
    apart (:mod:`..residual_names`).
    """

    @abstractmethod
    def reset_cache(self) -> None:
        """Forget everything."""

    @abstractmethod
    def update(self, residual: torch.Tensor, name: str) -> None:
        """Take a computed residual over the middle blocks, once a step. Do not write to it."""

    @abstractmethod
    def approximate(self, name: str) -> torch.Tensor:
        """Return the forecast for the call in progress, of the shape of the last computed residual."""

    def mark_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Note that a sampler step begins."""
        return None

    def begin(self, sigma: float) -> None:
        """Note that a call at noise level ``sigma`` begins."""
        return None

    def look(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """See each state's residual over the first blocks, in a call that may be cached."""
        return None

    def anchor(self, state: str, residual: torch.Tensor) -> None:
        """Take one state's residual over the first blocks of a computed call, once a step. Do not write to it."""
        return None


def keep_last(kept: list[torch.Tensor], newest: torch.Tensor, most: int) -> None:
    """Append ``newest`` to ``kept`` and leave the last ``most`` of one shape there."""
    if kept and kept[-1].shape != newest.shape:
        kept.clear()
    kept.append(newest)
    del kept[:-most]
