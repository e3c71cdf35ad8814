"""Finds a model's block stack: by the family table, or by its looks, which then has to be proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ...stack.layout import PlacedSegment, StackLayout
from .entry import BlockList, Family
from .table import FAMILIES
from .unsupported import UNSUPPORTED

FEWEST_BLOCKS = 4
FEWEST_OTHERS = 2
SMALLEST_SHARE = 0.5
GUESSED_WRAPPER = "apply_model"


@dataclass(frozen=True)
class BlockStack:
    """The blocks of one model in execution order, with the layout that the cache needs: ``None`` for models that are
    not in the table, as long as it is not proven how hidden states travel."""

    family: Family
    blocks: tuple[torch.nn.Module, ...]
    layout: StackLayout | None


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside a torch.compile wrapper, or the module itself."""
    return getattr(module, "_orig_mod", module)


def family_of(diffusion_model: torch.nn.Module, families: Sequence[Family] = FAMILIES) -> Family | None:
    """Return the family of a diffusion model, ``None`` when it is not in the table."""
    name = type(unwrapped(diffusion_model)).__name__
    return next((family for family in families if name in family.classes), None)


def find_stack(diffusion_model: torch.nn.Module, families: Sequence[Family] = FAMILIES) -> BlockStack:
    """Return the block stack of a diffusion model as its lists are at this moment.

    Raises:
        ValueError: the model is of no family in the table, and has no list of blocks that makes up most of it; or its
            blocks have no forward to put anything around.
    """
    root = unwrapped(diffusion_model)
    family = family_of(root, families) or _guessed_family(root)
    blocks: list[torch.nn.Module] = []
    segments = []
    for block_list in family.lists:
        members = _members(root.get_submodule(block_list.path))
        _check_forwards(root, members)
        if block_list.segment is not None:
            segments.append(PlacedSegment(block_list.segment, len(blocks), len(blocks) + len(members)))
        blocks.extend(members)
    described = len(segments) == len(family.lists)
    return BlockStack(family, tuple(blocks), StackLayout(tuple(segments)) if described else None)


def lists_left_alone(diffusion_model: torch.nn.Module, family: Family) -> tuple[str, ...]:
    """Return the paths of a model's other lists of blocks: those that hold none of the family's and lie in none."""
    root = unwrapped(diffusion_model)
    listed = [block_list.path for block_list in family.lists]
    found: list[str] = []
    for path, members in _lists_of_one_class(root):
        inside = any(path == other or path.startswith(f"{other}.") for other in (*listed, *found))
        around = any(known.startswith(f"{path}.") for known in listed)
        # a list of bare layers, such as embeddings, is no list of blocks
        if not inside and not around and len(members) >= FEWEST_OTHERS and any(members[0].children()):
            found.append(path)
    return tuple(found)


def wrapper_of(diffusion_model: torch.nn.Module) -> str:
    """Return which of ComfyUI's wrappers the hooks go on in: every model passes APPLY_MODEL, most also the other."""
    family = family_of(diffusion_model)
    return family.wrapper if family is not None else GUESSED_WRAPPER


def _members(container: torch.nn.Module) -> list[torch.nn.Module]:
    # not children(): those leave out a block that a list holds twice
    return list(container._modules.values())


def _guessed_family(root: torch.nn.Module) -> Family:
    """Return the family of a model that is not in the table: the list of equal blocks that holds most of its weights,
    without a word on how hidden states travel."""
    name = type(root).__name__
    if name in UNSUPPORTED:
        raise ValueError(
            f"model is a {name}, which has no stack of transformer blocks to work on: {UNSUPPORTED[name]}. Remove this"
            " node for this model."
        )
    lists = [
        (_bytes(root.get_submodule(path)), path)
        for path, members in _lists_of_one_class(root)
        if len(members) >= FEWEST_BLOCKS
    ]
    size, path = max(lists, key=lambda one: one[0], default=(0, ""))
    if not path or size < SMALLEST_SHARE * _bytes(root):
        known = ", ".join(sorted(one.name for one in FAMILIES))
        raise ValueError(
            f"model is a {name}, in which no stack of transformer blocks is known or found. This version supports"
            f" {known}, and models whose blocks follow each other in one list. Connect such a model, or remove this"
            " node for this one."
        )
    return Family(name, (name,), (BlockList(path, None),), wrapper=GUESSED_WRAPPER)


def _check_forwards(root: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> None:
    for block in map(unwrapped, blocks):
        if type(block).forward is torch.nn.Module.forward and "forward" not in vars(block):
            raise ValueError(
                f"model is a {type(root).__name__} with blocks of the class {type(block).__name__}, which has no"
                " forward of its own: its blocks are driven by other methods, and hooks would never fire. Remove this"
                " node for this model."
            )


def _lists_of_one_class(root: torch.nn.Module) -> Iterator[tuple[str, list[torch.nn.Module]]]:
    """Yield path and members of every module list whose members are of one class, outer lists before inner ones."""
    for path, module in root.named_modules():
        if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict):
            members = _members(module)
            if len({type(member) for member in members}) == 1:
                yield path, members


def _bytes(module: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
