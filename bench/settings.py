"""DBCache's settings for benchmarks."""

from __future__ import annotations

from pack.dbcache.rules import DBCacheSettings


def cache_settings(
    fn: int, bn: int, warmup: int, threshold: float, in_a_row: int, *, compute_last_step: bool = True
) -> DBCacheSettings:
    """Return DBCache's settings taken at their word; the last step is computed by default, as the node has it."""
    return DBCacheSettings(
        preset="custom",
        fn=fn,
        bn=bn,
        warmup_steps=warmup,
        threshold=threshold,
        max_continuous=in_a_row,
        calibrator="none",
        compute_last_step=compute_last_step,
    )
