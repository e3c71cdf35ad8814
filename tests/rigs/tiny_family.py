"""How a tiny random-weight model of one of ComfyUI's families is described.

Data only: the class in ``comfy.supported_models``, its sizes, a latent, and what a text encoder would give it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rigs.tiny_sizes import TEXT


@dataclass(frozen=True)
class TinyFamily:
    """How to build and sample one tiny model.

    Attributes:
        name: the variant's name, as used in the project's notes on families.
        config: class in ``comfy.supported_models``.
        unet: its sizes.
        latent: shape of a latent.
        text: width of a text embedding, or a function (tokens, seed) -> tensor.
        extras: further entries of a conditioning.
        scale: of the random matrices; smaller ones make a smoother model.
        varies: whether prompts of different lengths can be sampled.
        masked: whether text encoders give an attention mask with it.
        state: weights that are needed to make the model at all.
        cached: whether DBCache can be used on it.
        shrink: makes a diffusion model small whose sizes are fixed in its class.
        fill: gives buffers values that come with a checkpoint.
    """

    name: str
    config: str
    unet: dict[str, Any]
    latent: tuple
    text: int = TEXT
    extras: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.5
    varies: bool = True
    masked: bool = False
    state: Callable[[], dict[str, Any]] = dict
    cached: bool = True
    shrink: Callable[[torch.nn.Module], None] = lambda model: None
    fill: Callable[[torch.nn.Module], None] = lambda model: None
