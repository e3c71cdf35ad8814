"""Other nodes on the same model that do not go together with DBCache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole_step_cache(model_options: Mapping[str, Any]) -> str:
    """Return the name of a cache that skips whole steps (EasyCache, LazyCache), or an empty string."""
    holder = model_options.get("transformer_options", {}).get("easycache")
    return getattr(holder, "name", "EasyCache") if holder is not None else ""
