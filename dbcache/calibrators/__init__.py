"""The calibrators: one table, from which every list of their names is made.

A new one is a class in a file of its own (see :class:`.base.Forecaster`) and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import Forecaster
from .secant import SecantCalibrator
from .sigma_taylor import SigmaTaylorCalibrator


@dataclass(frozen=True)
class CalibratorChoice:
    """One calibrator; without ``config`` and ``forecaster`` the last residual is repeated.

    Attributes:
        blurb: its forecast in a few words, for tooltip and pages.
        keeps: its memory beside the last residuals, in a few words.
        config: makes cache-dit's configuration of it, from (``cache_dit.caching``, order).
        forecaster: makes the pack's own one for a branch, from (order,); then there is no ``config``.
    """

    blurb: str
    keeps: str
    config: Callable[[Any, int], Any] | None = None
    forecaster: Callable[[int], Forecaster] | None = None

    def __post_init__(self) -> None:
        if self.config is not None and self.forecaster is not None:
            raise ValueError("config and forecaster are both given: a calibrator is either cache-dit's or the pack's.")

    def cache_dit_config(self, caching: Any, order: int) -> Any:
        """Return the configuration for cache-dit's context, ``None`` for no calibrator.

        A forecaster of the pack's own takes the place of the calibrator that cache-dit makes. Each state is forecast
        under a name of its own, so cache-dit's second calibrator, for encoder states, is never needed.
        """
        if self.forecaster is not None:
            return _taylorseer(caching, order)
        return self.config(caching, order) if self.config is not None else None


def _taylorseer(caching: Any, order: int) -> Any:
    return caching.TaylorSeerCalibratorConfig(enable_encoder_calibrator=False, taylorseer_order=order)


CALIBRATORS: dict[str, CalibratorChoice] = {
    "none": CalibratorChoice("the same as last time", "nothing"),
    "taylorseer": CalibratorChoice(
        "cache-dit's Taylor series in steps of the schedule, of calibrator_order",
        "three residuals, five at order 2",
        config=_taylorseer,
    ),
    "foca": CalibratorChoice(
        "cache-dit's predictor and corrector in steps of the schedule",
        "three residuals",
        config=lambda caching, order: caching.FoCaCalibratorConfig(enable_encoder_calibrator=False),
    ),
    "dmd": CalibratorChoice(
        "cache-dit's decomposition into modes that grow or decay",
        "some 25 residuals, nearly 60 in half precision: its fit is in double",
        config=lambda caching, order: caching.DMDCalibratorConfig(enable_encoder_calibrator=False),
    ),
    "secant": CalibratorChoice(
        "extrapolated by how far the first block's residual has moved along its last change",
        "two residuals",
        forecaster=lambda order: SecantCalibrator(),
    ),
    "sigma_taylor": CalibratorChoice(
        "a polynomial in the noise level, of calibrator_order",
        "one residual for each order",
        forecaster=SigmaTaylorCalibrator,
    ),
}


def calibrator_choice(name: str) -> CalibratorChoice:
    """Return the row of one calibrator.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in CALIBRATORS:
        raise ValueError(f"calibrator is {name!r}, but must be one of {', '.join(CALIBRATORS)}.")
    return CALIBRATORS[name]
