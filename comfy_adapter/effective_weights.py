"""The weights a streamed block has to run with: LoRA baked in as ComfyUI's full load would, casts normalised.

Originals stay in the modules. ComfyUI's own ``patch_weight_to_device`` makes the baked tensor, on the compute
device (the intermediate dtype and, for fp8, the random generator depend on it), then the original goes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..offload.block_weights import BlockWeights, HeldAttribute

LoadEntry = tuple[str, torch.nn.Module]


def plain_key(module_name: str, parameter: str) -> str:
    """Return the patch key of a parameter: torch.compile wrappers leave no trace in it."""
    return f"{module_name.replace('._orig_mod', '')}.{parameter}"


def build_block_weights(
    patcher: Any, block: torch.nn.Module, entries: Iterable[LoadEntry], device: torch.device
) -> BlockWeights:
    """Return the effective weights of one block.

    Args:
        patcher: the ComfyUI patcher whose patches count.
        block: the block, its original weights at rest on the host.
        entries: (name, module) of those modules of the block that ComfyUI's loader would patch.
        device: the compute device.
    """
    effective: dict[int, torch.Tensor] = {}
    held: list[HeldAttribute] = []
    for name, module in entries:
        for parameter, original in list(module._parameters.items()):
            key = plain_key(name, parameter)
            if original is not None and key in patcher.patches:
                effective[id(original)] = bake(patcher, module, parameter, key, device)
        held += held_attributes(patcher, name, module, device)
    return BlockWeights(block, effective, held)


def bake(patcher: Any, module: torch.nn.Module, parameter: str, key: str, device: torch.device) -> torch.Tensor:
    """Return the patched weight on the offload device; module and patcher are left as they were."""
    original = module._parameters[parameter]
    known = key in patcher.backup
    try:
        patcher.patch_weight_to_device(key, device_to=device)
        return module._parameters[parameter].detach().to(patcher.offload_device)
    finally:
        module._parameters[parameter] = original
        if not known:
            patcher.backup.pop(key, None)


def held_attributes(patcher: Any, name: str, module: torch.nn.Module, device: torch.device) -> list[HeldAttribute]:
    """Return what ComfyUI's loader would set on a fully loaded module, to hold while its block runs.

    The loader skips streamed modules, so a weight wrapper would be ignored, and low-VRAM settings left by an
    earlier load of the same model would leak in.
    """
    if not hasattr(module, "comfy_cast_weights"):
        return []
    at_rest = getattr(module, "prev_comfy_cast_weights", module.comfy_cast_weights)
    held = [HeldAttribute(module, "comfy_cast_weights", True if patcher.force_cast_weights else at_rest)]
    if hasattr(module, "comfy_force_cast_weights"):
        held.append(HeldAttribute(module, "comfy_force_cast_weights", patcher.force_cast_weights))
    for parameter in ("weight", "bias"):
        if hasattr(module, f"{parameter}_function"):
            functions = list(patcher.weight_wrapper_patches.get(plain_key(name, parameter), []))
            for function in functions:
                if hasattr(function, "move_to"):
                    function.move_to(device=device)
            held.append(HeldAttribute(module, f"{parameter}_function", functions))
    return held
