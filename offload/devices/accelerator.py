"""A device with streams: CUDA, ROCm, XPU, NPU and whatever else torch's generic accelerator interface drives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from .base import CopyPair, Event


class AcceleratorDevice:
    """A device with streams, through torch's generic accelerator API.

    Copies run on one side stream. Destinations are long-lived slot buffers, so no ``record_stream`` is needed:
    the engine orders every reuse by events and finishes copies before it lets a buffer go.
    """

    overlaps = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copy_stream = torch.Stream(device=device)

    def empty(self, size: int) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def start_copy(self, pairs: Sequence[CopyPair], after: Event | None) -> Event:
        with self._on_copy_stream():
            if after is not None:
                self._copy_stream.wait_event(after)
            for destination, source in pairs:
                destination.copy_(source, non_blocking=True)
            return self._copy_stream.record_event()

    def wait(self, event: Event) -> None:
        torch.accelerator.current_stream(self.device).wait_event(event)

    def mark(self) -> Event:
        return torch.accelerator.current_stream(self.device).record_event()

    def finish(self, event: Event) -> None:
        event.synchronize()

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def stamp(self) -> Event:
        return torch.accelerator.current_stream(self.device).record_event(self._timed_event())

    def copy_stamp(self) -> Event:
        return self._copy_stream.record_event(self._timed_event())

    def elapsed_ms(self, start: Event, end: Event) -> float | None:
        return start.elapsed_time(end) if end.query() else None

    def _timed_event(self) -> Event:
        return torch.Event(device=self.device, enable_timing=True)

    @contextmanager
    def _on_copy_stream(self) -> Iterator[None]:
        # Setting a stream sets the current device as well.
        device_index = torch.accelerator.current_device_index()
        compute_stream = torch.accelerator.current_stream(self.device)
        torch.accelerator.set_stream(self._copy_stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(compute_stream)
            torch.accelerator.set_device_index(device_index)
