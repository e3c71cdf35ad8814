"""Which sampler step a model call belongs to.

A sampler step is an interval of the schedule, not a model call: some samplers evaluate twice at one sigma,
some between two entries, restarts go up again. So changes of interval are counted, never calls.
"""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 1e-5


def interval_of(sigmas: Sequence[float], sigma: float, current: int | None) -> int:
    """Return the index i of the interval of ``sigmas`` that ``sigma`` lies in: from entry i up to entry i + 1.

    The search begins at the ``current`` interval and goes forward, then starts over, so that schedules which
    repeat or rise resolve to the nearest interval ahead. A sigma outside the schedule belongs to the nearer end.
    """
    count = max(1, len(sigmas) - 1)
    first = 0 if current is None else current
    for index in [*range(first, count), *range(first)]:
        if _contains(sigmas, index, sigma):
            return index
    return 0 if sigma >= sigmas[0] else count - 1


def _contains(sigmas: Sequence[float], index: int, sigma: float) -> bool:
    start, end = sigmas[index], sigmas[index + 1] if index + 1 < len(sigmas) else sigmas[index]
    if _close(sigma, start):
        return True
    return not _close(sigma, end) and min(start, end) < sigma < max(start, end)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


class StepCounter:
    """Counts the sampler steps of one run from the sigmas its model calls are made at."""

    def __init__(self, sigmas: Sequence[float]) -> None:
        self._sigmas = list(sigmas)
        self._interval: int | None = None
        self.step = -1

    @property
    def steps(self) -> int:
        """Number of steps in the schedule."""
        return max(0, len(self._sigmas) - 1)

    @property
    def at_last(self) -> bool:
        """Whether the current step is the schedule's last one."""
        return self._interval is not None and self._interval >= self.steps - 1

    def at(self, sigma: float) -> int:
        """Return the step of a model call at ``sigma``, counting from 0."""
        interval = interval_of(self._sigmas, sigma, self._interval)
        if interval != self._interval:
            self._interval = interval
            self.step += 1
        return self.step
