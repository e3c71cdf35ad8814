"""Branches: the conditions of a run whose caches must never mix.

A branch is known by everything that tells its calls apart. Cond and uncond may come joined in one call or split into
two, in any order, with other conditions between: each combination is a branch of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from ..stack.layout import Hidden
from .cache_dit import BranchContext
from .calls import base_name
from .decision import History


@dataclass
class Branch:
    """One branch's state in a run: cache-dit's context, and the pack's own facts beside it.

    Attributes:
        name: how the report calls it.
        context: cache-dit's.
        recorded: whether the last computed call was kept whole, so that a call may hit.
        control: describes the control input of that call.
        shapes: those of the kept middle residuals, by name. Shapes of segments after the first are not part of the
            branch's key, so a call is checked against these.
        in_place: whether the blocks write into the tensor they are given, by the residual's name.
        unsupported: why the branch is not cached, or an empty string.
    """

    name: str
    context: BranchContext
    recorded: bool = False
    control: Hashable = ()
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    in_place: dict[str, bool] = field(default_factory=dict)
    unsupported: str = ""

    def history(self, control: Hashable) -> History:
        """Return how the branch came to the call in progress, whose control input is ``control``."""
        return self.context.history(self.recorded, self.control != control)


def shape_key(hidden: Hidden) -> Hashable:
    """Return the part of a branch's key that comes from its first hidden states: names, shapes, types, devices."""
    return tuple((name, tuple(value.shape), value.dtype, value.device) for name, value in hidden.items())


def branch_name(kinds: Sequence[int], taken: Sequence[str]) -> str:
    """Return a unique name: the base name, and ``cond #2`` for the second branch of that name."""
    base = base_name(kinds)
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base} #{count}"
    return name
