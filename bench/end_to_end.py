"""Whole sampling runs in real ComfyUI: plain against offload, DBCache and both, round by round in one process.

The model is an :class:`Example`; ``nox -s bench -- end_to_end --model package.module:function`` takes another one than
the embedded toy model.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dev import demo

from .tables import Part

ROUNDS = 5
COLUMNS = {
    "way": "{}",
    "median s": "{:.2f}",
    "to plain": "{:.2f}",
    "hits": "{}",
    "streamed MiB": "{:.0f}",
    "wasted MiB": "{:.0f}",
    "weights MiB": "{:.1f}",
    "peak MiB": "{:.0f}",
    "max diff": "{:.2g}",
}


@dataclass(frozen=True)
class Example:
    """A model to sample with.

    Attributes:
        name: for the table's title.
        plain: ComfyUI's patcher over it.
        sample: samples a patcher with that many steps and returns a tensor to compare.
        steps: sampler steps of a run.
        resident_blocks: how many blocks the offload keeps on the device.
        preset: DBCache's preset.
    """

    name: str
    plain: Any
    sample: Callable[[Any, int], torch.Tensor]
    steps: int
    resident_blocks: int
    preset: str


MakeExample = Callable[[Any], Example]


def toy_digits(pack: Any) -> Example:
    """Return the embedded toy model, drawing the demo's digits."""
    toy = demo.Toy(pack, "0 1 2 3 4 5 6 7 8 9", 10)
    return Example(
        f"the toy model, {toy.blocks} blocks, 10 digits",
        toy.model,
        lambda model, steps: toy.sample(model, 1, steps),
        demo.STEPS,
        demo.RESIDENT_BLOCKS,
        "balanced",
    )


def find_example(place: str) -> MakeExample:
    """Return the function ``package.module:function``, which takes the loaded pack and returns an :class:`Example`.

    Raises:
        ValueError: ``place`` is not of that form, or there is no such function.
    """
    module, _, function = place.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model is {place!r}, but must name a function that returns an Example, as 'package.module:function':"
            f" {error}"
        ) from error


def compare(example: Example, pack: Any, rounds: int = ROUNDS) -> Part:
    """Sample every way once a round, in turn, and compare each with the plain run of its round.

    Args:
        example: the model.
        pack: the pack as ComfyUI loaded it (``dev.comfyui.LoadedPack``).
        rounds: how many; one more comes first to warm up.
    """
    plain = example.plain
    offload = pack.execute("DiTLayerwiseOffload", plain, resident_blocks=example.resident_blocks)[0]
    ways = {
        "plain": plain,
        "offload": offload,
        "DBCache": pack.execute("DiTDBCache", plain, preset=example.preset)[0],
        "both": pack.execute("DiTDBCache", offload, preset=example.preset)[0],
    }
    results = [_round(example, ways) for _ in range(rounds + 1)][1:]
    rows = []
    for name, model in ways.items():
        samples = results[-1][name].samples
        totals = {} if name == "plain" else json.loads(pack.execute("DiTRunReport", model, after=None)[1])["totals"]
        rows.append(
            {
                "way": name,
                "median s": statistics.median(one[name].seconds for one in results),
                "to plain": statistics.median(one[name].seconds / one["plain"].seconds for one in results),
                "hits": totals.get("hits", 0),
                "streamed MiB": totals.get("bytes_streamed", 0) / 2**20,
                "wasted MiB": totals.get("bytes_wasted", 0) / 2**20,
                "weights MiB": results[-1][name].weight_bytes / 2**20,
                "peak MiB": max(one[name].peak_bytes for one in results) / 2**20 or None,
                "max diff": float((samples - results[-1]["plain"].samples).abs().max()),
                "seconds": [one[name].seconds for one in results],
            }
        )
    return Part(
        "end_to_end",
        f"{example.name}, {example.steps} steps, {_resident(example.resident_blocks)} blocks resident, preset"
        f" {example.preset!r}: {rounds} rounds, each way in turn",
        COLUMNS,
        rows,
        notes=[
            "to plain: median of the ratios within a round; weights: on the device, slots included; peak: all device"
            " memory (CUDA only)"
        ],
    )


def _resident(blocks: int) -> str:
    return "as many as fit" if blocks < 0 else str(blocks)


@dataclass(frozen=True)
class _Result:
    samples: torch.Tensor
    seconds: float
    weight_bytes: int
    peak_bytes: int


def _round(example: Example, ways: dict[str, Any]) -> dict[str, _Result]:
    import comfy.model_management as management

    results = {}
    for name, model in ways.items():
        management.unload_all_models()
        example.sample(model, 2)  # loading, and the first use of everything
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        started = time.perf_counter()
        samples = example.sample(model, example.steps)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        results[name] = _Result(samples, seconds, model.loaded_size(), peak)
    return results
