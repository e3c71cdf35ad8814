"""Chooses a placement that ComfyUI's loader will carry out: every module that is not streamed must fit whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import comfy.model_management

from ...offload.placement import Placement
from ..attachments import attached
from .shared_state import stack_of, streaming_of

if TYPE_CHECKING:
    from .patcher_base import PatcherBase

UNLIMITED = 1e32


def fitting_placement(patcher: PatcherBase, budget: float, entries: Sequence[tuple] = ()) -> Placement:
    """Return the placement for ``patcher``'s settings within ``budget`` device bytes for weights.

    Args:
        patcher: the patcher to be loaded.
        budget: device bytes; :data:`UNLIMITED` or more for no limit.
        entries: the whole list of ComfyUI's loader.
    """
    streaming, settings, cache = streaming_of(patcher.model), patcher.layerwise_settings, attached(patcher).cache
    placement = streaming.choose(settings, cache, budget)
    if budget >= UNLIMITED:
        return placement
    while placement.streamed and not _loads_whole(patcher, placement, entries, budget):
        resident = streaming.total_blocks - len(placement.streamed)
        if resident == 0:
            break
        placement = streaming.choose(settings, cache, budget, resident - 1)
    return placement


def streamed_modules(patcher: PatcherBase, placement: Placement) -> set[int]:
    """Return the ``id()`` of every module in the blocks that ``placement`` streams."""
    blocks = stack_of(patcher.model).blocks
    return {id(module) for index in placement.streamed for module in blocks[index].modules()}


def _loads_whole(patcher: PatcherBase, placement: Placement, entries: Sequence[tuple], budget: float) -> bool:
    """Whether the loader would place every module that is not streamed whole: it goes from the largest down and wants
    room for a few casts of the next one besides."""
    streamed = streamed_modules(patcher, placement)
    room = budget - streaming_of(patcher.model).slot_bytes(placement)
    casts = comfy.model_management.NUM_STREAMS + 1
    loaded = 0
    for cast_bytes, size in sorted(
        ((entry[0], entry[-4]) for entry in entries if id(entry[-2]) not in streamed), reverse=True
    ):
        if loaded + size + casts * cast_bytes >= room:
            return False
        loaded += size
    return True
