"""The form of a table entry: all that the pack has to know of a model family, and a few words for its users.

To write one, read the model's ``forward`` in ``comfy/ldm/``, or let ``nox -s describe`` watch it and print the row:

- *position* is the place of a hidden state among the positional arguments with which the model's loop calls its
  block, counted from 0 without ``self``; ``None`` where it is only ever passed by keyword. *argument* is the
  parameter's name in the block's ``forward``. *output* is the place in the tuple that the block returns, ``None``
  where it returns the one tensor bare.
- *wrapper* is ``diffusion_model`` where the class's ``forward`` hands its work to a ``WrapperExecutor`` with
  ``WrappersMP.DIFFUSION_MODEL``, and ``apply_model`` where it does not: then only ComfyUI's BaseModel around it can
  be wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...stack.layout import Segment

OLDEST, NEWER = "0.3.75", "0.33.0"  # the versions of ComfyUI that every family is tested on where it exists


@dataclass(frozen=True)
class BlockList:
    """One module list of blocks: its attribute path under the diffusion model, and its calling convention, ``None``
    as long as that is not proven."""

    path: str
    segment: Segment | None


@dataclass(frozen=True)
class About:
    """Words on a family for the documentation's page; the nodes do not read them.

    Attributes:
        between: the model's own work between two blocks, which a cache must neither repeat nor leave out.
        left_alone: other lists of blocks, which always run, and why.
        since: the oldest ComfyUI among those it was tested on.
        notes: for users.
    """

    between: str = ""
    left_alone: str = ""
    since: str = OLDEST
    notes: str = ""


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: the one users know.
        classes: names of ComfyUI's diffusion model classes, exactly: a subclass may have a loop of its own.
        lists: its block lists in execution order.
        wrapper: which of ComfyUI's wrappers surrounds its forward, ``diffusion_model`` or ``apply_model``.
        long_skips: whether late blocks take the outputs of early ones, which must then have run: Fn at least Bn.
        no_cache: why DBCache cannot be used; empty where it can.
        about: for the documentation.
    """

    name: str
    classes: tuple[str, ...]
    lists: tuple[BlockList, ...]
    wrapper: str = "diffusion_model"
    long_skips: bool = False
    no_cache: str = ""
    about: About = field(default_factory=About)

    @property
    def judged(self) -> tuple[str, ...]:
        """The names of the hidden states that DBCache judges on their own: those of the first list."""
        first = self.lists[0].segment
        if first is None:
            return ()
        if first.packed is not None:
            return (first.packed.rest, *first.packed.last)
        return tuple(state.name for state in first.states)
