"""How much memory a cache takes."""

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
        holder = waiting.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if isinstance(holder, torch.Tensor):
            storage = holder.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(holder, dict):
            waiting += holder.values()
        elif isinstance(holder, list | tuple):
            waiting += holder
        elif hasattr(holder, "__dict__") and not callable(holder):
            waiting += vars(holder).values()
    return sum(storages.values())
