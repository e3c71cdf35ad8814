"""The narrow interface between the streaming engine and a compute device.

Four verbs are all the engine needs: get a buffer, start a copy, wait for one, mark a point of the compute
stream. Stamps are marks that can be timed, where copies run beside compute. An event is opaque to the engine. The
tests add a virtual device that delivers copies late.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

Event = Any
CopyPair = tuple[torch.Tensor, torch.Tensor]
WITHOUT_STREAMS = ("cpu", "mps", "privateuseone")
OLDEST_TORCH = "2.6"  # the first with torch.accelerator


class OffloadDevice(Protocol):
    """What the engine asks of a device. Sizes are in bytes.

    ``overlaps`` says whether copies run beside compute; only then is there anything to time, and are there stamps.
    """

    overlaps: bool

    def empty(self, size: int) -> torch.Tensor:
        """Return an uninitialised uint8 tensor of ``size`` bytes on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room.
        """

    def start_copy(self, pairs: Sequence[CopyPair], after: Event | None) -> Event:
        """Start copying each (destination, source) once ``after`` has passed; return the event of completion."""

    def wait(self, event: Event) -> None:
        """Let everything computed from now on wait for ``event``, without blocking the host."""

    def mark(self) -> Event:
        """Return an event that passes when everything computed so far is done."""

    def finish(self, event: Event) -> None:
        """Block the host until ``event`` has passed."""

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``tensor`` on the device, for tensor types that cannot be copied piece by piece."""

    def stamp(self) -> Event:
        """Return an event of the compute stream that :meth:`elapsed_ms` can time."""

    def copy_stamp(self) -> Event:
        """Return an event of the copies started so far that :meth:`elapsed_ms` can time."""

    def elapsed_ms(self, start: Event, end: Event) -> float | None:
        """Return the milliseconds between two stamps of one kind, ``None`` while ``end`` has not passed."""


class SynchronousDevice:
    """A device without streams (CPU, MPS, DirectML): a copy is finished when :meth:`start_copy` returns."""

    overlaps = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def empty(self, size: int) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def start_copy(self, pairs: Sequence[CopyPair], after: Event | None) -> Event:
        for destination, source in pairs:
            destination.copy_(source)
        return None

    def wait(self, event: Event) -> None:
        return None

    def mark(self) -> Event:
        return None

    def finish(self, event: Event) -> None:
        return None

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)


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
    def _on_copy_stream(self):
        # Setting a stream sets the current device as well.
        device_index = torch.accelerator.current_device_index()
        compute_stream = torch.accelerator.current_stream(self.device)
        torch.accelerator.set_stream(self._copy_stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(compute_stream)
            torch.accelerator.set_device_index(device_index)


def offload_device(device: torch.device) -> OffloadDevice:
    """Return the implementation for ``device``: streams where the backend has them, plain copies elsewhere.

    Raises:
        RuntimeError: the device has streams, but this torch has no generic interface to them.
    """
    if device.type in WITHOUT_STREAMS:
        return SynchronousDevice(device)
    check_torch(device)
    return AcceleratorDevice(device)


def check_torch(device: torch.device) -> None:
    """Raise a RuntimeError if blocks cannot be streamed to ``device`` with the torch that is installed."""
    if device.type not in WITHOUT_STREAMS and not hasattr(torch, "accelerator"):
        raise RuntimeError(
            f"torch is {torch.__version__}, but streaming blocks to {device.type} needs {OLDEST_TORCH} or newer. Update"
            " it the way ComfyUI was installed, or remove DiT Layerwise Offload."
        )
