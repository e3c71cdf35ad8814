"""The weights a streamed block has to run with: LoRA as ComfyUI would apply it, casts normalised.

Originals stay in the modules. To bake, ComfyUI's own ``patch_weight_to_device`` makes the patched tensor, on the
compute device (the intermediate dtype and, for fp8, the random generator depend on it), then the original goes
back. On the fly, ComfyUI's own low-VRAM patch is a weight function while the block runs: no copy in main memory,
but the LoRA is computed again at each use, in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import comfy.model_patcher
import torch

from ...offload.block_weights import AttributeWhileRunning, BlockWeights, is_opaque

LoadEntry = tuple[str, torch.nn.Module]
RAM_RESERVE = 2 * 2**30


def plain_key(module_name: str, parameter: str) -> str:
    """Return the patch key of a parameter: torch.compile wrappers leave no trace in it."""
    return f"{module_name.replace('._orig_mod', '')}.{parameter}"


def loras_on_the_fly(choice: str, patched_bytes: int, free_bytes: float) -> bool:
    """Whether LoRAs on streamed blocks are applied on the fly: ``auto`` bakes as long as main memory has room.

    Args:
        choice: the node's ``lora`` input.
        patched_bytes: the main memory that baking would take.
        free_bytes: main memory available now; a reserve of it is left alone.
    """
    if choice == "auto":
        return patched_bytes > free_bytes - RAM_RESERVE
    return choice == "on_the_fly"


def patched_bytes(patcher: Any, entries: Iterable[LoadEntry]) -> int:
    """Return the bytes of those parameters of ``entries`` that ``patcher`` has patches for."""
    return sum(
        tensor.numel() * tensor.element_size()
        for name, module in entries
        for parameter, tensor in module._parameters.items()
        if tensor is not None and plain_key(name, parameter) in patcher.patches
    )


def build_block_weights(
    patcher: Any, block: torch.nn.Module, entries: Iterable[LoadEntry], device: torch.device, on_the_fly: bool = False
) -> BlockWeights:
    """Return the effective weights of one block.

    Args:
        patcher: the ComfyUI patcher whose patches count.
        block: the block, its original weights at rest on the host.
        entries: (name, module) of those modules of the block that ComfyUI's loader would patch.
        device: the compute device.
        on_the_fly: apply LoRAs at each use where the module can, instead of baking them.
    """
    effective: dict[int, torch.Tensor] = {}
    while_running: list[AttributeWhileRunning] = []
    for name, module in entries:
        for parameter, original in list(module._parameters.items()):
            key = plain_key(name, parameter)
            if original is None or key not in patcher.patches or (on_the_fly and _patched_at_use(module, parameter)):
                continue
            effective[id(original)] = bake(patcher, module, parameter, key, device)
        while_running += attributes_while_running(patcher, name, module, device, on_the_fly)
    return BlockWeights(block, effective, while_running)


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


def attributes_while_running(
    patcher: Any, name: str, module: torch.nn.Module, device: torch.device, on_the_fly: bool
) -> list[AttributeWhileRunning]:
    """Return the attributes that ComfyUI's loader would set on the module, for the time its block runs.

    The loader skips streamed modules, so a weight wrapper would be ignored, and low-VRAM settings left by an
    earlier load of the same model would leak in.
    """
    if not hasattr(module, "comfy_cast_weights"):
        return []
    functions: dict[str, list[Any]] = {}
    patched = False
    for parameter in ("weight", "bias"):
        if _takes_functions(module, parameter):
            key = plain_key(name, parameter)
            at_use = on_the_fly and key in patcher.patches and _patched_at_use(module, parameter)
            functions[parameter] = _functions(patcher, key, at_use)
            patched |= at_use
    at_rest = getattr(module, "prev_comfy_cast_weights", module.comfy_cast_weights)
    set_to = [
        AttributeWhileRunning(module, "comfy_cast_weights", True if patched or patcher.force_cast_weights else at_rest)
    ]
    if hasattr(module, "comfy_force_cast_weights"):
        set_to.append(AttributeWhileRunning(module, "comfy_force_cast_weights", patcher.force_cast_weights))
    for parameter, of_parameter in functions.items():
        for function in of_parameter:
            if hasattr(function, "move_to"):
                function.move_to(device=device)
        set_to.append(AttributeWhileRunning(module, f"{parameter}_function", of_parameter))
    return set_to


def _takes_functions(module: torch.nn.Module, parameter: str) -> bool:
    return hasattr(module, f"{parameter}_function")


def _patched_at_use(module: torch.nn.Module, parameter: str) -> bool:
    """Whether a weight function can patch the parameter when it is used. Layers of opaque tensors (GGUF) bring their
    own cast, which knows no such functions: those are always baked."""
    tensor = module._parameters.get(parameter)
    return _takes_functions(module, parameter) and (tensor is None or not is_opaque(tensor))


def _functions(patcher: Any, key: str, lora: bool) -> list[Any]:
    """Return the weight functions of one parameter: the LoRA first, if asked for, then other nodes' weight wrappers."""
    functions: list[Any] = []
    if lora:
        _, set_function, convert_function = comfy.model_patcher.get_key_weight(patcher.model, key)
        functions.append(comfy.model_patcher.LowVramPatch(key, patcher.patches, convert_function, set_function))
    return functions + list(patcher.weight_wrapper_patches.get(key, []))
