"""Measures the time of a block and the rate of the bus, in the first full model call that is streamed in a run.

Events are put on the streams while the call runs and read only when all of them have passed, so that nothing waits
for the measurement. Devices without streams are not measured: their copies overlap with nothing, so the best
placement does not depend on any figure.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .devices.base import Event, TimedDevice

log = logging.getLogger("dit_layerwise_offload.offload")

MOST_COPIES = 16


@dataclass(frozen=True)
class BlockTiming:
    """The figures of one measured call.

    Attributes:
        compute_ms: median milliseconds one block computes.
        bytes_per_ms: rate of the bus, that of the fastest copy: others may have waited for a slot.
    """

    compute_ms: float
    bytes_per_ms: float


class CallTimer:
    """Collects the events of one call, then turns them into a :class:`BlockTiming`. A device that cannot make or read
    an event is not measured: the call goes on without."""

    def __init__(self, device: TimedDevice) -> None:
        self._device = device
        self._blocks: list[tuple[Event, Event]] = []
        self._copies: list[tuple[Event, Event, int]] = []
        self.failed = False

    def _tried(self, measure: Callable[..., Any], *arguments: Any) -> Any:
        if self.failed:
            return None
        try:
            return measure(*arguments)
        except RuntimeError as error:
            self.failed = True
            log.warning("Blocks and copies are not timed, so auto goes by sizes alone: %s", error)
            return None

    def block_starts(self) -> Event:
        """Mark that a block is about to compute."""
        return self._tried(self._device.stamp)

    def block_ended(self, started: Event) -> None:
        """Mark the end of a block's work; ``started`` is its beginning."""
        self._blocks.append((started, self._tried(self._device.stamp)))

    def copy_starts(self) -> Event:
        """Mark that a copy is about to be started."""
        return self._tried(self._device.copy_stamp)

    def copy_started(self, started: Event, size: int) -> None:
        """Mark the end of a copy of ``size`` bytes."""
        if len(self._copies) < MOST_COPIES:
            self._copies.append((started, self._tried(self._device.copy_stamp), size))

    def forget_blocks(self) -> None:
        """Drop the blocks of a call that did not run all of them; copies count in any call."""
        self._blocks.clear()

    def result(self) -> BlockTiming | None:
        """Return the figures, ``None`` while an event has not passed yet or when nothing was measured."""
        blocks = [self._tried(self._device.elapsed_ms, start, end) for start, end in self._blocks]
        copies = [(self._tried(self._device.elapsed_ms, start, end), size) for start, end, size in self._copies]
        if not blocks or None in blocks or any(ms is None for ms, _ in copies):
            return None
        rates = [size / ms for ms, size in copies if ms > 0]
        return BlockTiming(statistics.median(blocks), max(rates)) if rates else None
