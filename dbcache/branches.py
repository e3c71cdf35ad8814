"""Branches: the conditions of a run whose caches must never mix.

A branch is known by everything that tells its calls apart. Whether cond and uncond come joined in one call or
split into two, in whatever order, with other conditions between: each combination is just a branch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..stack.layout import Hidden
from .cache_dit import BranchContext
from .calls import base_name


@dataclass
class Branch:
    """One branch's state in a run: cache-dit's context and what the pack keeps beside it.

    ``shapes`` are those of the residuals over the middle blocks, by name: only the first segment's are in the key.
    ``in_place`` says of each whether the blocks write into the tensor they are given.
    """

    name: str
    context: BranchContext
    recorded: bool = False
    control: Hashable = ()
    shapes: dict[str, Hashable] = field(default_factory=dict)
    in_place: dict[str, bool] = field(default_factory=dict)
    unsupported: str = ""


def shape_key(hidden: Hidden) -> Hashable:
    """Return the part of a branch's key that the hidden states themselves carry."""
    return tuple((name, tuple(value.shape), value.dtype, value.device) for name, value in hidden.items())


def branch_name(kinds: Sequence[int], taken: Sequence[str]) -> str:
    """Return a unique name: the base name, and ``cond #2`` for the second branch of that name."""
    base = base_name(kinds)
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base} #{count}"
    return name
