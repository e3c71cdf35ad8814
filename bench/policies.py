"""Ways to stream blocks, to be compared in one simulation: the pack's engine and three others.

Each of the others is written from the description its project publishes, reduced to what decides which bytes move
when, and gets the same blocks, slots and bus. What would only slow one of them down further is left out: cache-dit
copies weights back to the host after use, SGLang allocates a buffer for each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import VirtualDevice, VirtualEvent
from pack.offload.slots import Slot, SlotPool
from pack.offload.streamer import BlockStreamer
from pack.stack.copies import CopyCounts
from pack.stack.outlook import Outlook, Plan

Forward = Callable[..., Any]


def planned(weights: Mapping[int, BlockWeights], total: int, device: VirtualDevice, prefetch: int) -> BlockStreamer:
    """The pack's engine as it is: prefetches along the plan that the cache announces."""
    return BlockStreamer(weights, total, device, prefetch)


class _SlotUser:
    """Slots and copies, shared by the policies below; a policy says what is copied when."""

    def __init__(self, weights: Mapping[int, BlockWeights], total: int, device: VirtualDevice, prefetch: int) -> None:
        self._weights = dict(weights)
        self._total = total
        self._device = device
        self._window = prefetch
        slots = min(prefetch + 1, len(self._weights))
        self._pool = SlotPool(device, max((w.size for w in self._weights.values()), default=0), slots)
        self._held: dict[int, Slot] = {}
        self._last: int | None = None

    def begin_call(self, outlook: Outlook, copies: CopyCounts) -> None:
        self._pool.acquire()
        self._last = None

    def announce(self, plan: Plan) -> None:
        """None of these policies is told what the cache decides."""

    def end_call(self) -> None:
        """Nothing happens between calls by itself."""

    def _load(self, index: int, after: VirtualEvent | None = None) -> None:
        """Copy a block into a free slot, not before ``after`` has passed."""
        slot = next(self._free_slots())
        if after is not None:
            slot.done = after
        slot.fill(self._weights[index], self._device)
        self._held[index] = slot

    def _has_room(self) -> bool:
        return next(self._free_slots(), None) is not None

    def _free_slots(self) -> Iterator[Slot]:
        return (slot for slot in self._pool.slots if slot not in self._held.values())

    def _release(self, index: int) -> None:
        del self._held[index]

    def _run(self, index: int, forward: Forward, args: tuple, kwargs: dict[str, Any]) -> Any:
        weights, slot = self._weights[index], self._held[index]
        self._device.wait(slot.ready)
        with weights.installed(slot.entries(index, weights, self._device)):
            result = forward(*args, **kwargs)
        slot.done = self._device.mark()
        return result


class Reactive(_SlotUser):
    """SGLang's layerwise offload with the rule of its pull request 35858.

    Just before a block runs, the next streamed blocks in index order are requested, the last block's successor
    being the first; a copy starts after what compute had been given so far. Only a block that ran counts: when one
    comes out of order, what was prefetched in between is released and the destination loaded at once.
    """

    def run_block(self, index: int, forward: Forward, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self._last is not None and index != self._last + 1:
            self._release_all_but(index)
        elif self._last is None:
            self._release_all_but(*self._first_streamed())
        if index in self._weights and index not in self._held:
            if not self._has_room():
                self._release_all_but()
            self._load(index, self._device.mark())
        for coming in self._following(index):
            if coming not in self._held and self._has_room():
                self._load(coming, self._device.mark())
        self._last = index
        if index not in self._weights:
            return forward(*args, **kwargs)
        result = self._run(index, forward, args, kwargs)
        self._release(index)
        return result

    def _following(self, index: int) -> list[int]:
        order = [*range(index + 1, self._total), *range(index)]
        return [one for one in order if one in self._weights][: self._window]

    def _first_streamed(self) -> list[int]:
        return sorted(self._weights)[: self._window]

    def _release_all_but(self, *kept: int) -> None:
        for index in [held for held in self._held if held not in kept]:
            self._release(index)


class InOrderLookahead(_SlotUser):
    """cache-dit's layerwise offload with asynchronous transfer (its module docstring, version 1.5.3).

    A block that was prefetched frees its place in the window; then the window is refilled with the blocks after it
    in the list, which ends with the last one. A prefetched block stays until it runs. A block that was not
    prefetched is copied on the compute stream: no overlap.
    """

    def run_block(self, index: int, forward: Forward, args: tuple, kwargs: dict[str, Any]) -> Any:
        if index not in self._weights:
            return forward(*args, **kwargs)
        if index not in self._held:
            if not self._has_room():
                # its window is counted beside the running block: here the farthest one makes room
                self._release(max(self._held))
            self._load(index, self._device.mark())
            self._device.wait(self._held[index].ready)
        for coming in range(index + 1, self._total):
            if not self._has_room():
                break
            if coming in self._weights and coming not in self._held:
                self._load(coming)
        result = self._run(index, forward, args, kwargs)
        self._release(index)
        return result


class NoLookahead(_SlotUser):
    """ComfyUI's prefetch queue under dynamic VRAM (``comfy/model_prefetch.py``, 0.33): each block is cast when its
    turn comes, on an offload stream that first waits for compute, and compute then waits for the cast."""

    def run_block(self, index: int, forward: Forward, args: tuple, kwargs: dict[str, Any]) -> Any:
        if index not in self._weights:
            return forward(*args, **kwargs)
        self._load(index, self._device.mark())
        result = self._run(index, forward, args, kwargs)
        self._release(index)
        return result


POLICIES = {
    "plan (this pack)": planned,
    "reactive (SGLang)": Reactive,
    "in order (cache-dit)": InOrderLookahead,
    "no look-ahead (ComfyUI)": NoLookahead,
}
