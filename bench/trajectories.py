"""What the gate gets to see in a simulated run: residuals that drift with sigma, or that force a given pattern."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch


def shifted_sigma(shift: float, call: int, calls: int) -> float:
    """Return the noise level of a model call in a flow schedule of ``calls`` steps with a time shift.

    ``sigma = shift t / (1 + (shift - 1) t)`` with t falling evenly from 1 (Esser et al., "Scaling Rectified Flow
    Transformers", 2024).
    """
    t = 1 - call / calls
    return shift * t / (1 + (shift - 1) * t)


class SigmaDrift:
    """First-block residuals that turn at a constant rate with sigma and keep their length, each stream on its own
    schedule. Two calls then differ, by cache-dit's measure, by ``2 sin(drift * (sigma_i - sigma_j) / 2)``: in
    proportion to the difference in sigma as long as that is small, as on a rectified flow's straight path.

    Args:
        shifts: time shift of each stream's schedule.
        drift: relative change of the residual a unit of sigma.
        calls: model calls in the run.
    """

    def __init__(self, shifts: Mapping[str, float], drift: float, calls: int) -> None:
        self.states = tuple(shifts)
        self._shifts = shifts
        self._drift = drift
        self._calls = calls
        self._phases = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)

    def residual(self, state: str, call: int) -> torch.Tensor:
        return torch.sin(self._drift * shifted_sigma(self._shifts[state], call, self._calls) + self._phases)


class GivenPattern:
    """Residuals that make the gate take exactly the given hits, at any threshold up to 0.9 once warm-up is over."""

    def __init__(self, hits: Sequence[bool]) -> None:
        self.states = ("hidden",)
        self._levels = [1.0]
        for hit in hits[1:]:
            self._levels.append(self._levels[-1] if hit else -10 * self._levels[-1])

    def residual(self, state: str, call: int) -> torch.Tensor:
        return torch.tensor([self._levels[call]], dtype=torch.float64)


def capped_pattern(calls: int, warmup: int, in_a_row: int) -> tuple[bool, ...]:
    """Return the pattern of a cache that hits whenever warm-up and the cap on hits in a row allow it."""
    return tuple(call >= warmup and (call - warmup) % (in_a_row + 1) != in_a_row for call in range(calls))
