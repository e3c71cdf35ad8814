"""Builds the engine of a loaded layerwise patcher: effective weights, pinned memory, and the streamer over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import comfy.model_management

from ...offload.block_weights import BlockWeights
from ...offload.devices import offload_device
from ...offload.streamer import BlockStreamer
from .effective_weights import build_block_weights, loras_on_the_fly, patched_bytes
from .notes import engine_notes
from .pinning import PinnedHostMemory, wants_pinning
from .shared_state import BuiltEngine, stack_of, streaming_of

if TYPE_CHECKING:
    from .patcher_base import PatcherBase


def build_engine(patcher: PatcherBase, device: Any) -> BuiltEngine:
    """Return an engine for the blocks that are placed to be streamed now.

    The engine before it must have been released, or both would hold their memory at once.
    """
    streaming, settings = streaming_of(patcher.model), patcher.layerwise_settings
    patched = patched_bytes(patcher, patcher.streamed_entries())
    free = comfy.model_management.get_free_memory(patcher.offload_device)
    on_the_fly = patched > 0 and loras_on_the_fly(settings.lora, patched, free)
    weights = build_weights(patcher, device, on_the_fly)
    pins = None
    if wants_pinning(settings.pin_memory, device):
        pins = PinnedHostMemory(tensor for one in weights.values() for tensor in one.host_tensors())
    prefetch, total = streaming.placement.prefetch, streaming.total_blocks
    streamer = BlockStreamer(weights, total, offload_device(device), prefetch, streaming.copies)
    unpacked = sum(one.unpacked_bytes for one in weights.values())
    return BuiltEngine(streamer, pins, on_the_fly, engine_notes(settings.lora, on_the_fly, pins, unpacked))


def build_weights(patcher: PatcherBase, device: Any, on_the_fly: bool) -> dict[int, BlockWeights]:
    """Return the effective weights of the streamed blocks by index; with ``on_the_fly`` their LoRAs are applied at
    each use instead of baked in."""
    blocks = stack_of(patcher.model).blocks
    weights = {}
    with patcher.use_ejected():
        entries = patcher.streamed_entries()
        for index in streaming_of(patcher.model).placement.streamed:
            members = {id(module) for module in blocks[index].modules()}
            own = [(name, module) for name, module in entries if id(module) in members]
            weights[index] = build_block_weights(patcher, blocks[index], own, device, on_the_fly)
    return weights
