"""Forecasts by how far the first blocks' residual has moved."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch

from ..residual_names import state_of
from .base import Forecaster, keep_last

FARTHEST = 3.0
TOKENS_AT_ONCE = 4096


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
        keep_last(self._samples.setdefault(name, []), residual, 2)

    def approximate(self, name: str) -> torch.Tensor:
        """Return the forecast; the last computed residual as long as there is nothing to extrapolate from."""
        kept = self._samples[name]
        horizon = self._horizon(name, kept[-1])
        if len(kept) < 2 or horizon is None:
            return kept[-1]
        return torch.lerp(kept[0], kept[1], (1.0 + horizon).to(kept[1].dtype))

    def _horizon(self, name: str, residual: torch.Tensor) -> torch.Tensor | None:
        own = self._moves.get(state_of(name))
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
        along, length = (reduce(torch.add, products) for products in zip(*moves, strict=True))
        return _ratio(along, length)


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return <a, b> in float32: for each item of a batch, shape (batch, 1, ...), or of everything, shape ().

    In pieces, so that no second copy of a long sequence is made in float32.
    """
    tokens = 1 if a.dim() >= 3 else 0
    summed = tuple(range(tokens, a.dim()))
    pieces = zip(a.split(TOKENS_AT_ONCE, tokens), b.split(TOKENS_AT_ONCE, tokens), strict=True)
    return reduce(torch.add, [(x.float() * y.float()).sum(dim=summed, keepdim=tokens == 1) for x, y in pieces])


def _ratio(along: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(along / length, nan=0.0, posinf=0.0, neginf=0.0).clamp(0.0, FARTHEST)
