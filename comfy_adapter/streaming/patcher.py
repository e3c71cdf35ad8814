"""A mixin over ComfyUI's model patcher that leaves the streamed blocks to the layerwise engine.

ComfyUI keeps everything else: it places, counts, patches, evicts and saves the resident blocks and the weights
outside the stack, as for any model. Streamed blocks keep their original weights on the offload device and are
left out of the loader's list; on the device they cost the engine's slots, which count in the sizes told.
"""

from __future__ import annotations

import functools
import logging
import uuid
from typing import Any

import torch

from ...offload.block_weights import BlockWeights
from ...offload.placement import Placement
from ...offload.streamer import BlockStreamer
from ..attachments import attached
from .build import build_engine, build_weights
from .effective_weights import LoadEntry, patched_bytes
from .fit import UNLIMITED, fitting_placement, streamed_modules
from .patcher_base import PatcherBase
from .saving import PatchedStateDict
from .scheduled_loras import ScheduledLoras
from .settings import OffloadSettings
from .shared_state import ModelStreaming, stack_of, streaming_of

log = logging.getLogger("dit_layerwise_offload.patcher")

SMALLEST_BUDGET = 0.1


class LayerwiseOffloadMixin(PatcherBase):
    """Overrides as little of the patcher as it can; see the module docstring for the division of labour.

    Attributes:
        layerwise_settings: the node's. The class's own are never used to load: ComfyUI's ``clone`` makes the copy by
            its class, and the copy has its settings when ``clone`` returns. In between only other packs' callbacks
            see it, and one whose ``__init__`` failed only dies.
    """

    layerwise_settings = OffloadSettings()
    _layerwise_token: object | None = None

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        return layerwise_patcher(super().clone(*args, **kwargs), self.layerwise_settings)

    def model_size(self) -> int:
        streaming = self._streaming
        return streaming.device_bytes(streaming.placement if self._is_loaded else fitting_placement(self, float("inf")))

    def loaded_size(self) -> int:
        streamer = self._own_streamer
        return super().loaded_size() + (streamer.slot_bytes if streamer is not None else 0)

    def partially_load(
        self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False, **kwargs: Any
    ) -> Any:
        """Load as much as ``extra_memory`` bytes more than now allow; a negative number is to be freed."""
        streaming = self._streaming
        if not self._is_loaded:
            streaming.take_sizes(self.model)
        # Older versions save by force-patching everything and reading the state dict: then nothing is streamed.
        wanted = Placement() if force_patch_weights else self._choose_for(extra_memory)
        if wanted != streaming.placement:
            # Count the bytes freed here towards the budget: ComfyUI does so only for its own unpatching.
            before = self.loaded_size()
            self.unpatch_model(self.offload_device, unpatch_weights=True)
            streaming.release()
            extra_memory += before - self.loaded_size()
        streaming.placement = wanted
        streaming.placed_for = () if force_patch_weights else self._placement_key
        extra_memory = self._extra_beside_slots(extra_memory)
        result = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights, **kwargs)
        if streaming.placement.streamed:
            self._ensure_engine(device_to)
            streaming.streamer.acquire_slots()
        return result

    def load(
        self,
        device_to: Any = None,
        lowvram_model_memory: float = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
        **kwargs: Any,
    ) -> None:
        if not self._streaming.placement.streamed:
            return super().load(
                device_to,
                lowvram_model_memory=lowvram_model_memory,
                force_patch_weights=force_patch_weights,
                full_load=full_load,
                **kwargs,
            )
        # A full load would move the whole model, streamed blocks and all.
        budget = UNLIMITED if full_load and lowvram_model_memory == 0 else lowvram_model_memory
        slots = self._streaming.slot_bytes(self._streaming.placement)
        super().load(
            device_to,
            lowvram_model_memory=max(SMALLEST_BUDGET, budget - slots),
            force_patch_weights=force_patch_weights,
            full_load=False,
            **kwargs,
        )
        self._ensure_engine(device_to)

    def partially_unload(self, device_to: Any, memory_to_free: float = 0, *args: Any, **kwargs: Any) -> float:
        """Free at least ``memory_to_free`` bytes if that much is loaded; return the bytes freed."""
        freed, streamer = 0, self._own_streamer
        if streamer is not None:
            # Idle slots first: they cost nothing to make again.
            freed = streamer.release_slots()
            if freed >= memory_to_free > 0:
                return freed
        return freed + super().partially_unload(device_to, memory_to_free - freed, *args, **kwargs)

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> Any:
        if unpatch_weights and self._owns_engine:
            self._streaming.release()
        return super().unpatch_model(device_to, unpatch_weights)

    def detach(self, unpatch_all: bool = True) -> Any:
        # Called on every transient clone that dies, too: only the engine's owner may give the slots back.
        streamer = self._own_streamer
        if streamer is not None:
            streamer.release_slots()
            self._streaming.release_when_another_runs()
        return super().detach(unpatch_all)

    def deepclone_multigpu(self, *args: Any, **kwargs: Any) -> Any:
        # ComfyUI loads the model once more for each GPU. An engine for each copy would come by itself, as streaming
        # state belongs to the model. Missing are: the records, slots and copies of several devices in one run report
        # (a run covers one model, another copy's calls run uncached), several copies in the rules for main memory
        # and pins, and tests on such a machine. One copy of the model spread over several GPUs would need another
        # engine: this one has one device, one pool of slots and one budget.
        raise ValueError(
            "DiT Layerwise Offload streams through one GPU and cannot be combined with several. Remove it, or the node"
            " that splits the model over GPUs."
        )

    def __del__(self) -> None:
        if self._owns_engine:
            self._streaming.release()
        if hasattr(super(), "__del__"):
            super().__del__()

    def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple]:
        entries = super()._load_list(*args, **kwargs)
        if not self._streaming.placement.streamed:
            return entries
        left_out = streamed_modules(self, self._streaming.placement)
        return [entry for entry in entries if id(entry[-2]) not in left_out]

    def explained_placement(self) -> str:
        """Return the placement and the reason for it in one line; empty while the model is not loaded with these
        weights."""
        return self._streaming.explained() if self._is_loaded else ""

    def streamed_entries(self) -> list[LoadEntry]:
        """Return (name, module) of all that ComfyUI's loader would load of the streamed blocks."""
        streamed = streamed_modules(self, self._streaming.placement)
        return [(entry[-3], entry[-2]) for entry in super()._load_list() if id(entry[-2]) in streamed]

    def patched_streamed_blocks(self) -> list[tuple[torch.nn.Module, BlockWeights]]:
        """Return (block, weights with LoRA baked in) of the streamed blocks, empty when nothing is streamed now."""
        streamer = self._own_streamer
        if streamer is None:
            return []
        weights = streamer.weights
        if self._streaming.on_the_fly:
            weights = build_weights(self, self.load_device, on_the_fly=False)
        blocks = stack_of(self.model).blocks
        return [(blocks[index], weights[index]) for index in weights]

    def follow_edited_weights(self) -> None:
        """Weights at rest were edited: drop the copies in the slots, and build anew where LoRAs are baked in."""
        streamer = self._own_streamer
        if streamer is None:
            return
        if not self._streaming.on_the_fly and patched_bytes(self, self.streamed_entries()) == 0:
            now = build_weights(self, self.load_device, on_the_fly=False)
            if all(now[index].is_same_memory(weights) for index, weights in streamer.weights.items()):
                streamer.forget()
                return
        streamer.forget()
        self._build_engine(self.load_device)

    @property
    def _streaming(self) -> ModelStreaming:
        return streaming_of(self.model)

    @property
    def _owns_engine(self) -> bool:
        return self._layerwise_token is not None and self._streaming.owned_by(self._layerwise_token)

    @property
    def _own_streamer(self) -> BlockStreamer | None:
        return self._streaming.streamer if self._owns_engine else None

    @property
    def _is_loaded(self) -> bool:
        """Whether the model is on the device now with this patcher's weights."""
        return self.model.current_weight_patches_uuid == self.patches_uuid

    @property
    def _placement_key(self) -> tuple:
        """All that a placement depends on beside memory."""
        return self.layerwise_settings, attached(self).cache

    def _choose_for(self, extra_memory: float) -> Placement:
        """Return the placement for a load that may take ``extra_memory`` more bytes.

        A model that is loaded already keeps its placement: another one costs a full reload, and where memory got
        short ComfyUI itself takes residents out.
        """
        streaming = self._streaming
        kept = streaming.placement.streamed and streaming.placed_for == self._placement_key
        if self._is_loaded and kept:
            return streaming.placement
        budget = self.loaded_size() + extra_memory
        return fitting_placement(self, budget, super()._load_list() if budget < UNLIMITED else ())

    def _extra_beside_slots(self, extra_memory: float) -> float:
        """Return the bytes that a loaded model may take more once its slots are back: residents make room where they
        are short."""
        streamer, missing = self._own_streamer, self._streaming.slot_bytes(self._streaming.placement)
        if streamer is not None:
            missing -= streamer.slot_bytes
        short = self._is_loaded and extra_memory < missing
        return extra_memory - missing if short else extra_memory

    def _ensure_engine(self, device: Any) -> None:
        """Build the engine, or take over the one a clone with the same weights has built."""
        self._layerwise_token = self._layerwise_token or object()
        self._streaming.stop_watching()
        if self._streaming.is_built_for(self.patches_uuid):
            self._streaming.hand_over(self._layerwise_token)
        else:
            self._build_engine(device)

    def _build_engine(self, device: Any) -> None:
        streaming = self._streaming
        streaming.release()
        engine = build_engine(self, device)
        streaming.claim(self._layerwise_token, self.patches_uuid, engine)
        log.info("%s: %s.", type(self.model).__name__, streaming.placement.reason)
        for note in engine.notes:
            log.info("%s", note)


@functools.cache
def _derived(patcher_class: type) -> type:
    mixins: tuple[type, ...] = (ScheduledLoras, LayerwiseOffloadMixin)
    if hasattr(patcher_class, "model_state_dict_for_saving"):
        mixins += (PatchedStateDict,)
    return type(f"LayerwiseOffload{patcher_class.__name__}", (*mixins, patcher_class), {})


def layerwise_patcher(patcher: Any, settings: OffloadSettings) -> Any:
    """Give ``patcher``, a fresh clone, the mixin and its settings; a patcher that has them gets new settings."""
    if not isinstance(patcher, LayerwiseOffloadMixin):
        patcher.__class__ = _derived(type(patcher))
    patcher.layerwise_settings = settings
    return patcher


def with_new_identity(patcher: Any) -> Any:
    """Mark ``patcher``'s weights as different, so that ComfyUI loads it even where the plain model is loaded."""
    patcher.patches_uuid = uuid.uuid4()
    return patcher
