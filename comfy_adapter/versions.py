"""Differences between ComfyUI versions, found by looking for the feature, never by comparing numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import comfy.model_management

try:
    import comfy.model_prefetch as model_prefetch
except ImportError:
    model_prefetch = None
try:
    from comfyui_version import __version__ as comfyui_version
except ImportError:
    comfyui_version = "unknown"


def is_dynamic(patcher: Any) -> bool:
    """Whether ComfyUI's dynamic VRAM streams this model's weights itself."""
    return bool(patcher.is_dynamic()) if hasattr(patcher, "is_dynamic") else False


def keeps_everything_on_device(patcher: Any) -> bool:
    """Whether the user told ComfyUI to keep models on the GPU (``--highvram``, ``--gpu-only``)."""
    management = comfy.model_management
    if management.is_device_cpu(patcher.load_device):
        return False
    return patcher.load_device == patcher.offload_device or management.vram_state == management.VRAMState.HIGH_VRAM


def keeping_context() -> Callable[[], AbstractContextManager]:
    """Return the context in which tensors that outlive a block must be allocated.

    ComfyUI's allocation-recording compiler aborts the process when a tensor made inside a block's scope is kept
    beyond it; ``comfy.model_prefetch.pause_malloc_graph`` steps out of the scope. Older versions need nothing.
    """
    return getattr(model_prefetch, "pause_malloc_graph", nullcontext)
