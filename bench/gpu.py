"""On a machine with a GPU: random blocks of MiniMax-H3's size under a memory cap, plain, streamed, cached and both.

Measured step times, copy and compute alone and together (so: how far they overlap), bytes, peak memory, and pinned
against pageable host memory. Everything but :class:`Card` runs on any device, which is how the tests run it; without a
GPU the part says so and ends. ComfyUI itself on the GPU is the part ``end_to_end``, which takes the GPU by itself.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pack.offload.block_weights import BlockWeights
from pack.offload.devices import OffloadDevice, offload_device
from pack.offload.placement import Placement, choose_placement

from .random_blocks import BlockShape, HostWeights, blocks_over, host_weights, pinned_weights
from .settings import cache_settings
from .stepper import Stepper
from .tables import Part, Row
from .trajectories import capped_pattern

TOKENS = 4096
BLOCKS = 50
CAPS_GB = (24, 16, 12)
STEPS = 12
WARMUP, IN_A_ROW = 3, 2
H3 = BlockShape(width=5376, inner=46592)
PRECISIONS = ("int8", "bf16")
ACTIVATIONS_GB = 3.0
DISTINCT_BLOCKS = 4


class Machine(Protocol):
    """What the measurements need of a device."""

    device: torch.device
    offload: OffloadDevice

    def now_ms(self) -> float:
        """Wait for everything started so far and return the time in milliseconds."""

    def cap(self, gigabytes: float | None) -> None:
        """Let the allocator hand out that much at most; ``None`` lifts it."""

    def peak_bytes(self) -> int:
        """Return the most memory allocated since :meth:`cap`."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in pinned host memory."""


class Card:
    """The CUDA device of this machine: the only part of this file that needs one."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.offload = offload_device(self.device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._start.record()

    def now_ms(self) -> float:
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        torch.cuda.synchronize(self.device)
        return self._start.elapsed_time(end)

    def cap(self, gigabytes: float | None) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gigabytes * 1e9 / total) if gigabytes else 1.0, self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()


def overlap(copy_ms: float, compute_ms: float, together_ms: float) -> float | None:
    """Return how much of the shorter of copies and compute was hidden: 1 is all of it; ``None`` if there is none."""
    shorter = min(copy_ms, compute_ms)
    return None if shorter <= 0 else (copy_ms + compute_ms - together_ms) / shorter


@dataclass(frozen=True)
class Way:
    """One way to run the stack."""

    name: str
    streamed: bool
    cached: bool
    pinned: bool = True


WAYS = (
    Way("plain", streamed=False, cached=False),
    Way("streamed", streamed=True, cached=False),
    Way("streamed, pageable", streamed=True, cached=False, pinned=False),
    Way("cached", streamed=False, cached=True),
    Way("both", streamed=True, cached=True),
)


def measure_card(tokens: int = TOKENS, blocks: int = BLOCKS) -> Part:
    """Measure this machine's card; skipped without one."""
    title = f"Random blocks of MiniMax-H3's size, {tokens} tokens, {blocks} blocks"
    if not torch.cuda.is_available():
        return Part("gpu", title, skipped="no CUDA device here")
    part = measure(Card(), H3, tokens, blocks)
    part.title += f" on {torch.cuda.get_device_name()}"
    return part


def measure(
    machine: Machine,
    shape: BlockShape,
    tokens: int,
    blocks: int,
    caps: Sequence[float] = CAPS_GB,
    steps: int = STEPS,
    reserve_gb: float = ACTIVATIONS_GB,
) -> Part:
    """Run every way at every cap in every precision, and return what each took.

    Args:
        machine: where to run.
        shape: of a block.
        tokens: length of the sequence.
        blocks: in the stack.
        caps: device memory in GB.
        steps: model calls of a run.
        reserve_gb: part of each cap that is left to activations.
    """
    rows = []
    for precision in PRECISIONS:
        pageable = host_weights(shape, precision, min(DISTINCT_BLOCKS, blocks))
        weights = {False: pageable, True: pinned_weights(pageable, machine.pin)}
        reference: Row | None = None
        for cap, way in planned_ways(caps):
            budget = math.inf if cap is None else (cap - reserve_gb) * 1e9
            row = {"precision": precision, "cap GB": cap, "way": way.name}
            row |= measured_way(machine, weights[way.pinned], blocks, tokens, cap, budget, steps, way)
            if way.name == "plain" and cap is None:
                reference = row
            rows.append(row | compared(row, reference))
    machine.cap(None)
    return Part(
        "gpu",
        f"Random blocks of {shape.weights / 1e6:.0f} M weights, {tokens} tokens, {blocks} blocks, {steps} calls",
        {
            "precision": "{}",
            "cap GB": "{}",
            "way": "{}",
            "stay": "{}",
            "step ms": "{:.1f}",
            "hit ms": "{:.1f}",
            "run ms": "{:.0f}",
            "to plain": "{:.2f}",
            "to bound": "{:.2f}",
            "copies ms": "{:.1f}",
            "compute ms": "{:.1f}",
            "overlap": "{:.0%}",
            "GB a step": "{:.2f}",
            "peak GB": "{:.2f}",
            "note": "{}",
        },
        rows,
        notes=[
            "step: median of the computed calls, hit: of the cached ones; copies, compute: each alone, a whole call;"
            " overlap: how much of the shorter one was hidden in the step; to bound: step to the longer of the two",
            "to plain: the run to the plain one without a cap; where that does not fit the card, to as many calls of"
            " this row's compute (note: 'of compute')",
            "int8: weights in int8 with a scale a row, turned into bf16 for use; blocks share host weights",
        ],
    )


