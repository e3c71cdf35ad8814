"""The toy model's file: its weights, and in the metadata how to read its latents and how it was trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).with_name("digits_wan.safetensors")
METADATA_KEY = "toy"


@dataclass(frozen=True)
class ToyInfo:
    """What the file says about itself.

    Attributes:
        scales: by what each of the 16 latent channels was divided.
        size: height and width of a latent.
        training: the training settings and results, for people.
    """

    scales: tuple[float, ...]
    size: int
    training: dict[str, Any]

    def scale_tensor(self) -> torch.Tensor:
        """Return the scales, shape (1, 16, 1, 1, 1)."""
        return torch.tensor(self.scales).reshape(1, -1, 1, 1, 1)


def save(path: Path, weights: dict[str, torch.Tensor], info: ToyInfo) -> None:
    """Write the file, weights in half precision."""
    from safetensors.torch import save_file

    described = {"scales": info.scales, "size": info.size, "training": info.training}
    halves = {name: value.to(torch.float16).contiguous() for name, value in weights.items()}
    save_file(halves, path, metadata={METADATA_KEY: json.dumps(described)})


def load(path: Path = PATH) -> tuple[dict[str, torch.Tensor], ToyInfo]:
    """Return (weights, info).

    Raises:
        FileNotFoundError: the file is not there, which means that the pack was not installed whole.
    """
    from safetensors.torch import load_file

    info = load_info(path)
    return load_file(path), info


def load_info(path: Path = PATH) -> ToyInfo:
    """Return what the file says about itself, without its weights. Raises as :func:`load` does."""
    from safetensors import safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing from the pack's folder 'toy'. Install the pack again.")
    with safe_open(path, framework="pt") as file:
        described = json.loads(file.metadata()[METADATA_KEY])
    return ToyInfo(tuple(described["scales"]), described["size"], described["training"])
