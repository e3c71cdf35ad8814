"""A device without streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .base import CopyPair, Event


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
