"""The pack's main job on its embedded toy model: real ComfyUI draws digits six ways and compares them.

Run it by ``nox -s demo``. It prints a table and saves a contact sheet: every way's pictures, and below them how they
differ from the plain ones, brightened.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .comfyui import LoadedPack, start_comfyui
from .packages import REPOSITORY

STEPS = 20
CFG = 2.5
SAMPLER, SCHEDULER = "euler", "simple"
RESIDENT_BLOCKS = 3
AMPLIFY = 8.0
COLUMNS = ("", "time", "calls", "hits", "blocks run", "streamed", "device weights", "PSNR", "SSIM")


@dataclass
class Row:
    """What one way of sampling took. ``images`` are ComfyUI's IMAGE, ``bytes`` those of copies to the device."""

    name: str
    images: torch.Tensor
    seconds: float
    calls: int
    hits: int
    blocks_run: int
    bytes_streamed: int
    weight_bytes: int


class Toy:
    """The toy model's nodes, executed as a graph would."""

    def __init__(self, pack: LoadedPack, labels: str, batch: int) -> None:
        self._pack = pack
        self.model, self._positive, self._negative, self._latent = pack.execute(
            "DiTToyModel", labels=labels, batch_size=batch
        )

    @property
    def blocks(self) -> int:
        return len(self.model.model.diffusion_model.blocks)

    def sample(self, model: Any, seed: int, steps: int) -> torch.Tensor:
        """Sample as the KSampler node does and return the pictures."""
        import nodes

        arguments = (seed, steps, CFG, SAMPLER, SCHEDULER, self._positive, self._negative, self._latent)
        with torch.inference_mode():
            (latent,) = nodes.KSampler().sample(model, *arguments)
            return self._pack.execute("DiTToyDecode", latent)[0]


def ways(pack: LoadedPack, plain: Any) -> dict[str, Any]:
    """Return the model of each way of sampling."""
    offload = pack.execute("DiTLayerwiseOffload", plain, resident_blocks=RESIDENT_BLOCKS)[0]
    presets = {name: pack.execute("DiTDBCache", plain, preset=name)[0] for name in ("quality", "balanced", "fast")}
    both = pack.execute("DiTDBCache", offload, preset="fast")[0]
    return {"plain": plain, **presets, "offload": offload, "offload + fast": both}


def run(name: str, model: Any, toy: Toy, pack: LoadedPack, seed: int, steps: int) -> Row:
    """Sample once to warm up and once for the table."""
    import comfy.model_management as management

    management.unload_all_models()
    toy.sample(model, seed, 2)
    calls: list[int] = []
    counter = model.model.diffusion_model.register_forward_pre_hook(lambda *_: calls.append(1))
    print(f"{name}:", flush=True)
    started = time.perf_counter()
    images = toy.sample(model, seed, steps)
    seconds = time.perf_counter() - started
    counter.remove()
    totals = {"hits": 0, "blocks_run": len(calls) * toy.blocks, "bytes_streamed": 0}
    if name != "plain":
        totals = json.loads(pack.execute("DiTRunReport", model, after=None)[1])["totals"]
    done = (totals["hits"], totals["blocks_run"], totals["bytes_streamed"])
    return Row(name, images, seconds, len(calls), *done, model.loaded_size())


def table(rows: list[Row], pack: LoadedPack) -> str:
    """Return the rows as an aligned text table, the first row being the reference."""
    compare = pack.module("pictures.compare")
    lines = [COLUMNS]
    for row in rows:
        score = compare.average(compare.compare_frames(rows[0].images, row.images))
        lines.append(
            (
                row.name,
                f"{row.seconds:.2f} s",
                str(row.calls),
                str(row.hits),
                str(row.blocks_run),
                f"{row.bytes_streamed / 2**20:.1f} MiB",
                f"{row.weight_bytes / 2**20:.1f} MiB",
                compare.decibel(score.psnr),
                f"{score.ssim:.4f}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def save_sheet(rows: list[Row], pack: LoadedPack, file: Path) -> None:
    """Save the contact sheet: a row of pictures for each way, and one of differences for each but the first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    difference = pack.module("pictures.compare").difference_image
    strips = []
    for row in rows:
        strips.append((row.name, row.images))
        if row is not rows[0]:
            strips.append((f"x{AMPLIFY:g}", difference(rows[0].images, row.images, AMPLIFY)))
    columns = len(rows[0].images)
    figure = Figure(figsize=(1.6 + 0.8 * columns, 0.8 * len(strips)), dpi=100)
    for y, (name, images) in enumerate(strips):
        axes = figure.add_axes((1.6 / (1.6 + 0.8 * columns), 1 - (y + 1) / len(strips), 1, 1 / len(strips)))
        axes.imshow(torch.cat(list(images), dim=1).numpy(), interpolation="nearest")
        axes.set_anchor("W")
        axes.set_axis_off()
        figure.text(0.01, 1 - (y + 0.5) / len(strips), name, va="center", fontsize=9)
    file.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", default="0 1 2 3 4 5 6 7 8 9")
    parser.add_argument("--batch", type=int, default=10, help="pictures at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--sheet", type=Path, default=REPOSITORY / "artifacts" / "demo.png", help="the contact sheet")
    arguments = parser.parse_args()
    start_comfyui(*([] if torch.cuda.is_available() else ["--cpu"]))
    import comfy.model_management as management

    pack = LoadedPack()
    toy = Toy(pack, arguments.labels, arguments.batch)
    rows = [
        run(name, model, toy, pack, arguments.seed, arguments.steps) for name, model in ways(pack, toy.model).items()
    ]
    save_sheet(rows, pack, arguments.sheet)
    version = pack.module("comfy_adapter.versions").comfyui_version
    print(
        f"\nComfyUI {version} ({os.environ['COMFYUI_PATH']}) on {management.get_torch_device()}: the toy model, a"
        f" trained Wan with {toy.blocks} blocks, {arguments.batch} digits, {arguments.steps} steps {SAMPLER}, cfg"
        f" {CFG}.\n"
        f"offload keeps {RESIDENT_BLOCKS} blocks on the device; quality, balanced and fast are DBCache's presets.\n"
    )
    print(table(rows, pack))
    print(f"\nThe pictures, and below each row its difference from the plain one: {arguments.sheet}")


if __name__ == "__main__":
    main()
