"""A sampling run on the virtual device: the real engine and the real gate over blocks of declared size and time.

One simulated byte stands for :data:`BYTES_PER_UNIT` real ones, so that a 60 GB model fits in a few megabytes; slots,
copies, races and NaN checks are those of the virtual device. A block takes its declared compute time and checks
that it sees its own weights. The hidden states are a small vector a stream, moved by the first block as the trajectory
says, which is all the gate looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from pack.dbcache.calls import CallInfo, CallOutcome
from pack.dbcache.gate import CallGate
from pack.dbcache.rules import DBCacheSettings
from pack.dbcache.session import DBCacheSession
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import VirtualDevice
from pack.stack.call import StackCall, Streaming
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from pack.stack.outlook import Outlook

BYTES_PER_UNIT = 2**14


class Trajectory(Protocol):
    """What the first block adds to each stream at each model call: the gate compares these vectors."""

    streams: tuple[str, ...]

    def residual(self, state: str, call: int) -> torch.Tensor: ...


MakePolicy = Callable[[Mapping[int, BlockWeights], int, VirtualDevice, int], Streaming]


@dataclass(frozen=True)
class Scenario:
    """One machine, model and placement.

    Attributes:
        block_bytes: bytes of each block, in execution order.
        block_ms: milliseconds each block computes.
        bandwidth: of the bus, in bytes a millisecond.
        streamed: the blocks that do not stay on the device.
        prefetch: blocks copied ahead of the running one.
    """

    block_bytes: tuple[int, ...]
    block_ms: tuple[float, ...]
    bandwidth: float
    streamed: tuple[int, ...]
    prefetch: int = 1

    @property
    def blocks(self) -> int:
        return len(self.block_bytes)


@dataclass
class CallResult:
    """One model call; times in milliseconds. ``difference`` is the largest that was judged, if one was."""

    hit: bool
    reason: str
    difference: float | None
    ms: float
    compute_ms: float
    bytes_moved: int


@dataclass
class RunResult:
    """A whole run; sizes in bytes, times in milliseconds.

    ``needed`` is the size of the streamed blocks that ran, ``stall_ms`` how long compute waited for copies.
    """

    bandwidth: float
    calls: list[CallResult] = field(default_factory=list)
    moved: int = 0
    needed: int = 0
    stall_ms: float = 0.0
    peak_slots: int = 0

    @property
    def ms(self) -> float:
        return sum(call.ms for call in self.calls)

    @property
    def compute_ms(self) -> float:
        return sum(call.compute_ms for call in self.calls)

    @property
    def bus_ms(self) -> float:
        """The time the bus takes for what is needed, at the least."""
        return self.needed / self.bandwidth

    @property
    def bound_ms(self) -> float:
        """The least any schedule can take: the busier of compute and bus, never idle."""
        return max(self.compute_ms, self.bus_ms)

    @property
    def limit(self) -> str:
        return "compute" if self.compute_ms >= self.bus_ms else "bus"

    @property
    def wasted(self) -> int:
        """Bytes copied beyond those of the streamed blocks that ran."""
        return self.moved - self.needed

    @property
    def hits(self) -> int:
        return sum(call.hit for call in self.calls)


class _SimulatedBlock(torch.nn.Module):
    def __init__(self, index: int, units: int, ms: float, device: VirtualDevice) -> None:
        super().__init__()
        self._mark = index % 100 + 1
        self._ms = ms
        self._device = device
        self.moves: Callable[[], tuple[torch.Tensor, ...]] | None = None
        self.weight = torch.nn.Parameter(torch.full((units,), self._mark, dtype=torch.uint8), requires_grad=False)

    def forward(self, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if int(self.weight[0]) != self._mark or int(self.weight[-1]) != self._mark:
            raise AssertionError(f"block {self._mark - 1} ran without its weights")
        self._device.compute(self._ms)
        moves = self.moves() if self.moves is not None else (1.0,) * len(x)
        return tuple(value + move for value, move in zip(x, moves, strict=True))


def simulate(
    scenario: Scenario,
    calls: int,
    make_policy: MakePolicy,
    cache: DBCacheSettings | None = None,
    trajectory: Trajectory | None = None,
) -> RunResult:
    """Run ``calls`` model calls and return what they took.

    Args:
        scenario: machine, model and placement.
        calls: model calls, one a sampler step.
        make_policy: makes what streams, from (weights of the streamed blocks, blocks, device, prefetch).
        cache: DBCache's settings, ``None`` to run without it.
        trajectory: what the gate gets to see; needed with ``cache``.
    """
    return _Simulation(scenario, calls, make_policy, cache, trajectory).run()


class _Simulation:
    def __init__(
        self,
        scenario: Scenario,
        calls: int,
        make_policy: MakePolicy,
        cache: DBCacheSettings | None,
        trajectory: Trajectory | None,
    ) -> None:
        self._scenario = scenario
        self._count = calls
        self._trajectory = trajectory
        self._streams = trajectory.states if trajectory is not None else ("hidden",)
        self._device = VirtualDevice(scenario.bandwidth / BYTES_PER_UNIT)
        self._blocks = [
            _SimulatedBlock(index, max(1, round(size / BYTES_PER_UNIT)), ms, self._device)
            for index, (size, ms) in enumerate(zip(scenario.block_bytes, scenario.block_ms, strict=True))
        ]
        self._call = 0
        if trajectory is not None:
            self._blocks[0].moves = lambda: tuple(trajectory.residual(name, self._call) for name in self._streams)
        weights = {index: BlockWeights(self._blocks[index]) for index in scenario.streamed}
        self._policy = make_policy(weights, scenario.blocks, self._device, scenario.prefetch)
        self._session = None if cache is None else DBCacheSession(cache.rules(scenario.blocks), calls, self._layout())
        self._ran: list[int] = []

    def _layout(self) -> StackLayout:
        streams = tuple(
            HiddenState(name, "x", position=0, item=item, output=item) for item, name in enumerate(self._streams)
        )
        return StackLayout((PlacedSegment(Segment(streams), 0, self._scenario.blocks),))

    def run(self) -> RunResult:
        result = RunResult(self._scenario.bandwidth)
        for call in range(self._count):
            self._call = call
            before = self._device.compute_time, self._device.bytes_moved
            outcome = self._run_call()
            result.calls.append(self._call_result(outcome, *before))
            result.needed += self._streamed_bytes(self._ran)
        result.moved = self._device.bytes_moved * BYTES_PER_UNIT
        result.stall_ms = self._device.stall
        result.peak_slots = self._device.allocated * BYTES_PER_UNIT
        if self._session is not None:
            self._session.close()
        return result

    def _run_call(self) -> CallOutcome:
        self._device.synchronise()  # samplers and their callbacks may read numbers back between calls
        last = self._call + 1 == self._count
        info = CallInfo(step=self._call, sigma=0.0, last=last)
        session = self._session
        gate = CallGate(session, info) if session is not None else None
        whole = Outlook(next_head=None if last else self._scenario.blocks)
        outlook = session.outlook(info) if session is not None else whole
        result = StackCall(self._blocks, gate, self._policy, outlook, [self._read_back]).run(self._forward)
        self._ran = result.ran
        return result.outcome or CallOutcome("", False, "no cache")

    def _forward(self) -> tuple[torch.Tensor, ...]:
        x = self._first_hidden()
        for block in self._blocks:
            x = block(x)
        return x

    def _first_hidden(self) -> tuple[torch.Tensor, ...]:
        if self._trajectory is None:
            return (torch.zeros(1, dtype=torch.float64),)
        return tuple(torch.zeros_like(self._trajectory.residual(name, self._call)) for name in self._streams)

    def _read_back(self, blocks: Sequence[int], ran: Sequence[int]) -> None:
        if ran:
            self._device.synchronise()  # a verdict on the first blocks' residual is a number read back

    def _call_result(self, outcome: CallOutcome, started: float, moved: int) -> CallResult:
        compute = sum(self._scenario.block_ms[index] for index in self._ran)
        return CallResult(
            outcome.hit,
            outcome.reason,
            max(outcome.diffs.values(), default=None),
            self._device.compute_time - started,
            compute,
            (self._device.bytes_moved - moved) * BYTES_PER_UNIT,
        )

    def _streamed_bytes(self, ran: Sequence[int]) -> int:
        units = sum(self._blocks[index].weight.numel() for index in ran if index in self._scenario.streamed)
        return units * BYTES_PER_UNIT
