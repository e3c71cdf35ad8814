"""How fast MiniMax-H3's first-block residual turns with sigma, from published hit counts of another run than the rows
that are simulated with it: other card, other clip, other thresholds.

SGLang issue 33828 counts cached calls at four thresholds and gives the median difference that was judged. The drift is
the one that comes nearest to the counts (least squares); of several, the one nearest to the median difference.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from .policies import planned
from .published import H3_AUDIO_SHIFT, H3_CALLS, H3_VIDEO_SHIFT
from .settings import cache_settings
from .simulation import RunResult, Scenario, simulate
from .trajectories import SigmaDrift

H3_SHIFTS = {"video": H3_VIDEO_SHIFT, "audio": H3_AUDIO_SHIFT}


@dataclass(frozen=True)
class HitCounts:
    """Cached calls of 50, by threshold; ``median`` is that of the differences judged at the largest."""

    warmup: int
    in_a_row: int
    hits: dict[float, int]
    median: float


PUBLISHED = HitCounts(warmup=4, in_a_row=3, hits={0.04: 18, 0.08: 29, 0.12: 32, 0.24: 34}, median=0.060)


def judged_run(drift: float, threshold: float, counts: HitCounts = PUBLISHED) -> RunResult:
    """Return a run with Fn 1 and Bn 0 as published; times and sizes mean nothing in it."""
    stack = Scenario((1,) * 3, (1.0,) * 3, 1.0, ())
    cache = cache_settings(1, 0, counts.warmup, threshold, counts.in_a_row, compute_last_step=False)
    return simulate(stack, H3_CALLS, planned, cache, SigmaDrift(H3_SHIFTS, drift, H3_CALLS))


def distance(drift: float, counts: HitCounts = PUBLISHED) -> tuple[int, float]:
    """Return how far a drift is from what was published: squared hits, then the median difference."""
    runs = {threshold: judged_run(drift, threshold, counts) for threshold in counts.hits}
    squares = sum((runs[threshold].hits - hits) ** 2 for threshold, hits in counts.hits.items())
    judged = [call.difference for call in runs[max(runs)].calls if call.difference is not None]
    return squares, abs(statistics.median(judged) - counts.median)


def fitted_drift() -> float:
    """Return the drift (radians a unit of sigma, between 1 and 3) nearest to the published counts."""
    near = min((1 + 0.2 * index for index in range(11)), key=distance)
    return min((round(near + 0.04 * index, 2) for index in range(-5, 6)), key=distance)
