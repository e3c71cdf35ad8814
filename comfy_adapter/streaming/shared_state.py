"""Streaming state shared by all patchers of one underlying model: which of its blocks are streamed, and by whom.

ComfyUI's clones share one model object, so streaming state belongs to that object. It is found through a weak
dictionary keyed by the diffusion model: it goes when the model goes, and leaves no attribute on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import comfy.model_management
import torch

from ...dbcache.rules import CacheRules
from ...offload.block_weights import BlockWeights
from ...offload.placement import Placement, choose_placement, explain
from ...offload.residency import slot_bytes
from ...offload.streamer import BlockStreamer
from ...offload.timing import BlockTiming
from ...stack.copies import CopyCounts
from ..families.find import BlockStack, find_stack, unwrapped
from .pinning import PinnedHostMemory
from .settings import OffloadSettings

_streaming_of: weakref.WeakKeyDictionary[torch.nn.Module, ModelStreaming] = weakref.WeakKeyDictionary()


def _is_limit(number: int | None) -> bool:
    return number is not None and number >= 0


@dataclass(frozen=True)
class BuiltEngine:
    """A streamer and the choices it was built with.

    Attributes:
        streamer: copies the blocks.
        pins: its pinned host memory, ``None`` where nothing is to be pinned.
        on_the_fly: whether LoRAs are applied at each use instead of baked.
        notes: its limits in words, for the log and the run report.
    """

    streamer: BlockStreamer
    pins: PinnedHostMemory | None = None
    on_the_fly: bool = False
    notes: Sequence[str] = ()


class ModelStreaming:
    """Streaming state of one underlying model.

    Attributes:
        placement: the blocks that are streamed now, and that ComfyUI's loader must leave alone.
        placed_for: the settings that the placement was chosen for.
        engine: the engine while a layerwise patcher is loaded, else ``None``.
        copies: the bytes that all engines of the model copied so far.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.take_sizes(model)
        self._model = weakref.ref(model)
        self.placement = Placement()
        self.placed_for: tuple = ()
        self.engine: BuiltEngine | None = None
        self.copies = CopyCounts()
        self._timing: BlockTiming | None = None
        self._weights_id: object | None = None
        self._owner: object | None = None
        self._watch: torch.utils.hooks.RemovableHandle | None = None

    def take_sizes(self, model: torch.nn.Module) -> None:
        """Take the sizes of the model as it is now. ComfyUI asks for them often, so they are kept."""
        blocks = find_stack(model.diffusion_model).blocks
        size = comfy.model_management.module_size
        self.full_bytes: int = size(model)
        self._module_bytes = [size(block) for block in blocks]
        weights = [BlockWeights(block) for block in blocks]
        self._unpacked = [one.unpacked_bytes for one in weights]
        self._block_bytes = [one.size + one.unpacked_bytes for one in weights]

    @property
    def total_blocks(self) -> int:
        return len(self._module_bytes)

    def choose(
        self, settings: OffloadSettings, cache: CacheRules | None, budget: float, most: int | None = None
    ) -> Placement:
        """Return the blocks to stream, and how far ahead, within ``budget`` device bytes for weights.

        ``cache`` are DBCache's rules, ``None`` where it is not on the model; ``most`` limits the number of
        residents further than the settings.
        """
        budget = min(budget, settings.budget_bytes)
        return choose_placement(
            self._block_bytes,
            max(0, self.full_bytes - sum(self._module_bytes)),
            budget,
            cached=cache is not None,
            front=cache.fn if cache is not None else 0,
            back=cache.bn if cache is not None else 0,
            policy=settings.policy,
            prefetch=settings.prefetch,
            max_resident=min(
                limit for limit in (settings.resident_blocks, most, self.total_blocks) if _is_limit(limit)
            ),
            timing=self.timing,
            unpacked=self._unpacked,
        )

    def explained(self) -> str:
        """Return the placement and the reason for it in one line: with the measured figures once there are some."""
        if self.timing is None or not self.placement.streamed:
            return self.placement.reason
        return explain(self._block_bytes, self.placement, self.timing)

    def slot_bytes(self, placement: Placement) -> int:
        """Return the device bytes that streaming takes in a placement: its slots, and the tensors no slot can hold."""
        return slot_bytes(self._block_bytes, placement.streamed, placement.prefetch, self._unpacked)

    def device_bytes(self, placement: Placement) -> int:
        """Return the device bytes the model takes for weights when fully placed: residents and slots."""
        resident = self.full_bytes - sum(self._module_bytes[index] for index in placement.streamed)
        return resident + self.slot_bytes(placement)

    @property
    def timing(self) -> BlockTiming | None:
        """The times measured in a streamed call, ``None`` before the first one; later placements go by them."""
        measured = self.streamer.timing if self.streamer is not None else None
        return measured or self._timing

    @property
    def streamer(self) -> BlockStreamer | None:
        return self.engine.streamer if self.engine is not None else None

    @property
    def on_the_fly(self) -> bool:
        return self.engine is not None and self.engine.on_the_fly

    def owned_by(self, token: object) -> bool:
        """Whether the engine belongs to the patcher with this token."""
        return self.engine is not None and self._owner is token

    def is_built_for(self, weights_id: object) -> bool:
        """Whether the engine holds the weights that ComfyUI knows by this ``patches_uuid``."""
        return self.engine is not None and self._weights_id == weights_id

    def claim(self, token: object, weights_id: object, engine: BuiltEngine) -> None:
        """Put a newly built engine in charge; the one before it must have been released."""
        self.engine, self._weights_id, self._owner = engine, weights_id, token

    def hand_over(self, token: object) -> None:
        """Make the patcher with this token the owner of the engine as it is."""
        self._owner = token

    @property
    def current_engine(self) -> BuiltEngine | None:
        """The engine, as long as the weights ComfyUI has loaded into the model are those it was built for."""
        model = self._model()
        loaded = None if model is None else model.current_weight_patches_uuid
        return self.engine if loaded is not None and self.is_built_for(loaded) else None

    def release_when_another_runs(self) -> None:
        """Drop the engine at the next call of the model if that is made with other weights than the engine's.

        ComfyUI does not tell a patcher that another of the same model takes its place: it detaches both that one
        and the very same when it is asked for again.
        """
        self.stop_watching()
        model = self._model()
        if model is None or self.engine is None:
            return
        streaming = weakref.ref(self)

        @torch.compiler.disable
        def check(*_: Any) -> None:
            found = streaming()
            if found is not None:
                found.stop_watching()
                if found.current_engine is None:
                    found.release()

        self._watch = unwrapped(model.diffusion_model).register_forward_pre_hook(check)

    def stop_watching(self) -> None:
        """Remove the hook of :meth:`release_when_another_runs` from the model."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def release(self) -> None:
        """Drop the engine with its slots, pins and baked weights; during a model call, when that call ends."""
        self.stop_watching()
        self._timing = self.timing
        if self.engine is not None:
            pins = self.engine.pins
            self.engine.streamer.retire(pins.release if pins is not None else None)
        self.engine = self._weights_id = self._owner = None


def streaming_of(model: torch.nn.Module) -> ModelStreaming:
    """Return the streaming state of an underlying model (ComfyUI's BaseModel), made on first use.

    Raises:
        ValueError: no block stack is known for the model.
    """
    root = unwrapped(model.diffusion_model)
    if root not in _streaming_of:
        _streaming_of[root] = ModelStreaming(model)
    return _streaming_of[root]


def current_engine(diffusion_model: torch.nn.Module) -> BuiltEngine | None:
    """Return the engine in charge of a diffusion model, ``None`` when no layerwise patcher is loaded."""
    streaming = _streaming_of.get(unwrapped(diffusion_model))
    return streaming.current_engine if streaming is not None else None


def copies_of(diffusion_model: torch.nn.Module) -> CopyCounts:
    """Return the bytes that all engines of a diffusion model copied so far, as counts of one's own."""
    streaming = _streaming_of.get(unwrapped(diffusion_model))
    return streaming.copies.copy() if streaming is not None else CopyCounts()


def timing_of(diffusion_model: torch.nn.Module) -> BlockTiming | None:
    """Return the times measured in streamed calls of a diffusion model, ``None`` where there was none."""
    streaming = _streaming_of.get(unwrapped(diffusion_model))
    return streaming.timing if streaming is not None else None


def stack_of(model: torch.nn.Module) -> BlockStack:
    """Return the block stack of an underlying model as it is now."""
    return find_stack(model.diffusion_model)
