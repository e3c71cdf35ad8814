"""The form of a table entry: what a model family says of its blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ...stack.layout import HiddenState, PackedStates

OLDEST, NEWER = "0.3.75", "0.33.0"  # the versions of ComfyUI that every family is tested on where it exists


@dataclass(frozen=True)
class BlockList:
    """One module list of blocks: its attribute path under the diffusion model, and its calling convention."""

    path: str
    states: tuple[HiddenState, ...]
    packed: PackedStates | None = None


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: what users call it.
        classes: names of ComfyUI's diffusion model classes, exactly: a subclass may have a loop of its own.
        lists: its block lists in execution order.
        wrapper: which of ComfyUI's wrappers surrounds its forward, ``diffusion_model`` or ``apply_model``.
        since: the oldest ComfyUI among those it was tested on.
        long_skips: whether late blocks take the outputs of early ones, which must then have run: Fn at least Bn.
        between: what the model itself does between two blocks that a cache must not do twice or leave out.
        left_alone: other lists of blocks, which always run, and why.
        no_cache: why DBCache cannot be used; empty where it can.
        notes: what a user should know.
    """

    name: str
    classes: tuple[str, ...]
    lists: tuple[BlockList, ...]
    wrapper: str = "diffusion_model"
    since: str = OLDEST
    long_skips: bool = False
    between: str = ""
    left_alone: str = ""
    no_cache: str = ""
    notes: str = ""

    @property
    def judged(self) -> tuple[str, ...]:
        """The names of what DBCache judges on its own: the states of the first list."""
        first = self.lists[0]
        if first.packed is not None:
            return (first.packed.rest, *first.packed.last)
        return tuple(state.name for state in first.states)
