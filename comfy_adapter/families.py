"""Where each model family keeps its blocks and how hidden states travel through them: data, not branches.

The facts were measured on ComfyUI 0.3.75 and 0.33 with tiny models of every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..dbcache.layout import PackedStreams, PlacedSegment, Segment, StackLayout, Stream


@dataclass(frozen=True)
class BlockList:
    """One module list of blocks: its attribute path under the diffusion model, and its calling convention."""

    path: str
    streams: tuple[Stream, ...]
    packed: PackedStreams | None = None


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: what users call it.
        classes: names of ComfyUI's diffusion model classes.
        lists: its block lists in execution order.
        wrapper: which of ComfyUI's wrappers surrounds its forward, ``diffusion_model`` or ``apply_model``.
    """

    name: str
    classes: tuple[str, ...]
    lists: tuple[BlockList, ...]
    wrapper: str = "diffusion_model"


_IMAGE_AND_TEXT = (
    Stream("image", "img", output=0),
    Stream("text", "txt", output=1),
)

# MiniMax-H3 packs [text | conditions | audio | video]; ``mod_segments`` has a span for each, the targets last.
_AUDIO_AND_VIDEO_LAST = PackedStreams("mod_segments", 2, ("audio", "video"), "context")

FAMILIES = (
    Family(
        "Flux",
        ("Flux",),
        (
            BlockList("double_blocks", _IMAGE_AND_TEXT),
            BlockList("single_blocks", (Stream("joint", "x", position=0),)),
        ),
    ),
    Family("Wan", ("WanModel",), (BlockList("blocks", (Stream("video", "x", position=0),)),)),
    Family(
        "MiniMax-H3",
        ("MiniMaxH3Model",),
        (BlockList("blocks", (Stream("packed", "x", position=0),), _AUDIO_AND_VIDEO_LAST),),
    ),
    Family(
        "LTX-2",
        ("LTXAVModel",),
        (
            BlockList(
                "transformer_blocks",
                (
                    Stream("video", "x", position=0, item=0, output=0),
                    Stream("audio", "x", position=0, item=1, output=1),
                ),
            ),
        ),
    ),
)


@dataclass(frozen=True)
class BlockStack:
    """The blocks of one model in execution order, with the layout the cache needs."""

    family: Family
    blocks: tuple[torch.nn.Module, ...]
    layout: StackLayout


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside a torch.compile wrapper, or the module itself."""
    return getattr(module, "_orig_mod", module)


def family_of(diffusion_model: torch.nn.Module, families: Sequence[Family] = FAMILIES) -> Family | None:
    """Return the family of a diffusion model, ``None`` when it is not in the table."""
    name = type(unwrapped(diffusion_model)).__name__
    return next((family for family in families if name in family.classes), None)


def find_stack(diffusion_model: torch.nn.Module) -> BlockStack:
    """Return the block stack of a diffusion model as its lists are at this moment.

    Raises:
        ValueError: the model is of no family in the table.
    """
    root = unwrapped(diffusion_model)
    family = family_of(root)
    if family is None:
        known = ", ".join(sorted(one.name for one in FAMILIES))
        raise ValueError(
            f"model is a {type(root).__name__}, in which no stack of transformer blocks is known. This version supports"
            f" {known}. Connect such a model, or remove this node for this one."
        )
    blocks: list[torch.nn.Module] = []
    segments = []
    for block_list in family.lists:
        members = list(root.get_submodule(block_list.path))
        segments.append(
            PlacedSegment(Segment(block_list.streams, block_list.packed), len(blocks), len(blocks) + len(members))
        )
        blocks.extend(members)
    return BlockStack(family, tuple(blocks), StackLayout(tuple(segments)))
