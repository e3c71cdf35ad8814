"""The chart of a sampling run: which blocks ran in which step, the difference curve above, the bytes below.

Drawn with matplotlib's objects on a canvas of its own: pyplot and its global state are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

WIDTH, HEIGHT, DPI = 1024, 768, 100
# Okabe and Ito's colours, which people with any colour vision can tell apart; the greys differ in lightness too.
SKIPPED, RESIDENT, STREAMED = "#d9d9d9", "#0072b2", "#e69f00"
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
LINES = ("-", "--", ":", "-.")
WASTED = "#d55e00"
ABOVE = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.99), "fontsize": 8, "frameon": False, "borderaxespad": 0.2}


class ChartCall(Protocol):
    """One model call, as far as the chart shows it: the part of a report's record. ``bytes`` are those of copies."""

    step: int
    branch: str
    diffs: dict[str, float]
    blocks_run: Sequence[int]
    bytes_streamed: int
    bytes_wasted: int


@dataclass(frozen=True)
class ChartRun:
    """One run. ``streamed`` are the blocks whose weights are copied for each use, ``threshold`` DBCache's."""

    title: str
    steps: int
    blocks: int
    calls: Sequence[ChartCall]
    streamed: frozenset[int]
    threshold: float | None


def call_edges(steps: int, calls: Sequence[ChartCall]) -> list[tuple[float, float]]:
    """Return where each call begins and ends on the axis of steps: the calls of a step share its width evenly."""
    count = [0] * max(steps, 1 + max((call.step for call in calls), default=0))
    for call in calls:
        count[call.step] += 1
    seen = [0] * len(count)
    edges = []
    for call in calls:
        width = 1 / count[call.step]
        edges.append((call.step + seen[call.step] * width, call.step + (seen[call.step] + 1) * width))
        seen[call.step] += 1
    return edges


def block_kinds(run: ChartRun, call: ChartCall) -> list[int]:
    """Return for each block 0 (skipped), 1 (ran, resident) or 2 (ran, streamed)."""
    ran = set(call.blocks_run)
    return [0 if index not in ran else 2 if index in run.streamed else 1 for index in range(run.blocks)]


def bytes_by_step(run: ChartRun) -> tuple[list[int], list[int]]:
    """Return (useful, wasted) bytes copied in each step."""
    steps = max(run.steps, 1 + max((call.step for call in run.calls), default=0))
    useful, wasted = [0] * steps, [0] * steps
    for call in run.calls:
        useful[call.step] += call.bytes_streamed - call.bytes_wasted
        wasted[call.step] += call.bytes_wasted
    return useful, wasted


def curves(run: ChartRun) -> dict[str, tuple[list[float], list[float]]]:
    """Return the difference curves by branch and stream: the middles of their calls, and the differences."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for call, (start, end) in zip(run.calls, call_edges(run.steps, run.calls), strict=True):
        for stream, diff in call.diffs.items():
            places, values = found.setdefault(f"{call.branch}, {stream}", ([], []))
            places.append((start + end) / 2)
            values.append(diff)
    return found


def draw_run(run: ChartRun) -> torch.Tensor:
    """Return the chart as IMAGE, (1, 768, 1024, 3) in 0..1.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figure, canvas = _new_figure()
    above, middle, below = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": (2, 4, 1.5), "hspace": 0.22}
    )
    figure.subplots_adjust(left=0.08, right=0.98, top=0.91, bottom=0.07)
    figure.suptitle(run.title, fontsize=11)
    _draw_differences(above, run)
    _draw_blocks(middle, run)
    _draw_bytes(below, run)
    below.set_xlabel("sampler step")
    below.set_xlim(0, max(run.steps, 1))
    below.xaxis.get_major_locator().set_params(integer=True)
    return _to_image(canvas)


def draw_message(text: str) -> torch.Tensor:
    """Return a picture of the chart's size that only says ``text``. Raises like :func:`draw_run`."""
    figure, canvas = _new_figure()
    figure.text(0.5, 0.5, text, ha="center", va="center", wrap=True, fontsize=12)
    return _to_image(canvas)


def blank() -> torch.Tensor:
    """Return an empty picture of the chart's size."""
    return torch.ones(1, HEIGHT, WIDTH, 3)


def _new_figure() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError(
            "the chart needs the package matplotlib; install it in ComfyUI's own Python: python -m pip install"
            " matplotlib"
        ) from error
    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    return figure, FigureCanvasAgg(figure)


def _to_image(canvas: Any) -> torch.Tensor:
    canvas.draw()
    pixels = torch.frombuffer(bytearray(canvas.buffer_rgba()), dtype=torch.uint8)
    return pixels.reshape(1, HEIGHT, WIDTH, 4)[..., :3].float() / 255


def _draw_differences(axes: Any, run: ChartRun) -> None:
    drawn = curves(run)
    for number, (name, (places, values)) in enumerate(drawn.items()):
        style = {"color": CURVES[number % len(CURVES)], "linestyle": LINES[number // len(CURVES) % len(LINES)]}
        axes.plot(places, values, marker=".", linewidth=1.2, label=name, **style)
    if run.threshold is not None:
        axes.axhline(run.threshold, color="black", linewidth=1, linestyle=(0, (5, 3)), label="threshold")
    if drawn or run.threshold is not None:
        axes.legend(ncols=4, **ABOVE)
    else:
        axes.text(0.5, 0.5, "nothing was compared", ha="center", va="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("difference")


def _draw_blocks(axes: Any, run: ChartRun) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    colors = ListedColormap([SKIPPED, RESIDENT, STREAMED])
    norm = BoundaryNorm([-0.5, 0.5, 1.5, 2.5], colors.N)
    rows = [index - 0.5 for index in range(run.blocks + 1)]
    for call, (start, end) in zip(run.calls, call_edges(run.steps, run.calls), strict=True):
        column = [[kind] for kind in block_kinds(run, call)]
        axes.pcolormesh([start, end], rows, column, cmap=colors, norm=norm, edgecolors="white", linewidth=0.3)
    axes.set_ylim(run.blocks - 0.5, -0.5)
    axes.set_ylabel("block")
    in_place = "ran, resident" if run.streamed else "ran"
    names = ((RESIDENT, in_place), (STREAMED, "ran, streamed"), (SKIPPED, "skipped"))
    axes.legend(handles=[Patch(color=color, label=name) for color, name in names], ncols=3, **ABOVE)


def _draw_bytes(axes: Any, run: ChartRun) -> None:
    useful, wasted = ([size / 2**20 for size in sizes] for sizes in bytes_by_step(run))
    places = [step + 0.5 for step in range(len(useful))]
    axes.bar(places, useful, width=0.8, color=STREAMED, label="used")
    if any(wasted):
        axes.bar(places, wasted, width=0.8, bottom=useful, color=WASTED, hatch="//", label="for nothing")
        axes.legend(ncols=2, **ABOVE)
    axes.set_ylabel("MiB copied")
