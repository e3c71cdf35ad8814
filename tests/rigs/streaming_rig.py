"""A stack of one-matrix blocks on the virtual device, with the streaming engine between them."""

from __future__ import annotations

import torch
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import VirtualDevice
from pack.offload.streamer import BlockStreamer
from pack.stack.call import StackCall
from pack.stack.outlook import Outlook, Plan

from rigs.scripted_gate import ScriptedGate

WIDTH = 8
BLOCK_BYTES = WIDTH * WIDTH * 4


class Block(torch.nn.Module):
    """One matrix; takes ``duration`` of the virtual compute stream."""

    def __init__(self, seed: int, device: VirtualDevice | None = None, duration: float = 1.0, width: int = WIDTH):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(width, WIDTH, generator=generator) / 3, requires_grad=False)
        self.device, self.duration = device, duration
        self.on_call = lambda: None

    def forward(self, x):
        self.on_call()
        if self.device is not None:
            self.device.compute(self.duration)
        return x + torch.tanh(x @ self.weight.t()[:, :WIDTH])


class StreamingRig:
    """A stack, the virtual device, and the engine between them."""

    def __init__(self, total=8, *, streamed=None, prefetch=1, bandwidth=1e9, duration=1.0, widths=None):
        self.device = VirtualDevice(bandwidth)
        widths = widths or [WIDTH] * total
        self.blocks = [Block(i, self.device, duration, widths[i]) for i in range(total)]
        self.originals = [block.weight for block in self.blocks]
        self.checksums = [block.weight.clone() for block in self.blocks]
        self.streamed = tuple(range(total)) if streamed is None else tuple(streamed)
        weights = {index: BlockWeights(self.blocks[index]) for index in self.streamed}
        self.streamer = BlockStreamer(weights, total, self.device, prefetch)
        self.total = total
        self.ran: list[int] = []
        for index, block in enumerate(self.blocks):
            block.on_call = lambda index=index: self.check_running(index)

    def check_running(self, index):
        """A running block sees its own true weights, streamed ones not on the host."""
        weight = self.blocks[index].weight
        assert torch.equal(weight, self.checksums[index])
        assert (weight is self.originals[index]) == (index not in self.streamed)

    def check_at_rest(self):
        for block, original, checksum in zip(self.blocks, self.originals, self.checksums, strict=True):
            assert block.weight is original
            assert torch.equal(original, checksum)

    def call(self, run=None, *, plan=None, next_head=-1, always=None, later=True, x=None):
        run = range(self.total) if run is None else run
        next_head = self.total if next_head == -1 else next_head
        x = torch.linspace(-1, 1, WIDTH) if x is None else x
        before = self.streamer.counts.copy()
        announced = None
        if always is not None and plan is not None:
            plan, announced = Plan((0,), complete=False), plan.blocks
        elif always is not None:
            plan = Plan((0,), complete=False)
        outlook = Outlook(plan, next_head, tuple(always) if always is not None else None, later)
        read_back = [lambda blocks, ran: self.device.synchronise()]
        call = StackCall(self.blocks, ScriptedGate(run, announced), self.streamer, outlook, read_back)

        def forward():
            hidden = x
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

        result = call.run(forward)
        self.ran = result.ran
        self.check_at_rest()
        copied = self.streamer.counts.since(before)
        self.moved, self.wasted = copied.streamed, copied.wasted_bytes
        return result.output

    def expected(self, run=None, x=None):
        run = range(self.total) if run is None else run
        x = torch.linspace(-1, 1, WIDTH) if x is None else x
        for index in run:
            x = x + torch.tanh(x @ self.checksums[index].t()[:, :WIDTH])
        return x
