"""A plain copy of a model under ComfyUI's dynamic VRAM, for those who want the layerwise engine instead.

ComfyUI makes such a copy by running the model's loader again: a second full copy in main memory and a read from
disk. So it is made once for each source model and reused for as long as anybody uses it.
"""

from __future__ import annotations

import weakref
from typing import Any

_copies: weakref.WeakKeyDictionary[Any, tuple[weakref.ref, tuple]] = weakref.WeakKeyDictionary()


def plain_copy(model: Any) -> Any:
    """Return a non-dynamic patcher with the patches of ``model``.

    Raises:
        ValueError: the loader that made the model did not tell ComfyUI how to load it again.
    """
    override = _known_copy(model)
    if override is None and getattr(model, "cached_patcher_init", None) is None:
        raise ValueError(
            "engine is 'layerwise', but this model is under ComfyUI's dynamic VRAM and its loader cannot make a plain"
            " copy of it. Load it with a core loader, set engine to 'auto', or start ComfyUI with"
            " --disable-dynamic-vram."
        )
    plain = model.clone(disable_dynamic=True, model_override=override)
    inner, shared = plain.get_clone_model_override()
    _copies[model.model] = (weakref.ref(inner), shared)
    return plain


def _known_copy(model: Any) -> tuple | None:
    """Return the copy made before, as ComfyUI's ``clone`` takes it, if it is still alive."""
    reference, shared = _copies.get(model.model, (lambda: None, ()))
    inner = reference()
    return None if inner is None else (inner, shared)
