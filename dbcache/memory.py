"""How much memory a cache takes: what it keeps between calls, and one tensor less while it compares."""

from __future__ import annotations

from typing import Any

import torch


def tensor_bytes(*holders: Any) -> int:
    """Return the bytes of all tensors that ``holders`` lead to: through containers, and through the attributes of
    plain objects, as cache-dit's calibrators keep theirs. What shares its memory counts once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = list(holders)
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif hasattr(one, "__dict__") and not callable(one):
            waiting += vars(one).values()
    return sum(storages.values())


class Compared(torch.Tensor):
    """A kept residual while cache-dit compares another with it, by ``(kept - other).abs().mean()``: the absolute value
    is taken in the difference's own memory, so that one tensor of that size is made and not two. Same numbers."""

    def __sub__(self, other: torch.Tensor) -> torch.Tensor:
        return (self.as_subclass(torch.Tensor) - other).as_subclass(_Difference)


class _Difference(torch.Tensor):
    def abs(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).abs_()
