"""A mixin over ComfyUI's model patcher that leaves the streamed blocks to the layerwise engine.

ComfyUI keeps everything else: it places, counts, patches, evicts and saves the resident blocks and the weights
outside the stack, as for any model. Streamed blocks keep their original weights on the offload device and are
left out of the loader's list; what they cost on the device are the engine's slots, counted in the sizes told.
"""

from __future__ import annotations

import functools
import logging
import uuid
from typing import Any

import comfy.model_management

from ...offload.block_weights import BlockWeights
from ...offload.devices import offload_device
from ...offload.placement import Placement
from ...offload.streamer import BlockStreamer
from ..attachments import attached
from .effective_weights import build_block_weights, loras_on_the_fly, patched_bytes
from .notes import engine_notes
from .pinning import PinnedHostMemory, wants_pinning
from .saving import PatchedStateDict
from .scheduled_loras import HookFollowing
from .settings import OffloadSettings
from .shared_state import Engine, ModelStreaming, stack_of, streaming_of

log = logging.getLogger("dit_layerwise_offload.patcher")

UNLIMITED = 1e32
SMALLEST_BUDGET = 0.1


class LayerwiseOffloadMixin:
    """Overrides as little of the patcher as it can; see the module docstring for the division of labour."""

    layerwise_settings: OffloadSettings | None = None
    _layerwise_token: object | None = None

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        copy = super().clone(*args, **kwargs)
        return layerwise_patcher(copy, self.layerwise_settings) if self.layerwise_settings is not None else copy

    def model_size(self) -> int:
        if self.layerwise_settings is None:
            return super().model_size()
        streaming = self._streaming
        return streaming.device_bytes(streaming.placement if self._is_loaded else self._choose(float("inf")))

    def loaded_size(self) -> int:
        loaded = super().loaded_size()
        if self.layerwise_settings is not None and self._owns_engine:
            loaded += self._streaming.streamer.slot_bytes
        return loaded

    def partially_load(self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False, **kwargs: Any):
        """Load as much as ``extra_memory`` bytes more than now allow; a negative number is what has to be freed."""
        if self.layerwise_settings is None:
            return super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights, **kwargs)
        streaming = self._streaming
        if not self._is_loaded:
            streaming.take_sizes(self.model)
        # Older versions save by force-patching everything and reading the state dict: then nothing is streamed.
        wanted = Placement() if force_patch_weights else self._choose_for(extra_memory)
        if wanted != streaming.placement:
            # What this frees is there for the new placement: ComfyUI adds it only when it unpatches by itself.
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
        if self.layerwise_settings is None or not self._streaming.placement.streamed:
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
        """Free at least ``memory_to_free`` bytes if that much is loaded; return what was freed."""
        freed = 0
        if self.layerwise_settings is not None and self._owns_engine:
            # Idle slots first: they cost nothing to make again.
            freed = self._streaming.streamer.release_slots()
            if freed >= memory_to_free > 0:
                return freed
        return freed + super().partially_unload(device_to, memory_to_free - freed, *args, **kwargs)

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> Any:
        if unpatch_weights and self.layerwise_settings is not None and self._owns_engine:
            self._streaming.release()
        return super().unpatch_model(device_to, unpatch_weights)

    def detach(self, unpatch_all: bool = True) -> Any:
        # Called on every transient clone that dies, too: only the engine's owner may give the slots back.
        if self.layerwise_settings is not None and self._owns_engine:
            self._streaming.streamer.release_slots()
            self._streaming.release_when_another_runs()
        return super().detach(unpatch_all)

    def deepclone_multigpu(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "DiT Layerwise Offload streams through one GPU and cannot be combined with several. Remove it, or the node"
            " that splits the model over GPUs."
        )

    def __del__(self) -> None:
        if self.layerwise_settings is not None and self._owns_engine:
            self._streaming.release()
        if hasattr(super(), "__del__"):
            super().__del__()

    def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple]:
        entries = super()._load_list(*args, **kwargs)
        if self.layerwise_settings is None or not self._streaming.placement.streamed:
            return entries
        left_out = self._streamed_modules()
        return [entry for entry in entries if id(entry[-2]) not in left_out]

    def explained_placement(self) -> str:
        """Return what was placed and why, in one line; empty while the model is not loaded with these weights."""
        return self._streaming.explained() if self.layerwise_settings is not None and self._is_loaded else ""

    @property
    def _streaming(self) -> ModelStreaming:
        return streaming_of(self.model)

    @property
    def _owns_engine(self) -> bool:
        return self._layerwise_token is not None and self._streaming.owned_by(self._layerwise_token)

    @property
    def _is_loaded(self) -> bool:
        """Whether the model is on the device now with this patcher's weights."""
        return self.model.current_weight_patches_uuid == self.patches_uuid

    @property
    def _placement_key(self) -> tuple:
        """What a placement depends on, beside memory."""
        return self.layerwise_settings, attached(self).cache

    def _choose(self, budget: float, most: int | None = None) -> Placement:
        return self._streaming.choose(self.layerwise_settings, attached(self).cache, budget, most)

    def _choose_for(self, extra_memory: float) -> Placement:
        """Return what to stream in a load that may take ``extra_memory`` more bytes.

        A model that is loaded already keeps its placement: another one costs a full reload, and where memory got
        short ComfyUI itself takes residents out.
        """
        streaming = self._streaming
        kept = streaming.placement.streamed and streaming.placed_for == self._placement_key
        if self._is_loaded and kept:
            return streaming.placement
        budget = self.loaded_size() + extra_memory
        placement = self._choose(budget)
        if budget < UNLIMITED:
            entries = super()._load_list()
            while not self._loads_whole(placement, entries, budget) and placement.streamed:
                resident = streaming.total_blocks - len(placement.streamed)
                if resident == 0:
                    break
                placement = self._choose(budget, resident - 1)
        return placement

    def _loads_whole(self, placement: Placement, entries: list[tuple], budget: float) -> bool:
        """Whether ComfyUI's loader would place every module that is not streamed whole: it goes from the largest
        down and wants room for a few casts of the next one besides."""
        blocks = stack_of(self.model).blocks
        streamed = {id(module) for index in placement.streamed for module in blocks[index].modules()}
        room = budget - self._streaming.slot_bytes(placement)
        casts = comfy.model_management.NUM_STREAMS + 1
        loaded = 0
        for cast_bytes, size in sorted(
            ((entry[0], entry[-4]) for entry in entries if id(entry[-2]) not in streamed), reverse=True
        ):
            if loaded + size + casts * cast_bytes >= room:
                return False
            loaded += size
        return True

    def _extra_beside_slots(self, extra_memory: float) -> float:
        """Return what a loaded model may take more, once its slots are back: residents make room where it is short."""
        missing = self._streaming.slot_bytes(self._streaming.placement)
        if self._owns_engine:
            missing -= self._streaming.streamer.slot_bytes
        short = self._is_loaded and extra_memory < missing
        return extra_memory - missing if short else extra_memory

    def _streamed_modules(self) -> set[int]:
        blocks = stack_of(self.model).blocks
        return {id(module) for index in self._streaming.placement.streamed for module in blocks[index].modules()}

    def _ensure_engine(self, device: Any) -> None:
        """Build the engine, or take over the one a clone with the same weights has built."""
        self._layerwise_token = self._layerwise_token or object()
        self._streaming.stop_watching()
        if self._streaming.is_built_for(self.patches_uuid):
            self._streaming.hand_over(self._layerwise_token)
        else:
            self._build_engine(device)

    def follow_edited_weights(self) -> None:
        """Weights at rest were edited: what is baked from them, or lies in a slot, is out of date."""
        if self.layerwise_settings is None or not self._owns_engine:
            return
        streamer = self._streaming.streamer
        if not self._streaming.on_the_fly and patched_bytes(self, self._load_entries()) == 0:
            now = self._build_weights(self.load_device, on_the_fly=False)
            if all(now[index].is_same_memory(weights) for index, weights in streamer.weights.items()):
                streamer.forget()
                return
        streamer.forget()
        self._build_engine(self.load_device)

    def patched_streamed_blocks(self) -> list[tuple[Any, BlockWeights]]:
        """Return (block, weights with LoRA baked in) of the streamed blocks, empty when nothing is streamed now."""
        if not self._owns_engine:
            return []
        weights = self._streaming.streamer.weights
        if self._streaming.on_the_fly:
            weights = self._build_weights(self.load_device, on_the_fly=False)
        blocks = stack_of(self.model).blocks
        return [(blocks[index], weights[index]) for index in weights]

    def _load_entries(self) -> list[tuple[str, Any]]:
        """Return (name, module) of what the loader would load of the streamed blocks."""
        streamed = self._streamed_modules()
        return [(entry[-3], entry[-2]) for entry in super()._load_list() if id(entry[-2]) in streamed]

    def _build_weights(self, device: Any, on_the_fly: bool) -> dict[int, BlockWeights]:
        blocks = stack_of(self.model).blocks
        weights = {}
        with self.use_ejected():
            entries = self._load_entries()
            for index in self._streaming.placement.streamed:
                members = {id(module) for module in blocks[index].modules()}
                own = [(name, module) for name, module in entries if id(module) in members]
                weights[index] = build_block_weights(self, blocks[index], own, device, on_the_fly)
        return weights

    def _build_engine(self, device: Any) -> None:
        # The engine before it gives its memory back first, or both would be there at once.
        self._streaming.release()
        patched = patched_bytes(self, self._load_entries())
        free = comfy.model_management.get_free_memory(self.offload_device)
        on_the_fly = patched > 0 and loras_on_the_fly(self.layerwise_settings.lora, patched, free)
        weights = self._build_weights(device, on_the_fly)
        pins = None
        if wants_pinning(self.layerwise_settings.pin_memory, device):
            pins = PinnedHostMemory(tensor for one in weights.values() for tensor in one.host_tensors())
        total = len(stack_of(self.model).blocks)
        prefetch = self._streaming.placement.prefetch
        streamer = BlockStreamer(weights, total, offload_device(device), prefetch, self._streaming.copies)
        unpacked = sum(one.unpacked_bytes for one in weights.values())
        notes = engine_notes(self.layerwise_settings.lora, on_the_fly, pins, unpacked)
        self._streaming.claim(self._layerwise_token, self.patches_uuid, Engine(streamer, pins, on_the_fly, notes))
        log.info("%s: %s.", type(self.model).__name__, self._streaming.placement.reason)
        for note in notes:
            log.info("%s", note)


@functools.cache
def _derived(patcher_class: type) -> type:
    mixins: tuple[type, ...] = (HookFollowing, LayerwiseOffloadMixin)
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
