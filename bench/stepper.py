"""Model calls over a stack of real blocks, streamed by the engine and gated by the cache as ComfyUI would have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.dbcache.rules import DBCacheSettings
from pack.dbcache.session import DBCacheSession
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.base import OffloadDevice
from pack.offload.placement import Placement
from pack.offload.streamer import BlockStreamer
from pack.stack.call import StackCall
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from pack.stack.outlook import Outlook


class Stepper:
    """Runs model calls; resident blocks are moved to the device for good, streamed ones stay in main memory.

    Args:
        blocks: take and return one hidden state.
        placement: what is streamed.
        offload: the engine's device.
        device: where the blocks compute.
        hidden: input of every call; a call that is to be a miss gets it negated, one that is to hit as it was.
        cache: DBCache's settings, ``None`` to run without it.
        calls: in a run.
    """

    def __init__(
        self,
        blocks: Sequence[torch.nn.Module],
        placement: Placement,
        offload: OffloadDevice,
        device: torch.device,
        hidden: torch.Tensor,
        cache: DBCacheSettings | None,
        calls: int,
    ) -> None:
        self._blocks = blocks
        self._streamed = placement.streamed
        self._offload = offload
        self._calls = calls
        self._hidden = hidden.to(device)
        for index, block in enumerate(blocks):
            if index not in placement.streamed:
                block.to(device)
        weights = {index: BlockWeights(blocks[index]) for index in placement.streamed}
        self._weights = weights
        self._streamer = BlockStreamer(weights, len(blocks), offload, placement.prefetch)
        layout = StackLayout((PlacedSegment(Segment((HiddenState("hidden", "x", position=0),)), 0, len(blocks)),))
        self._session = DBCacheSession(cache.rules(len(blocks)), calls, layout) if cache is not None else None
        self._sign = 1.0
        self.hits: list[bool] = []
        self.output: torch.Tensor | None = None

    @property
    def streamed_bytes(self) -> int:
        """Bytes copied so far."""
        return self._streamer.counts.streamed

    @torch.inference_mode()
    def call(self, number: int, pattern: Sequence[bool]) -> None:
        """Make model call ``number``; the cache is offered what makes it take ``pattern``."""
        if not pattern[number]:
            self._sign = -self._sign
        info = CallInfo(step=number, sigma=0.0, last=number + 1 == self._calls)
        session = self._session
        gate = CallGate(session, info) if session is not None else None
        whole = Outlook(next_head=None if info.last else len(self._blocks))
        outlook = session.outlook(info) if session is not None else whole
        result = StackCall(self._blocks, gate, self._streamer, outlook).run(self._forward)
        self.output = result.output
        self.hits.append(result.outcome is not None and result.outcome.hit)

    def _forward(self) -> torch.Tensor:
        x = self._hidden * self._sign
        for block in self._blocks:
            x = block(x)
        return x

    @torch.inference_mode()
    def copy_all(self) -> None:
        """Copy every streamed block once, with nothing beside it: what the bus needs for a call."""
        self._streamer.release_slots()
        buffer = self._offload.empty(max(weights.size for weights in self._weights.values()))
        done = self._offload.mark()
        for weights in self._weights.values():
            done = self._offload.start_copy(weights.copy_pairs(buffer), done)
        self._offload.finish(done)

    @contextmanager
    def one_on_device(self) -> Iterator[torch.nn.Module]:
        """Give a block with its weights on the device, for :meth:`compute_all`."""
        index = self._streamed[0] if self._streamed else 0
        if index not in self._weights:
            yield self._blocks[index]
            return
        weights = self._weights[index]
        buffer = self._offload.empty(weights.size)
        ready = self._offload.start_copy(weights.copy_pairs(buffer), self._offload.mark())
        self._offload.wait(ready)
        with weights.installed(weights.device_entries(buffer, self._offload.to_device)):
            yield self._blocks[index]

    @torch.inference_mode()
    def compute_all(self, block: torch.nn.Module) -> None:
        """Compute ``block`` as often as there are blocks: what compute needs for a call."""
        x = self._hidden
        for _ in self._blocks:
            x = block(x)

    def close(self) -> None:
        """Give everything back, resident blocks included."""
        self._streamer.release_slots()
        for index, block in enumerate(self._blocks):
            if index not in self._streamed:
                block.to("meta")
        if self._session is not None:
            self._session.close()
