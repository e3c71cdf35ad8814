"""Slots: preallocated device buffers that hold one streamed block each."""

from __future__ import annotations

import logging

import torch

from ..stack.copies import CopyCounts, mib
from .block_weights import BlockWeights
from .devices.base import Event, OffloadDevice

log = logging.getLogger("dit_layerwise_offload.offload")


class Slot:
    """One device buffer and the events that order its reuse.

    ``copies`` are the counts of the model call that copied the block in it.
    """

    def __init__(self, buffer: torch.Tensor, allocated: Event) -> None:
        self.buffer = buffer
        self.copies = CopyCounts()
        self.ready: Event = None
        # The allocator may hand out memory that kernels of the compute stream are still using: the first copy has
        # to wait for them as any later one waits for the block before it.
        self.done: Event = allocated
        self._kept_entries: dict[int, list[torch.Tensor]] = {}

    def fill(self, weights: BlockWeights, device: OffloadDevice) -> None:
        """Start copying a block into this slot, after the last block that used it is done."""
        self.ready = device.start_copy(weights.copy_pairs(self.buffer), self.done)

    def entries(self, index: int, weights: BlockWeights, device: OffloadDevice) -> list[torch.Tensor]:
        """Return the tensors of block ``index``, which was copied in last, as views of the buffer. They are kept:
        a slot never moves."""
        if not weights.packs_fully:
            return weights.device_entries(self.buffer, device.to_device)
        if index not in self._kept_entries:
            self._kept_entries[index] = weights.device_entries(self.buffer, device.to_device)
        return self._kept_entries[index]


class SlotPool:
    """The slots of one model, all of one size, allocated together and given back together."""

    def __init__(self, device: OffloadDevice, slot_size: int, count: int) -> None:
        self._device = device
        self._slot_size = slot_size
        self._count = self._wanted = count
        self._slots: list[Slot] = []

    @property
    def slots(self) -> list[Slot]:
        return self._slots

    @property
    def allocated_bytes(self) -> int:
        return len(self._slots) * self._slot_size

    def acquire(self) -> None:
        """Allocate the slots that are missing.

        Raises:
            torch.OutOfMemoryError: not even one slot fits on the device.
        """
        while len(self._slots) < self._wanted:
            try:
                # Not an inference tensor, as the weights that its views stand in for are none: torch chooses between
                # matrix products by that, and they differ in their last bits.
                with torch.inference_mode(False):
                    buffer = self._device.empty(self._slot_size)
                self._slots.append(Slot(buffer, self._device.mark()))
            except torch.OutOfMemoryError as error:
                if not self._slots:
                    raise torch.OutOfMemoryError(
                        f"The device has no room for one slot of {mib(self._slot_size)} to stream blocks"
                        " through. Lower resident_blocks or vram_budget_gb, or free device memory."
                    ) from error
                log.warning(
                    "Room for %d of %d slots only: prefetching %d blocks ahead.",
                    len(self._slots),
                    self._wanted,
                    len(self._slots) - 1,
                )
                self._wanted = len(self._slots)

    def release(self) -> None:
        """Give every buffer back, after the copies still under way into it have finished."""
        for slot in self._slots:
            if slot.ready is not None:
                self._device.finish(slot.ready)
        self._slots = []
        self._wanted = self._count
