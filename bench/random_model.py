"""A random model of one of ComfyUI's own classes, as big as a real one, to sample with where no weights are at hand.

Wan 2.2 14B's stack: every ComfyUI has it, and its forward takes nothing but a latent and a text. ``nox -s bench --
end_to_end --model bench.random_model:wan`` samples with it; 28 GB of main memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .end_to_end import Example

TEXT_WIDTH, TEXT_TOKENS = 4096, 512


@dataclass(frozen=True)
class WanShape:
    """Sizes by the names of ComfyUI's settings; ``latent`` is (batch, channels, frames, height, width)."""

    dim: int = 5120
    ffn_dim: int = 13824
    num_heads: int = 40
    num_layers: int = 40
    latent: tuple[int, ...] = (1, 16, 5, 60, 104)
    text_dim: int = TEXT_WIDTH
    text_tokens: int = TEXT_TOKENS
    dtype: torch.dtype = torch.bfloat16
    steps: int = 8


def wan(pack: Any) -> Example:
    """Return an example of full size: 832x480, 17 frames."""
    return random_wan(WanShape())


def random_wan(shape: WanShape) -> Example:
    """Return an example over a new model: what stays is up to ComfyUI's own budget."""
    patcher = wan_patcher(shape)
    return Example(
        f"a random Wan of {shape.num_layers} blocks, {shape.dim} wide, {shape.dtype}".replace("torch.", ""),
        patcher,
        lambda model, steps: sample(model, shape, steps),
        shape.steps,
        -1,
        "fast",
    )


def wan_patcher(shape: WanShape) -> Any:
    """Return ComfyUI's own patcher over a Wan text-to-video model with random weights."""
    import comfy.model_management as management
    import comfy.model_patcher
    import comfy.supported_models

    sizes = {"image_model": "wan2.1", "model_type": "t2v", "in_dim": 16, "out_dim": 16, "freq_dim": 256}
    sizes |= {
        "text_len": shape.text_tokens,
        "dim": shape.dim,
        "ffn_dim": shape.ffn_dim,
        "num_heads": shape.num_heads,
        "text_dim": shape.text_dim,
    }
    config = comfy.supported_models.WAN21_T2V({**sizes, "num_layers": shape.num_layers, "patch_size": (1, 2, 2)})
    config.set_inference_dtype(shape.dtype, None)
    model = config.get_model({}, "")
    fill(model.diffusion_model)
    return comfy.model_patcher.ModelPatcher(model, management.get_torch_device(), management.unet_offload_device())


def fill(model: torch.nn.Module) -> None:
    """Fill matrices with noise of the size that keeps hidden states in bounds, vectors with one or, biases, zero."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2**20, generator=generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            values = parameter.numel()
            repeated = noise.repeat(math.ceil(values / len(noise)))[:values].view(parameter.shape)
            parameter.copy_(repeated * (0.5 / parameter[0].numel() ** 0.5))


def sample(model: Any, shape: WanShape, steps: int) -> torch.Tensor:
    """Sample as the KSampler node does: euler, simple, a condition and its opposite at cfg 3."""
    import comfy.sample

    def random(size: tuple[int, ...], seed: int) -> torch.Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(seed))

    positive, negative = ([[random((1, shape.text_tokens, shape.text_dim), seed), {}]] for seed in (2, 3))
    with torch.inference_mode():
        return comfy.sample.sample(
            model,
            random(shape.latent, 1),
            steps,
            3.0,
            "euler",
            "simple",
            positive,
            negative,
            torch.zeros(shape.latent),
            disable_pbar=True,
            seed=1,
        )
