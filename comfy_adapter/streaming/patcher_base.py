"""The common base of the pack's mixins over ComfyUI's model patcher, for the type checker; empty at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from comfy.model_patcher import ModelPatcher

    from ...offload.block_weights import BlockWeights
    from .effective_weights import LoadEntry
    from .settings import OffloadSettings

    class PatcherBase(ModelPatcher):
        """ComfyUI's patcher, with the members that one mixin uses of another."""

        layerwise_settings: OffloadSettings

        def streamed_entries(self) -> list[LoadEntry]: ...
        def patched_streamed_blocks(self) -> list[tuple[torch.nn.Module, BlockWeights]]: ...
        def follow_edited_weights(self) -> None: ...

else:
    PatcherBase = object
