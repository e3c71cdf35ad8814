"""A device without hardware: copies arrive only when waited for, and a virtual clock tells how long it all took.

- A copy's destination reads as NaN from the moment the copy starts until compute waits for it.
- Overwriting memory that compute may still read raises :class:`RaceError`: the copy did not wait for a mark made
  after the buffer's last use, or after its allocation.
- The clock: one copy engine with a fixed bandwidth, one compute stream, a host that runs ahead of both until
  :meth:`VirtualDevice.synchronise`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


class RaceError(AssertionError):
    """A buffer was overwritten while compute could still read it."""


@dataclass
class VirtualEvent:
    """A point of one stream: its ``number`` in the order of events, its ``time``, and the copies it completes."""

    number: int
    time: float
    pending: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class VirtualDevice:
    """Implements ``OffloadDevice``. Times in milliseconds, bandwidth in bytes per millisecond.

    Args:
        bandwidth: of the bus.
        capacity: bytes that :meth:`empty` may hand out; ``None`` for no limit.
    """

    overlaps = True

    def __init__(self, bandwidth: float = 1e3, capacity: int | None = None) -> None:
        self._bandwidth = bandwidth
        self._capacity = capacity
        self._numbers = itertools.count(1)
        self._in_use_since: dict[int, int] = {}
        self._pending: list[VirtualEvent] = []
        self.compute_time = 0.0
        self.bus_time = 0.0
        self.host_time = 0.0
        self.stall = 0.0
        self.bytes_moved = 0
        self.copies = 0
        self.allocated = 0

    def empty(self, size: int) -> torch.Tensor:
        if self._capacity is not None and self.allocated + size > self._capacity:
            raise torch.OutOfMemoryError(f"virtual device: no room for {size} bytes")
        self.allocated += size
        buffer = torch.full((size,), 0xFF, dtype=torch.uint8)
        # the former owner of this memory may still be read by compute
        self._in_use_since[buffer.untyped_storage().data_ptr()] = next(self._numbers)
        return buffer

    def start_copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: VirtualEvent | None
    ) -> VirtualEvent:
        size = 0
        for destination, source in pairs:
            self._check_race(destination, after)
            destination.fill_(float("nan") if destination.is_floating_point() else 0x7F)
            size += source.numel() * source.element_size()
            self.copies += 1
        start = max(self.bus_time, self.host_time, after.time if after is not None else 0.0)
        self.bus_time = start + size / self._bandwidth
        self.bytes_moved += size
        event = VirtualEvent(next(self._numbers), self.bus_time, list(pairs))
        self._pending.append(event)
        return event

    def wait(self, event: VirtualEvent) -> None:
        self._deliver(event)
        self.stall += max(0.0, event.time - self.compute_time)
        self.compute_time = max(self.compute_time, event.time)

    def mark(self) -> VirtualEvent:
        return VirtualEvent(next(self._numbers), self.compute_time)

    def finish(self, event: VirtualEvent) -> None:
        self._deliver(event)
        self.host_time = max(self.host_time, event.time)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def stamp(self) -> VirtualEvent:
        return VirtualEvent(next(self._numbers), max(self.compute_time, self.host_time))

    def copy_stamp(self) -> VirtualEvent:
        return VirtualEvent(next(self._numbers), self.bus_time)

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float | None:
        return end.time - start.time if end.time <= self.host_time else None

    def compute(self, duration: float) -> None:
        """Let a block take ``duration`` milliseconds of the compute stream."""
        self.compute_time = max(self.compute_time, self.host_time) + duration

    def synchronise(self) -> None:
        """Let the host wait for compute, as reading a number back from the device does."""
        self.host_time = max(self.host_time, self.compute_time)

    def _deliver(self, event: VirtualEvent) -> None:
        """Copies arrive in order; only those of ``event`` itself are being waited for, and in use from now on."""
        for copy in [one for one in self._pending if one.number <= event.number]:
            for destination, source in copy.pending:
                destination.copy_(source)
            self._pending.remove(copy)
        for destination, _ in event.pending:
            self._in_use_since[destination.untyped_storage().data_ptr()] = next(self._numbers)

    def _check_race(self, destination: torch.Tensor, after: VirtualEvent | None) -> None:
        used = self._in_use_since.get(destination.untyped_storage().data_ptr())
        if used is not None and (after is None or after.number < used):
            raise RaceError("a slot is overwritten while the block in it may still run")
