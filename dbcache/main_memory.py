"""Where kept tensors live between calls: on the device, or in main memory.

A device with streams copies to main memory on its own: the host starts the copy and goes on. Whoever reads the copy
on the host waits for it first, and the device waits before it takes the copy back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

WITHOUT_STREAMS = ("cpu", "mps", "privateuseone")
Event = Any


class CopyingDevice(Protocol):
    """What is asked of a device with streams."""

    def start_copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Event]:
        """Start copying to main memory; return the copy, and the event that passes when it is there.

        Raises:
            RuntimeError: there is no main memory that the device can copy to on its own.
        """

    def wait(self, event: Event) -> None:
        """Let everything computed from now on wait for ``event``, without blocking the host."""

    def finish(self, event: Event) -> None:
        """Block the host until ``event`` has passed."""


@dataclass(frozen=True)
class Arrival:
    """A copy on its way to main memory."""

    device: CopyingDevice
    event: Event

    def wait(self) -> None:
        """Let the device wait for the copy."""
        self.device.wait(self.event)

    def finish(self) -> None:
        """Let the host wait for the copy."""
        self.device.finish(self.event)


class Store(Protocol):
    """Keeps tensors between calls."""

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Arrival | None]:
        """Return the tensor to keep, and its arrival if it may not be there yet."""

    def bring(self, kept: torch.Tensor, device: torch.device, arrival: Arrival | None) -> torch.Tensor:
        """Return a kept tensor on ``device``."""


class OnDevice:
    """Leaves every tensor where it is."""

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Arrival | None]:
        return tensor, None

    def bring(self, kept: torch.Tensor, device: torch.device, arrival: Arrival | None) -> torch.Tensor:
        return kept


class AcceleratorCopies:
    """A device with streams. Copies run on the current stream, in order with its computations, into pinned memory.

    torch reuses pinned memory only when the copies from and to it are done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start_copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Event]:
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        return copy, torch.accelerator.current_stream(self._device).record_event()

    def wait(self, event: Event) -> None:
        torch.accelerator.current_stream(self._device).wait_event(event)

    def finish(self, event: Event) -> None:
        event.synchronize()


def copying_device(device: torch.device) -> CopyingDevice | None:
    """Return how to copy beside the host, ``None`` for a device, or a torch, without a generic way to."""
    if device.type in WITHOUT_STREAMS or not hasattr(torch, "accelerator"):
        return None
    return AcceleratorCopies(device)


class MainMemory:
    """Keeps every tensor in main memory.

    Args:
        note: is told of fallbacks, for the log and the report.
        device_for: returns how to copy beside the host, ``None`` for plain copies.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        device_for: Callable[[torch.device], CopyingDevice | None] = copying_device,
    ) -> None:
        self._note = note
        self._device_for = device_for

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Arrival | None]:
        device = self._device_for(tensor.device)
        if device is None:
            return tensor.cpu(), None
        try:
            copy, event = device.start_copy(tensor)
        except RuntimeError:
            self._note("DBCache: main memory for the cache could not be pinned, so copying to it takes longer.")
            return tensor.cpu(), None
        return copy, Arrival(device, event)

    def bring(self, kept: torch.Tensor, device: torch.device, arrival: Arrival | None) -> torch.Tensor:
        if arrival is None:
            return kept.to(device)
        arrival.wait()
        return kept.to(device, non_blocking=True)
