"""What the quality figures say: which settings are best at which share of skipped work, as a table and a chart."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SHARES = (0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.78)
SLACK = 0.01
REFERENCE = "EasyCache tuned"
ALWAYS_KEPT = ("DBCache presets", "DBCache SCM, taylorseer 1")


def choose(tuned: Sequence[Any]) -> list[Any]:
    """Return the settings to sample on the held-out seeds: for each way, run and share the one with the highest PSNR
    among those that skip at least that share (less one point); presets and masks all, as they are what they are."""
    ways = defaultdict(list)
    for result in tuned:
        ways[result.steps, result.sampler, result.group].append(result)
    chosen = []
    for (_, _, group), results in ways.items():
        best = results if group in ALWAYS_KEPT else _best_by_share(results)
        chosen += [one for one in results if one in best]
    return chosen


def _best_by_share(results: Sequence[Any]) -> list[Any]:
    found = []
    for share in SHARES:
        enough = [one for one in results if one.skipped >= share - SLACK]
        if enough:
            found.append(max(enough, key=lambda one: one.psnr))
    return found


def psnr_at(points: Iterable[tuple[float, float]], share: float) -> float | None:
    """Return the PSNR of a way at ``share``, between its measured (share, PSNR) points on a straight line; ``None``
    outside of them. Of points that another one beats in both, none is used."""
    frontier: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not frontier or point[1] > frontier[-1][1]:
            frontier.append(point)
    frontier.reverse()
    for (a, low), (b, high) in itertools.pairwise(frontier):
        if a <= share <= b:
            return low + (high - low) * (share - a) / (b - a)
    return next((psnr for at, psnr in frontier if at == share), None)


def margins(held_out: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every held-out result with ``margin``: its PSNR less that of tuned EasyCache at the same share, or
    ``None`` where EasyCache was not measured on both sides of it."""
    reference = defaultdict(list)
    for one in held_out:
        if one["group"] == REFERENCE:
            reference[one["steps"], one["sampler"]].append((one["skipped"], one["psnr"]))
    compared = []
    for one in held_out:
        other = psnr_at(reference[one["steps"], one["sampler"]], one["skipped"])
        compared.append({**one, "margin": None if other is None else one["psnr"] - other})
    return compared


def write_table(data: dict[str, Any], file: Path) -> str:
    """Write the held-out results as Markdown and return the text."""
    lines = [
        "# Quality against skipped work on the toy model",
        "",
        "Made by `nox -s quality`; settings chosen on other seeds than these figures are from. PSNR and SSIM are of",
        "the 32x32 pictures against the plain run's with the same seed, the mean of 32 (`low`: 10th percentile, 100 dB",
        "at most); `skipped` is the real share of block work. `margin` is the PSNR above tuned EasyCache's at the same",
        "share, on straight lines between its points. EasyCache and LazyCache look at every pixel (subsample 1) and",
        "have their best threshold and start (0 or 0.15). EasyCache is measured with its input copied on a hit, as the",
        "node writes into the sampler's own latent in float32 (ComfyUI 0.3.75 to 0.33).",
        "",
        *(f"- {name}: {value}" for name, value in data["versions"].items()),
    ]
    rows = sorted(
        margins(data["held_out"]), key=lambda one: (one["steps"], one["sampler"], one["group"], one["skipped"])
    )
    run = None
    for one in rows:
        if run != (one["steps"], one["sampler"]):
            run = (one["steps"], one["sampler"])
            lines += ["", f"## {run[0]} steps, {run[1]}", ""]
            lines += [
                "| way | setting | skipped | PSNR | low | SSIM | margin |",
                "| --- | --- | --- | --- | --- | --- | --- |",
            ]
        margin = "" if one["margin"] is None else f"{one['margin']:+.1f}"
        lines.append(
            f"| {one['group']} | {one['setting']} | {one['skipped']:.1%} | {one['psnr']:.1f} | {one['psnr_low']:.1f}"
            f" | {one['ssim']:.4f} | {margin} |"
        )
    text = "\n".join(lines) + "\n"
    file.write_text(text, encoding="utf-8")
    return text


def draw_chart(data: dict[str, Any], file: Path) -> None:
    """Save the held-out results as curves, a panel for each run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Okabe and Ito's colours and three more, with a marker each
    colors = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00")
    colors += ("#999999", "#000000", "#f0e442", "#8b4513", "#4b0082")
    markers = "os^vDPX*<>h"
    groups = sorted({one["group"] for one in data["held_out"]})
    runs = sorted({(one["steps"], one["sampler"]) for one in data["held_out"]})
    columns = max(1, (len(runs) + 1) // 2)
    figure = Figure(figsize=(5.2 * columns, 9), dpi=100, facecolor="white")
    panels = figure.subplots(2, columns, squeeze=False).flatten()
    for panel, (steps, sampler) in zip(panels, runs, strict=False):
        for number, group in enumerate(groups):
            mine = (
                one
                for one in data["held_out"]
                if (one["steps"], one["sampler"], one["group"]) == (steps, sampler, group)
            )
            points = sorted((one["skipped"] * 100, one["psnr"]) for one in mine)
            style = "none" if group in ALWAYS_KEPT else "-"
            panel.plot(
                *zip(*points, strict=True),
                linestyle=style,
                marker=markers[number % len(markers)],
                color=colors[number % len(colors)],
                label=group,
                linewidth=2.2 if group == REFERENCE else 1.2,
            )
        panel.set_title(f"{steps} steps, {sampler}")
        panel.set_xlabel("block work skipped, %")
        panel.set_ylabel("PSNR against the plain run, dB")
        panel.set_xlim(15, 90)
        panel.grid(alpha=0.3)
    for panel in panels[len(runs) :]:
        panel.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=min(5, len(groups)), fontsize=9)
    figure.subplots_adjust(left=0.06, right=0.98, top=0.95, bottom=0.14, hspace=0.28, wspace=0.2)
    FigureCanvasAgg(figure).print_png(file)
