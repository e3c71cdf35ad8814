"""The embedded toy model as ComfyUI's own objects: loaded by ComfyUI's loader, decoded without a VAE."""

from __future__ import annotations

from typing import Any

import comfy.latent_formats
import comfy.sd
import torch

from ..toy import checkpoint
from ..toy.latents import CHANNELS, coefficients_to_images


def load_toy_model(batch: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return (MODEL, an empty LATENT for ``batch`` pictures), as ComfyUI's own loader makes them.

    Raises:
        FileNotFoundError: the pack's file is missing.
        RuntimeError: this ComfyUI does not know the model.
    """
    weights, info = checkpoint.load()
    model = comfy.sd.load_diffusion_model_state_dict(weights)
    if model is None:
        raise RuntimeError("ComfyUI did not recognise the toy model, a Wan 2.1. Update ComfyUI or this pack.")
    return model, {"samples": torch.zeros(batch, CHANNELS, 1, info.size, info.size)}


def decode_toy_latent(latent: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a LATENT of the toy model as IMAGE, (batch, 16, frames, h, w) -> (batch * frames, 4h, 4w, 3) in 0..1.

    Raises:
        ValueError: the latent has another form.
    """
    samples = latent["samples"]
    if samples.dim() != 5 or samples.shape[1] != CHANNELS:
        raise ValueError(
            f"samples has the shape {tuple(samples.shape)}, but the toy model's latents have (batch, {CHANNELS},"
            " frames, height, width). Connect what a sampler made of DiT Toy Model's latent."
        )
    info = checkpoint.load_info()
    scaled = comfy.latent_formats.Wan21().process_in(samples.cpu().float())
    images = coefficients_to_images(scaled * info.scale_tensor())
    return ((images + 1) / 2).clamp(0, 1)[..., None].repeat(1, 1, 1, 3)