def planned_ways(caps: Sequence[float]) -> Iterator[tuple[float | None, Way]]:
    """Yield (cap, way): what streams nothing first without a cap, then every way at every cap."""
    yield from ((None, way) for way in WAYS if not way.streamed)
    for cap in caps:
        yield from ((cap, way) for way in WAYS)


def measured_way(
    machine: Machine,
    weights: list[HostWeights],
    blocks: int,
    tokens: int,
    cap: float | None,
    budget: float,
    steps: int,
    way: Way,
) -> dict[str, Any]:
    """Run one way under one cap. Nothing of it is left on the device afterwards, so that the next peak is its own."""
    machine.cap(cap)
    row: dict[str, Any] = {}
    try:
        stack = blocks_over(weights, blocks)
        row = run_way(machine, stack, random_hidden(tokens, stack[0].width), budget, steps, way)
    except torch.OutOfMemoryError:
        row = {"note": "does not fit"}
    row["peak GB"] = machine.peak_bytes() / 1e9
    stack = None
    gc.collect()
    return row


def compared(row: Row, reference: Row | None) -> dict[str, float | str]:
    """Return how a row compares with the plain run without a cap, or where that does not fit, with compute alone."""
    if "step ms" not in row:
        return {}
    plain_fits = reference is not None and "run ms" in reference
    calls = len(row["all ms"])
    plain_ms = reference["run ms"] if plain_fits else row["compute ms"] * calls
    bound = max(row["copies ms"], row["compute ms"])
    return {
        "to plain": row["run ms"] / plain_ms,
        "to bound": row["step ms"] / bound,
        "note": "" if plain_fits else "of compute",
    }


def random_hidden(tokens: int, width: int) -> torch.Tensor:
    """Return packed tokens to start from, in bf16."""
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def run_way(
    machine: Machine, stack: Sequence[torch.nn.Module], hidden: torch.Tensor, budget: float, steps: int, way: Way
) -> dict[str, Any]:
    """Run ``steps`` model calls over ``stack`` and return a row; ``budget`` is device bytes for weights."""
    sizes = [BlockWeights(block).size for block in stack]
    placement = choose_placement(sizes, 0, budget, cached=way.cached, front=1) if way.streamed else Placement()
    cache = cache_settings(1, 0, WARMUP, 0.5, IN_A_ROW) if way.cached else None
    with closing(Stepper(stack, placement, machine.offload, machine.device, hidden, cache, steps)) as stepper:
        pattern = capped_pattern(steps, WARMUP, IN_A_ROW) if way.cached else (False,) * steps
        durations = [_timed(machine, lambda call=call: stepper.call(call, pattern)) for call in range(steps)]
        computed = [ms for ms, hit in zip(durations, stepper.hits, strict=True) if not hit]
        cached = [ms for ms, hit in zip(durations, stepper.hits, strict=True) if hit]
        copies = _timed(machine, stepper.copy_all) if placement.streamed else 0.0
        with stepper.one_on_device() as block:
            compute = _timed(machine, lambda: stepper.compute_all(block))
        step = statistics.median(computed[1:] or computed)
        return {
            "stay": len(stack) - len(placement.streamed),
            "step ms": step,
            "hit ms": statistics.median(cached) if cached else None,
            "copies ms": copies,
            "compute ms": compute,
            "overlap": overlap(copies, compute, step),
            "GB a step": sum(sizes[index] for index in placement.streamed) / 1e9,
            "hits": sum(stepper.hits),
            "streamed GB": stepper.streamed_bytes / 1e9,
            "run ms": sum(durations),
            "all ms": durations,
        }


def _timed(machine: Machine, run: Callable[[], None]) -> float:
    started = machine.now_ms()
    run()
    return machine.now_ms() - started
