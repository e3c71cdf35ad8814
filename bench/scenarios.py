"""Sampling runs on machines that are not here: published rows, a matrix of cards, buses and budgets, policies side by
side. Everything is computed on the virtual device by the real engine and the real gate (``simulation.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pack.offload.placement import Placement, choose_placement
from pack.offload.residency import streamed_blocks
from pack.offload.timing import BlockTiming

from .h3_drift import H3_SHIFTS
from .policies import POLICIES, planned
from .published import (
    BUSES,
    CARD_MEMORY_GB,
    H3_CALLS,
    H3_DRIFT,
    H3_ROWS,
    MINIMAX_H3,
    MODELS,
    H3Row,
    Model,
    Workload,
)
from .settings import cache_settings
from .simulation import RunResult, Scenario, simulate
from .tables import Part
from .trajectories import GivenPattern, SigmaDrift, capped_pattern

GB = 1e9
BUDGETS_GB = (8, 12, 16, 24)
CARD_SHOWN = "RTX 4090"
PRECISIONS_SHOWN = ("fp8", "int8 pruned")
BUSES_SHOWN = ("PCIe 3.0 x8", "PCIe 4.0 x16")
BUDGETS_SHOWN = (8, 16)
RUN_CALLS = 20
WARMUP, IN_A_ROW = 4, 2


def h3_run(row: H3Row, drift: float = H3_DRIFT, calls: int = H3_CALLS) -> RunResult:
    """Simulate one row of SGLang's table: every block streamed over PCIe 4.0 x16, one copied ahead."""
    card = MINIMAX_H3.measured.card
    scenario = Scenario(
        MINIMAX_H3.block_bytes("int8"),
        MINIMAX_H3.block_ms(card),
        BUSES["PCIe 4.0 x16"],
        tuple(range(len(MINIMAX_H3.parameters))),
    )
    cache = None
    if row.cached:  # SGLang may cache the last step, too
        cache = cache_settings(1, row.bn, row.warmup, row.threshold, row.in_a_row, compute_last_step=False)
    return simulate(scenario, calls, planned, cache, SigmaDrift(H3_SHIFTS, drift, calls) if row.cached else None)


def outside_denoising() -> float:
    """Return the seconds of a run that are not denoising, from the row without a cache."""
    return H3_ROWS[0].seconds - H3_ROWS[0].denoise_seconds


def published_rows() -> Part:
    """Compare the simulation with the published H3 rows."""
    rows = []
    for row in H3_ROWS:
        result = h3_run(row)
        seconds = result.ms / 1e3 + outside_denoising()
        rows.append(
            {
                "row": row.name,
                "published s": row.seconds,
                "simulated s": seconds,
                "off": seconds / row.seconds - 1,
                "hits": result.hits,
                "streamed GB": result.moved / GB,
                "wasted GB": result.wasted / GB,
                "limit": result.limit,
                "bound s": result.bound_ms / 1e3 + outside_denoising(),
            }
        )
    return Part(
        "published",
        "MiniMax-H3 on one RTX 4090 D, 1344x768, 107 frames, 50 model calls, int8 (SGLang pull request 35858)",
        {
            "row": "{}",
            "published s": "{:.1f}",
            "simulated s": "{:.1f}",
            "off": "{:+.1%}",
            "hits": "{}",
            "streamed GB": "{:.0f}",
            "wasted GB": "{:.1f}",
            "limit": "{}",
        },
        rows,
        notes=[
            f"published inputs: {MINIMAX_H3.measured.source}, so {MINIMAX_H3.block_ms('RTX 4090 D')[0]:.1f} ms a"
            f" block; end to end minus denoise of that row, {outside_denoising():.1f} s, for all rows; 61.7 GB in bf16"
            " over 50 blocks; F, B, W, R and MC of each row; ComfyUI's time shifts of H3, 12 for video and 3 for audio;"
            f" how fast the first block's residual turns, {H3_DRIFT} rad a unit of sigma: from the hit counts of"
            " another run, SGLang issue 33828 (h3_drift.py)",
            f"assumed: {BUSES['PCIe 4.0 x16'] / 1e6:.0f} GB/s on PCIe 4.0 x16; residuals of constant length that turn"
            " at a constant rate, as on a straight path; video and audio judged each on its own",
            "so the first row tests the schedule, not the compute time, which comes from it; the cached rows test the"
            f" hit pattern as well. Both land within 10 % for every drift from {drift_range_text()}",
        ],
    )


def lands(drift: float) -> bool:
    """Whether both cached rows come out within 10 % at this drift."""
    return all(
        abs((h3_run(row, drift).ms / 1e3 + outside_denoising()) / row.seconds - 1) <= 0.1
        for row in H3_ROWS
        if row.cached
    )


def drift_range(step: float = 0.02) -> tuple[float, float]:
    """Return the ends of the range around :data:`H3_DRIFT` in which every drift :func:`lands`, in steps of ``step``."""
    ends = []
    for direction in (-step, step):
        count = 0
        while lands(H3_DRIFT + direction * (count + 1)):
            count += 1
        ends.append(H3_DRIFT + direction * count)
    return ends[0], ends[1]


def drift_range_text() -> str:
    least, greatest = drift_range()
    return f"{least:.2f} to {greatest:.2f}"


def placed_for(model: Model, precision: str, card: str, bus: str, budget: float, workload: Workload) -> Placement:
    """Return what ``auto`` chooses for a machine once it has measured it, with a cache of Fn 1 and Bn 0."""
    timing = BlockTiming(model.block_ms(card, workload)[0], BUSES[bus])
    return choose_placement(
        model.block_bytes(precision), model.other_bytes(precision), budget, cached=True, front=1, timing=timing
    )


