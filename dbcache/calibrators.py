"""Two forecasters of the pack's own for the residual over the skipped blocks, beside cache-dit's.

They have the interface of cache-dit's calibrators, so that its contexts call them: ``mark_step_begin``, ``update``
with a computed residual, ``approximate``. What they need beyond that the pack tells them: the noise level of the
call, and the residual over the first blocks. Residuals over the middle blocks are known by name, one for each segment
and state; all are of one branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

FARTHEST = 3.0
TOKENS_AT_ONCE = 4096
SAME_SIGMA = 1e-6


class Forecaster:
    """What the pack tells its own calibrators, beside cache-dit's calls. Does nothing where it is not needed."""

    def mark_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """cache-dit's count of steps."""

    def begin(self, sigma: float) -> None:
        """A call at noise level ``sigma`` begins."""

    def look(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """The Fn residual of each state in a call that may be cached."""

    def anchor(self, state: str, residual: torch.Tensor) -> None:
        """The Fn residual of one state in a computed call."""


class SecantCalibrator(Forecaster):
    """Extrapolates by how far the fresh Fn residual has moved along its own last change.

    With r the residual over the first blocks and M the one over the middle blocks, both computed at the last two full
    steps 0 and 1, and r fresh::

        h = <r - r1, r1 - r0> / <r1 - r0, r1 - r0>, clamped to 0..3
        forecast = M1 + h (M1 - M0)

    The secant step of numerical analysis, its length not counted in steps but measured at the blocks that run anyway:
    it stays right where the trajectory slows down or speeds up, as long as both residuals move together. To take the
    first block as the yardstick is First Block Cache's idea (ParaAttention), to extrapolate cached features
    TaylorSeer's (arXiv 2503.06923).

    Each item of a batch has an ``h`` of its own; hidden states (tokens, width) without a batch have one for each
    state packed in them. A state that is not among the first blocks' moves by all of them together.
    """

    def __init__(self) -> None:
        self._anchors: dict[str, torch.Tensor] = {}
        self._changes: dict[str, torch.Tensor] = {}
        self._moves: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows: dict[str, int] = {}
        self._samples: dict[str, list[torch.Tensor]] = {}

    def reset_cache(self) -> None:
        """Forget everything."""
        for kept in (self._anchors, self._changes, self._moves, self._rows, self._samples):
            kept.clear()

    def anchor(self, state: str, residual: torch.Tensor) -> None:
        """Take the Fn residual of a full step, any shape."""
        last = self._anchors.get(state)
        self._changes.pop(state, None)
        self._moves.pop(state, None)
        if last is not None and last.shape == residual.shape:
            self._changes[state] = residual - last
        self._anchors[state] = residual

    def look(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Measure how far the Fn residuals have moved."""
        for state, fresh in residuals.items():
            change = self._changes.get(state)
            if change is not None and change.shape == fresh.shape:
                moved = fresh.to(change.device) - self._anchors[state]
                self._moves[state] = (_products(moved, change), _products(change, change))
                self._rows[state] = len(fresh)

    def update(self, residual: torch.Tensor, name: str) -> None:
        """Take a computed residual over the middle blocks."""
        _keep_last(self._samples.setdefault(name, []), residual, 2)

    def approximate(self, name: str) -> torch.Tensor:
        """Return the forecast; the last computed residual as long as there is nothing to extrapolate from."""
        kept = self._samples[name]
        horizon = self._horizon(name, kept[-1])
        if len(kept) < 2 or horizon is None:
            return kept[-1]
        return torch.lerp(kept[0], kept[1], (1.0 + horizon).to(kept[1].dtype))

    def _horizon(self, name: str, residual: torch.Tensor) -> torch.Tensor | None:
        own = self._moves.get(_state_of(name))
        if own is not None:
            return _ratio(*own)
        if not self._moves:
            return None
        if residual.dim() == 2 and sum(self._rows[state] for state in self._moves) == len(residual):
            spans = [_ratio(*move).expand(self._rows[state], 1) for state, move in self._moves.items()]
            return torch.cat(spans)
        moves = list(self._moves.values())
        if any(along.shape != moves[0][0].shape for along, _ in moves):
            return None
        return _ratio(sum(along for along, _ in moves), sum(length for _, length in moves))


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
        _keep_last(samples, residual, self._order + 1)
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


def _keep_last(kept: list[torch.Tensor], newest: torch.Tensor, most: int) -> None:
    if kept and kept[-1].shape != newest.shape:
        kept.clear()
    kept.append(newest)
    del kept[:-most]


def _state_of(name: str) -> str:
    """The state in a middle residual's name: ``0_image_Bn_residual`` is of ``image``."""
    return name.partition("_")[2].removesuffix("_Bn_residual")


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return <a, b> in float32: for each item of a batch, shape (batch, 1, ...), or of everything, shape ().

    In pieces, so that no second copy of a long sequence is made in float32.
    """
    tokens = 1 if a.dim() >= 3 else 0
    summed = tuple(range(tokens, a.dim()))
    pieces = zip(a.split(TOKENS_AT_ONCE, tokens), b.split(TOKENS_AT_ONCE, tokens), strict=True)
    return sum((x.float() * y.float()).sum(dim=summed, keepdim=tokens == 1) for x, y in pieces)


def _ratio(along: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(along / length, nan=0.0, posinf=0.0, neginf=0.0).clamp(0.0, FARTHEST)
