"""ComfyUI itself on a GPU under a memory cap: its own loading against the pack's nodes, one process for each cap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .end_to_end import COLUMNS as SAMPLING_COLUMNS
from .gpu import CAPS_GB
from .tables import Part

MODEL = "bench.random_model:wan"
COLUMNS = {"cap GB": "{}", **SAMPLING_COLUMNS}


def end_to_end_under(cap: float, model: str = MODEL) -> dict[str, Any]:
    """Run the part ``end_to_end`` in a process of its own that may use ``cap`` GB, and return its JSON entry.

    Raises:
        RuntimeError: the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        words = ["end_to_end", "--json", str(results), "--model", model, "--vram-gb", str(cap), "--rounds", "3"]
        command = [sys.executable, "-m", "bench", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"under {cap} GB: {(done.stdout + done.stderr)[-2000:]}")
        [entry] = json.loads(results.read_text(encoding="utf-8"))["parts"]
        return entry


def measure_comfyui(caps: Sequence[float] = CAPS_GB, run: Callable[[float], dict[str, Any]] = end_to_end_under) -> Part:
    """Sample a random model of full size under each cap; skipped without a GPU or ComfyUI."""
    title = "ComfyUI sampling a random model of full size under a memory cap"
    if not torch.cuda.is_available():
        return Part("gpu_comfyui", title, skipped="no CUDA device here")
    if not os.environ.get("COMFYUI_PATH"):
        return Part("gpu_comfyui", title, skipped="COMFYUI_PATH is not set")
    entries = [(cap, run(cap)) for cap in caps]
    rows = [{"cap GB": cap, **row} for cap, entry in entries for row in entry["rows"]]
    notes = [
        "plain: ComfyUI's own loading, told by --reserve-vram that the rest of the card is taken",
        *entries[0][1]["notes"],
    ]
    return Part("gpu_comfyui", f"{title}: {entries[0][1]['title']}", COLUMNS, rows, notes=notes)