def machines() -> Iterator[tuple[Model, str, str, str, int, Workload]]:
    """Yield every combination of the matrix with a budget the card has, which does not hold the whole model."""
    for model, card, bus, budget in itertools.product(MODELS, CARD_MEMORY_GB, BUSES, BUDGETS_GB):
        for precision, workload in itertools.product(model.bytes_a_weight, model.workloads):
            whole = sum(model.block_bytes(precision)) + model.other_bytes(precision)
            if whole > budget * GB and budget <= CARD_MEMORY_GB[card]:
                yield model, precision, card, bus, budget, workload


def matrix() -> Part:
    """Simulate a run of 20 calls on each machine, plain and with the pattern of a cache that always hits its cap."""
    rows, shown = [], []
    pattern = GivenPattern(capped_pattern(RUN_CALLS, WARMUP, IN_A_ROW))
    cache = cache_settings(1, 0, WARMUP, 0.5, IN_A_ROW)
    for model, precision, card, bus, budget, workload in machines():
        placement = placed_for(model, precision, card, bus, budget * GB, workload)
        scenario = Scenario(
            model.block_bytes(precision),
            model.block_ms(card, workload),
            BUSES[bus],
            placement.streamed,
            placement.prefetch,
        )
        # three calls of a plain run: the second is what every one takes but the first and the last
        plain, cached = simulate(scenario, 3, planned), simulate(scenario, RUN_CALLS, planned, cache, pattern)
        step = plain.calls[1]
        bus_ms = sum(scenario.block_bytes[index] for index in scenario.streamed) / scenario.bandwidth
        if card == CARD_SHOWN and precision in PRECISIONS_SHOWN and bus in BUSES_SHOWN and budget in BUDGETS_SHOWN:
            shown.append(len(rows))
        rows.append(
            {
                "machine": f"{model.name} {precision}, {workload.name}",
                "card": card,
                "bus": bus,
                "budget GB": budget,
                "stay": len(scenario.block_bytes) - len(scenario.streamed),
                "ahead": scenario.prefetch,
                "step s": step.ms / 1e3,
                "bound s": max(step.compute_ms, bus_ms) / 1e3,
                "limit": "compute" if step.compute_ms >= bus_ms else "bus",
                "GB a step": step.bytes_moved / GB,
                "20 calls s": step.ms * RUN_CALLS / 1e3,
                "cached s": cached.ms / 1e3,
                "hits": cached.hits,
                "reason": placement.reason,
            }
        )
    return Part(
        "matrix",
        f"One model call, and 20 calls plain and with DBCache F1 B0 hitting {rows[0]['hits']} of them; {CARD_SHOWN},"
        f" some of {len(rows)} machines, the others are in the JSON file",
        {
            "machine": "{}",
            "bus": "{}",
            "budget GB": "{}",
            "stay": "{}",
            "ahead": "{}",
            "step s": "{:.2f}",
            "bound s": "{:.2f}",
            "limit": "{}",
            "GB a step": "{:.1f}",
            "20 calls s": "{:.1f}",
            "cached s": "{:.1f}",
        },
        rows,
        shown,
        [f"{model.name}: {model.measured.source}; assumed: {model.assumed}" for model in MODELS]
        + ["other cards and sizes: by peak tensor rate and arithmetic (published.py); the budget is for weights"],
    )


def side_by_side() -> Part:
    """Compare the policies on one bus-bound and one compute-bound machine, plain and with hits."""
    rows = []
    flux, h3 = MODELS[-1], MINIMAX_H3
    machines_compared = (
        ("H3 int8, 4090, 4.0 x16", h3, "int8", h3.workloads[0], "PCIe 4.0 x16"),
        ("H3 int8 640x352, 4090, 3.0 x8", h3, "int8", h3.workloads[1], "PCIe 3.0 x8"),
        ("Flux bf16, 4090, 4.0 x16", flux, "bf16", flux.workloads[0], "PCIe 4.0 x16"),
    )
    pattern = GivenPattern(capped_pattern(RUN_CALLS, WARMUP, IN_A_ROW))
    for (name, model, precision, workload, bus), (cached, bn) in itertools.product(
        machines_compared, ((False, 0), (True, 0), (True, 2))
    ):
        blocks = len(model.parameters)
        scenario = Scenario(
            model.block_bytes(precision),
            model.block_ms("RTX 4090", workload),
            BUSES[bus],
            streamed_blocks("strided", blocks, blocks // 5),
        )
        cache = cache_settings(1, bn, WARMUP, 0.5, IN_A_ROW) if cached else None
        ours = None
        for policy, make in POLICIES.items():
            result = simulate(scenario, RUN_CALLS, make, cache, pattern if cached else None)
            ours = ours or result.ms
            rows.append(
                {
                    "machine": f"{name}, {f'F1 B{bn}, {result.hits} hits' if cached else 'no cache'}",
                    "policy": policy,
                    "s": result.ms / 1e3,
                    "to ours": result.ms / ours,
                    "stalls s": result.stall_ms / 1e3,
                    "wasted GB": result.wasted / GB,
                    "GB": result.moved / GB,
                    "limit": result.limit,
                }
            )
    return Part(
        "policies",
        "20 model calls, a fifth of the blocks resident (strided), one block ahead: four ways to stream the rest",
        {
            "machine": "{}",
            "policy": "{}",
            "s": "{:.2f}",
            "to ours": "{:.3f}",
            "stalls s": "{:.2f}",
            "wasted GB": "{:.1f}",
            "GB": "{:.0f}",
            "limit": "{}",
        },
        rows,
        notes=["the others are written from their projects' descriptions (policies.py), same blocks, slots and bus"],
    )
