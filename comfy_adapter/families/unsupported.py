"""ComfyUI's models that neither node can work on, by class, and why. Some of them look like a stack of blocks."""

from __future__ import annotations

_UNET = "every part of a UNet takes what far earlier parts returned"
_NO_DIFFUSION = "it is no diffusion model"

UNSUPPORTED = {
    "UNetModel": _UNET,
    "StageB": _UNET,
    "StageC": _UNET,
    "WanAnimate2Model": "it calls three methods of each block instead of the block, so nothing can be put around them",
    "RTv4": _NO_DIFFUSION,
    "DepthAnything3Net": _NO_DIFFUSION,
    "SAM3Model": _NO_DIFFUSION,
}
