"""How far residuals have moved since they were kept: cache-dit's measure, in pieces and with one read-back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce

import torch

ELEMENTS_AT_ONCE = 2**22


def differences(residuals: Mapping[str, torch.Tensor], kept: Callable[[str], torch.Tensor | None]) -> dict[str, float]:
    """Return the relative difference of each state's residual from the one that was kept.

    The host waits for the device once, however many states there are; where they lie on several devices, once for
    each.

    Args:
        residuals: fresh ones by state, of any shapes and types.
        kept: returns a state's kept residual on the device of the fresh one, ``None`` where there is none: that state
            is left out. Asked for one state after the other, and nothing of it is held on to.

    Returns:
        mean(|kept - fresh|) / mean(|kept|) by state, NaN where the shapes differ.
    """
    measured: dict[str, float] = {}
    by_device: dict[torch.device, dict[str, torch.Tensor]] = {}
    for state, fresh in residuals.items():
        before = kept(state)
        if before is None:
            continue
        measured[state] = float("nan")
        if before.shape == fresh.shape:
            by_device.setdefault(fresh.device, {})[state] = relative_difference(before, fresh)
        del before
    for ratios in by_device.values():
        measured.update(zip(ratios, torch.stack(list(ratios.values())).tolist(), strict=True))
    return measured


def relative_difference(kept: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """Return mean(|kept - fresh|) / mean(|kept|) of two tensors of one shape, of shape () on their device.

    Sums are taken in float32 at least. Differences, means and their ratio have the tensors' own type, as cache-dit's
    do: in half precision a verdict near the threshold depends on it. No temporary has more than ``ELEMENTS_AT_ONCE``
    elements.
    """
    precision = torch.promote_types(kept.dtype, torch.float32)
    moved, size = [], []
    for before, after in _pieces(kept, fresh):
        moved.append(torch.sub(before, after).abs_().sum(dtype=precision))
        size.append(before.abs().sum(dtype=precision))
    means = (reduce(torch.add, total) / kept.numel() for total in (moved, size))
    return torch.div(*(mean.to(kept.dtype) for mean in means))


def _pieces(kept: torch.Tensor, fresh: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield views of both, piece by piece, whatever their strides."""
    if kept.numel() <= ELEMENTS_AT_ONCE:
        yield kept, fresh
        return
    rows = ELEMENTS_AT_ONCE * len(kept) // kept.numel()
    if rows:
        yield from zip(kept.split(rows), fresh.split(rows), strict=True)
        return
    for before, after in zip(kept, fresh, strict=True):
        yield from _pieces(before, after)
