"""The pack's main job on an embedded default: one tiny random video DiT, sampled four ways in real ComfyUI.

Run it by ``nox -s demo``. Random weights show that nothing breaks and what is saved, not what a picture looks like.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import torch
from headless import LoadedPack, start_comfyui

STEPS = 20
CFG = 4.0
TEXT_WIDTH = 256
LATENT = (1, 16, 3, 24, 24)
MODEL = {
    "image_model": "wan2.1",
    "model_type": "t2v",
    "dim": 256,
    "ffn_dim": 1024,
    "num_heads": 2,
    "num_layers": 12,
    "text_dim": TEXT_WIDTH,
    "in_dim": 16,
    "out_dim": 16,
    "freq_dim": 256,
    "patch_size": (1, 2, 2),
    "text_len": 32,
}
RESIDENT_BLOCKS = 3
COLUMNS = ("", "time", "calls", "hits", "blocks run", "streamed", "device weights", "max diff", "PSNR")


@dataclass
class Row:
    """What one way of sampling took."""

    name: str
    samples: torch.Tensor
    seconds: float
    calls: int
    hits: int
    blocks_run: int
    bytes_streamed: int
    weight_bytes: int


def build_model() -> Any:
    """Return ComfyUI's own patcher over a random Wan of 12 blocks."""
    import comfy.model_management as management
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.WAN21_T2V(dict(MODEL))
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model({}, "")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(random * 0.5 / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_((0.0 if name.endswith("bias") else 1.0) + random * 0.02)
    return comfy.model_patcher.ModelPatcher(model, management.get_torch_device(), management.unet_offload_device())


def random_like(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sample(model: Any, steps: int, progress: bool) -> torch.Tensor:
    """Sample as the KSampler node does, with ComfyUI's own progress bar."""
    import comfy.sample

    positive, negative = ([[random_like((1, 16, TEXT_WIDTH), seed), {}]] for seed in (1, 2))
    with torch.inference_mode():
        return comfy.sample.sample(
            model,
            random_like(LATENT, 3),
            steps,
            CFG,
            "euler",
            "simple",
            positive,
            negative,
            torch.zeros(LATENT),
            disable_pbar=not progress,
            seed=3,
        )


def run(name: str, model: Any, pack: LoadedPack) -> Row:
    """Sample once to warm up and once for the table."""
    import comfy.model_management as management

    management.unload_all_models()
    sample(model, 2, progress=False)
    calls = []
    counter = model.model.diffusion_model.register_forward_pre_hook(lambda *_: calls.append(1))
    print(f"{name}:", flush=True)
    started = time.perf_counter()
    samples = sample(model, STEPS, progress=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    counter.remove()
    totals = {"hits": 0, "blocks_run": len(calls) * MODEL["num_layers"], "bytes_streamed": 0}
    if name != "plain":
        totals = json.loads(pack.execute("DiTRunReport", model, after=None)[1])["totals"]
    return Row(
        name,
        samples,
        seconds,
        len(calls),
        totals["hits"],
        totals["blocks_run"],
        totals["bytes_streamed"],
        model.loaded_size(),
    )


def psnr(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Return the peak signal-to-noise ratio of a latent in dB, the peak being the reference's range."""
    error = float((reference - candidate).square().mean())
    peak = float(reference.max() - reference.min())
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


def table(rows: list[Row]) -> str:
    """Return the rows as an aligned text table, the first row being the reference."""
    lines = [COLUMNS]
    for row in rows:
        difference = float((row.samples - rows[0].samples).abs().max())
        decibel = psnr(rows[0].samples, row.samples)
        lines.append(
            (
                row.name,
                f"{row.seconds:.2f} s",
                str(row.calls),
                str(row.hits),
                str(row.blocks_run),
                f"{row.bytes_streamed / 2**20:.1f} MiB",
                f"{row.weight_bytes / 2**20:.1f} MiB",
                f"{difference:.2g}" if difference else "0",
                "identical" if decibel == math.inf else f"{decibel:.1f} dB",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    start_comfyui(*([] if torch.cuda.is_available() else ["--cpu"]))
    import comfy.model_management as management

    pack = LoadedPack()
    plain = build_model()
    offload = pack.execute("DiTLayerwiseOffload", plain, resident_blocks=RESIDENT_BLOCKS)[0]
    cache = pack.execute("DiTDBCache", plain, preset="balanced")[0]
    both = pack.execute("DiTDBCache", offload, preset="balanced")[0]
    ways = (("plain", plain), ("offload", offload), ("DBCache", cache), ("both", both))
    rows = [run(name, model, pack) for name, model in ways]
    version = pack.module("comfy_adapter.versions").comfyui_version()
    print(
        f"\nComfyUI {version} ({os.environ['COMFYUI_PATH']}) on {management.get_torch_device()}: Wan with"
        f" {MODEL['num_layers']} blocks of random weights, {STEPS} steps euler, cfg {CFG}.\n"
        f"offload keeps {RESIDENT_BLOCKS} blocks on the device; DBCache uses preset 'balanced'.\n"
    )
    print(table(rows))


if __name__ == "__main__":
    main()
