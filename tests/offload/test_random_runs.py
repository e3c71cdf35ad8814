"""Random runs of a cached, streamed stack: nothing is copied for nothing, and every block has its weights."""

from __future__ import annotations

import random

import pytest
import torch
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import VirtualDevice
from pack.offload.residency import streamed_blocks
from pack.offload.streamer import BlockStreamer
from pack.stack.call import StackCall
from pack.stack.outlook import Outlook, Plan
from rigs.scripted_gate import ScriptedGate

WIDTH = 4


class RandomRun:
    """A stack, a placement and a sequence of computed and cached calls, drawn with a seed."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.total = draw.randint(4, 9)
        self.fn, self.bn = draw.randint(1, 3), draw.randint(0, self.total - 4)
        policy, resident = draw.choice(["leading", "strided", "cache_aware"]), draw.randint(0, self.total - 1)
        self.streamed = streamed_blocks(policy, self.total, resident, front=self.fn, back=self.bn)
        self.always = (*range(self.fn), *range(self.total - self.bn, self.total))
        self.hits = [False] + [draw.random() < 0.6 for _ in range(draw.randint(0, 11))]
        self.known = [draw.random() < 0.4 for _ in self.hits]
        self.certain = [draw.random() < 0.7 and not all(self.hits[call + 1 :]) for call in range(len(self.hits))]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.blocks = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(self.total)]
        weights = {index: BlockWeights(self.blocks[index]) for index in self.streamed}
        device = VirtualDevice(bandwidth=draw.choice([1.0, 1e2, 1e6]))
        self.streamer = BlockStreamer(weights, self.total, device, draw.randint(0, 4))

    @torch.inference_mode()
    def call(self, number):
        """Make one call; return (output, expected output, bytes moved)."""
        run = self.always if self.hits[number] else range(self.total)
        moved = self.streamer.counts.streamed
        expected = x = torch.linspace(-1, 1, WIDTH)
        for index in run:
            expected = self.blocks[index](expected)
        known = self.known[number] and not self.hits[number]
        announced = tuple(one for one in run if known or one >= self.fn)
        gate = ScriptedGate(run, announced, judged_at=self.fn - 1, known=known)
        outlook = Outlook(
            Plan(tuple(range(self.fn)), complete=False),
            next_head=self.fn if number + 1 < len(self.hits) else None,
            always=self.always,
            computed_later=self.certain[number],
        )

        def forward():
            hidden = x
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

        result = StackCall(self.blocks, gate, self.streamer, outlook).run(forward)
        return result.output, expected, self.streamer.counts.streamed - moved


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_nothing_is_copied_for_nothing(first):
    held_over = 0
    for seed in range(first, first + 50):
        run = RandomRun(seed)
        covered = not set(run.always) & set(run.streamed)
        for number, hit in enumerate(run.hits):
            output, expected, moved = run.call(number)
            assert torch.equal(output, expected), seed
            assert run.streamer.counts.wasted_bytes == 0, seed
            assert not (hit and covered and moved), seed
            held_over += hit and any(run.streamer.holds(index) for index in run.streamed)
        run.streamer.release_slots()
        assert run.streamer.counts.wasted_bytes == 0, seed
    assert held_over > 0
