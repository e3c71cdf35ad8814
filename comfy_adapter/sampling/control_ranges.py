"""Which of a run's ControlNets act at a noise level.

Where one takes over from another, the tensors that reach the model have the same names and shapes as before. Only the
ControlNets themselves know that they are another's: each acts in its own range of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


def levels_at(fractions: Iterable[float], to_sigma: Callable[[float], Any]) -> list[float]:
    """Return the noise levels at fractions of the run, 0 to 1, rounded to float32 as those of the calls are."""
    return torch.tensor([to_sigma(fraction) for fraction in fractions], dtype=torch.float32).tolist()


class ControlRanges:
    """The ranges of all ControlNets in a guider's conditions.

    Args:
        conds: lists of conditions by name, as ComfyUI's guiders keep them; anything else has no ControlNets.
        to_sigma: turns a fraction of the run, 0 to 1, into a noise level.
    """

    def __init__(self, conds: Any = None, to_sigma: Callable[[float], Any] = float) -> None:
        fractions = [one.timestep_percent_range for one in _controls(conds) if hasattr(one, "timestep_percent_range")]
        self._ranges = [levels_at(pair, to_sigma) for pair in fractions]

    def acting(self, sigma: float) -> tuple[bool, ...]:
        """Return for each ControlNet of the run whether it acts at ``sigma``."""
        return tuple(end <= sigma <= start for start, end in self._ranges)


def patches_acting(options: Mapping[str, Any], sigma: float) -> tuple[bool, ...]:
    """Return for each patch in ``transformer_options`` that has a range of noise levels, as model-patch ControlNets
    do, whether it acts at ``sigma``: patches between blocks and those that replace one."""
    groups = (options.get("patches", {}), options.get("patches_replace", {}))
    patches = [patch for kinds in groups for group in kinds.values() for patch in _members(group)]
    return tuple(bool(end <= sigma <= start) for patch in patches for start, end in _ranges(patch))


def _members(group: Any) -> Iterable[Any]:
    return group.values() if isinstance(group, Mapping) else group


def _ranges(patch: Any) -> Iterator[tuple[Any, Any]]:
    """Every range of a patch: its own, those of the objects it holds, and those of the patch it replaced."""
    while patch is not None:
        held = getattr(patch, "__dict__", {})
        for one in (patch, *held.values()):
            found = getattr(one, "sigma_start", None), getattr(one, "sigma_end", None)
            if all(isinstance(level, int | float | torch.Tensor) for level in found):
                yield found
        patch = held.get("previous")


def _controls(conds: Any) -> Iterator[Any]:
    """Every ControlNet, also those behind another in a chain."""
    for group in conds.values() if isinstance(conds, Mapping) else ():
        for cond in group or ():
            control = cond.get("control") if isinstance(cond, Mapping) else None
            while control is not None:
                yield control
                control = getattr(control, "previous_controlnet", None)
