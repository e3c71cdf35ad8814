"""Makes a tiny model of one of ComfyUI's own classes: its config, random weights, and ComfyUI's patcher over it."""

from __future__ import annotations

import importlib
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.supported_models
import pytest
import torch


def known(sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes without those that this ComfyUI has no name for."""
    modules = {
        "flux": "flux.model.FluxParams",
        "flux2": "flux.model.FluxParams",
        "longcat_image": "flux.model.FluxParams",
        "chroma": "chroma.model.ChromaParams",
        "chroma_radiance": "chroma_radiance.model.ChromaRadianceParams",
        "hunyuan_video": "hunyuan_video.model.HunyuanVideoParams",
    }
    if sizes.get("image_model") not in modules:
        return dict(sizes)
    module, name = modules[sizes["image_model"]].rsplit(".", 1)
    fields = getattr(importlib.import_module(f"comfy.ldm.{module}"), name).__dataclass_fields__
    return {key: value for key, value in sizes.items() if key == "image_model" or key in fields}


def noise(*shape: int, seed: int = 9) -> torch.Tensor:
    """Return normal random numbers, the same for a seed everywhere."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def config_of(name: str, sizes: dict[str, Any]) -> Any:
    """Return a config of class ``name`` in ``comfy.supported_models``, in float32; skips what this ComfyUI lacks."""
    if not hasattr(comfy.supported_models, name):
        pytest.skip(f"this ComfyUI has no {name}")
    sizes = known(sizes)
    config = getattr(comfy.supported_models, name)(sizes)
    # what ComfyUI fixes for a family, it sets over the given sizes
    config.unet_config.update({key: size for key, size in sizes.items() if key in config.unet_extra_config})
    config.set_inference_dtype(torch.float32, None)
    return config


def randomise(model: torch.nn.Module, scale: float, seed: int = 0) -> None:
    """Fill a ComfyUI model in place: matrices of standard deviation ``scale`` over the root of their inputs, vectors
    near one or, for biases, near zero, and the buffers that would come with a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(random * scale / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_((0.0 if name.endswith("bias") else 1.0) + random * 0.02)
        for name, buffer in model.diffusion_model.named_buffers():
            if name in ("rope.inv_freq", "transformer.rotary_pos_emb.inv_freq"):
                buffer.copy_(torch.logspace(0, -1, len(buffer)))
            elif name == "pos_embed":
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def patcher_over(model: torch.nn.Module) -> comfy.model_patcher.ModelPatcher:
    """Return ComfyUI's own patcher over a model, on the devices that ComfyUI chooses."""
    management = comfy.model_management
    return comfy.model_patcher.ModelPatcher(model, management.get_torch_device(), management.unet_offload_device())
