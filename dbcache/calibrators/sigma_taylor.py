"""Forecasts along the noise level."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .base import Forecaster, keep_last

SAME_SIGMA = 1e-6


class SigmaTaylorCalibrator(Forecaster):
    """Extrapolates the residual as a polynomial in the noise level instead of the step's number.

    With residuals M_i computed at noise levels s_i, the last n + 1 of them for order n::

        forecast(s) = sum_i M_i prod_{j != i} (s - s_j) / (s_i - s_j)

    which is Lagrange's form of the interpolating polynomial: exact for residuals that are polynomials of degree n in
    sigma, however unevenly the schedule steps. TaylorSeer (arXiv 2503.06923) does this in the step's number with
    finite differences. When the noise level turns round (a restart), what came before no longer counts.

    Args:
        order: n, at least 1. Until enough steps are computed the order is lower.
    """

    def __init__(self, order: int = 1) -> None:
        self._order = order
        self._sigma = 0.0
        self._samples: dict[str, list[torch.Tensor]] = {}
        self._sigmas: dict[str, list[float]] = {}

    def reset_cache(self) -> None:
        """Forget everything."""
        self._samples.clear()
        self._sigmas.clear()

    def begin(self, sigma: float) -> None:
        """Note the noise level of the call that begins."""
        self._sigma = sigma

    def update(self, residual: torch.Tensor, name: str) -> None:
        """Take a residual computed at the present noise level."""
        sigmas = self._sigmas.setdefault(name, [])
        samples = self._samples.setdefault(name, [])
        if sigmas and abs(sigmas[-1] - self._sigma) <= SAME_SIGMA * max(1.0, abs(self._sigma)):
            sigmas.pop()
            samples.pop()
        if len(sigmas) >= 2 and (sigmas[-1] - sigmas[-2]) * (self._sigma - sigmas[-1]) < 0:
            del sigmas[:-1], samples[:-1]
        keep_last(samples, residual, self._order + 1)
        sigmas.append(self._sigma)
        del sigmas[: -len(samples)]

    def approximate(self, name: str) -> torch.Tensor:
        """Return the forecast at the present noise level; the last computed residual while there is only one."""
        weights = lagrange_weights(self._sigmas[name], self._sigma)
        forecast = self._samples[name][-1] * weights[-1]
        for sample, weight in zip(self._samples[name], weights[:-1], strict=False):
            forecast = forecast.add_(sample, alpha=weight)
        return forecast


def lagrange_weights(nodes: Sequence[float], at: float) -> list[float]:
    """Return the weight of each node's value in the polynomial through all of them, evaluated ``at``."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights
