"""The narrow interface between the streaming engine and a compute device.

Four verbs are all the engine needs: get a buffer, start a copy, wait for one, mark a point of the compute
stream. Where copies run beside compute, a device has stamps too: marks that can be timed. An event is opaque to the
engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import torch

Event = Any
CopyPair = tuple[torch.Tensor, torch.Tensor]


class OffloadDevice(Protocol):
    """The engine's side of a device. Sizes are in bytes.

    ``overlaps`` says whether copies run beside compute. A device on which they do is a :class:`TimedDevice`.
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


class TimedDevice(OffloadDevice, Protocol):
    """A device whose copies run beside compute: only then could times change the best placement."""

    def stamp(self) -> Event:
        """Return an event of the compute stream that :meth:`elapsed_ms` can time."""

    def copy_stamp(self) -> Event:
        """Return an event of the copies started so far that :meth:`elapsed_ms` can time."""

    def elapsed_ms(self, start: Event, end: Event) -> float | None:
        """Return the milliseconds between two stamps of one kind, ``None`` while ``end`` has not passed."""


def is_timed(device: OffloadDevice) -> TypeGuard[TimedDevice]:
    """Whether copies and blocks can be timed on ``device``."""
    return device.overlaps
