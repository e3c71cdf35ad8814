"""What the pack itself costs: hooks and gate, packing and unpacking in microseconds a block, import in milliseconds.

Blocks do nothing and tensors have one element, so that what is left is the pack's own time (and cache-dit's).
Medians over many calls, on one core.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from pack.dbcache.cache_dit import CacheContexts
from pack.dbcache.calls import CallInfo
from pack.dbcache.decision import judge
from pack.dbcache.gate import CallGate
from pack.dbcache.rules import DBCacheSettings, rules_for_run
from pack.dbcache.session import DBCacheSession
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.synchronous import SynchronousDevice
from pack.offload.slots import Slot
from pack.offload.streamer import BlockStreamer
from pack.stack.call import StackCall
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from pack.stack.outlook import Outlook

from dev.packages import REPOSITORY

from .tables import Part

BLOCKS = 50
REPEATS = 300
LAYERS_A_BLOCK = 10
IMPORTS = 3


class Nothing(torch.nn.Module):
    """A block that computes nothing."""

    def forward(self, x):
        return x


class ManyTensors(torch.nn.Module):
    """A block with as many tensors as a real one, of one element each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(LAYERS_A_BLOCK)).requires_grad_(False)


def median_call(call: Callable[[int], None], repeats: int = REPEATS) -> float:
    """Return the median duration of a call in microseconds; ``call`` is told its number."""
    durations = []
    for number in range(repeats + 20):
        started = time.perf_counter()
        call(number)
        durations.append(time.perf_counter() - started)
    return statistics.median(durations[20:]) * 1e6


def hook_costs(repeats: int = REPEATS) -> dict[str, float]:
    """Return microseconds a block call for hooks and gate, beyond running the bare blocks."""
    blocks = [Nothing() for _ in range(BLOCKS)]
    layout = StackLayout((PlacedSegment(Segment((HiddenState("x", "x", position=0),)), 0, BLOCKS),))
    streamer = BlockStreamer({}, BLOCKS, SynchronousDevice(torch.device("cpu")), 1)
    x = torch.zeros(1)

    def run() -> None:
        for block in blocks:
            block(x)

    def bare(number: int) -> None:
        run()

    def hooked(number: int) -> None:
        StackCall(blocks, None, streamer, Outlook(next_head=BLOCKS)).run(run)

    def gated(**values: Any) -> Callable[[int], None]:
        settings = DBCacheSettings(preset="custom", fn=1, bn=0, max_continuous=-1, calibrator="none", **values)
        session = DBCacheSession(settings.rules(BLOCKS), repeats + 20, layout)

        def call(number: int) -> None:
            StackCall(blocks, CallGate(session, CallInfo(step=number, sigma=0.5))).run(run)

        return call

    base = median_call(bare, repeats)
    measured = {
        "hooks, every block resident": hooked,
        "gate, computed call": gated(warmup_steps=1, threshold=1e-9),
        "gate, cached call": gated(warmup_steps=1, threshold=1.0),
    }
    return {name: (median_call(call, repeats) - base) / BLOCKS for name, call in measured.items()}


def judging_costs(repeats: int = REPEATS) -> dict[str, float]:
    """Return microseconds for judging one call of two states: two comparisons, a verdict, one number read back."""
    states = {"image": torch.ones(1), "text": torch.ones(1)}
    rules = DBCacheSettings(preset="custom", warmup_steps=0, threshold=0.5, calibrator="none").rules(BLOCKS)
    run = rules_for_run(rules, repeats + 20)
    context = CacheContexts(run).new_context("judged")
    context.begin(0)
    for state, residual in states.items():
        context.set_fn_residual(state, residual)

    def judged(number: int) -> None:
        judge(run, context.differences(states), context.has_kept(states))

    return {"judging a call of two states": median_call(judged, repeats)}


def packing_costs(repeats: int = REPEATS) -> dict[str, float]:
    """Return microseconds for laying out, copying into a slot, and putting into place one block's tensors."""
    device = SynchronousDevice(torch.device("cpu"))
    block = ManyTensors()
    weights = BlockWeights(block)
    slot = Slot(device.empty(weights.size), device.mark())

    def unpack(number: int) -> None:
        with weights.installed(slot.entries(0, weights, device)):
            pass

    tensors = f"{2 * LAYERS_A_BLOCK} tensors"
    return {
        f"laying out a block, {tensors}": median_call(lambda number: BlockWeights(block), repeats),
        f"packing it into a slot, {tensors}": median_call(lambda number: slot.fill(weights, device), repeats),
        f"unpacking it, {tensors}": median_call(unpack, repeats),
    }


def costs() -> Part:
    """Measure hooks, gate, verdict and packing."""
    torch.set_num_threads(1)
    measured = {"block": {**hook_costs(), **packing_costs()}, "call": judging_costs()}
    return Part(
        "costs",
        f"The pack's own time, median of {REPEATS}, one core",
        {"what": "{}", "us": "{:.1f}", "each": "{}"},
        [
            {"what": what, "us": value, "each": each}
            for each, values in measured.items()
            for what, value in values.items()
        ],
    )


def import_time() -> Part:
    """Measure what ComfyUI spends on importing the pack's entry point and nodes."""
    script = (
        "import importlib.util, sys, time;"
        "from dev.comfyui import start_comfyui; start_comfyui('--cpu'); import nodes, comfy_api.latest;"
        "spec = importlib.util.spec_from_file_location('pack', sys.argv[1] + '/__init__.py');"
        "sys.modules['pack'] = module = importlib.util.module_from_spec(spec);"
        "started = time.perf_counter(); spec.loader.exec_module(module);"
        "print((time.perf_counter() - started) * 1e3)"
    )
    command = [sys.executable, "-c", script, str(REPOSITORY)]
    results = [
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY) for _ in range(IMPORTS)
    ]
    milliseconds = statistics.median(float(result.stdout.split()[-1]) for result in results)
    return Part(
        "import",
        f"ComfyUI importing the pack, median of {IMPORTS} processes",
        {"what": "{}", "ms": "{:.1f}"},
        [{"what": "entry point and nodes", "ms": milliseconds}],
    )
