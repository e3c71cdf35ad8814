"""Pinned host memory for streamed weights, through ComfyUI's own accounting and within its limits.

A tensor that ComfyUI will not pin (limit reached, memory-mapped, not contiguous) stays pageable: its copies are
right, but do not overlap with compute. Everything is unpinned when the engine goes, and with the model at the latest.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import comfy.model_management
import torch


class PinnedHostMemory:
    """Pins tensors in place and keeps them alive until they are unpinned. Sizes in bytes."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._pinned: list[torch.Tensor] = []
        self._release = weakref.finalize(self, _unpin_all, self._pinned)
        self._release.atexit = False
        self.pinned_bytes = 0
        self.pageable_bytes = 0
        for tensor in tensors:
            self._pin(tensor)

    def _pin(self, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        # Some versions pin by type: parameters, but no bare tensors. Unpinning goes by address.
        if size and comfy.model_management.pin_memory(torch.nn.Parameter(tensor, requires_grad=False)):
            self._pinned.append(tensor)
            self.pinned_bytes += size
        else:
            self.pageable_bytes += size

    def release(self) -> None:
        """Unpin everything. Nothing may be copied from it any more."""
        self._release()
        self.pinned_bytes = 0


def _unpin_all(tensors: list[torch.Tensor]) -> None:
    while tensors:
        comfy.model_management.unpin_memory(tensors.pop())


def wants_pinning(choice: str, device: Any) -> bool:
    """Whether to pin: ``off`` never does, and on the CPU there is no copy that could gain from it."""
    return choice != "off" and not comfy.model_management.is_device_cpu(device)
