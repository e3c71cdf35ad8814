"""The nodes' work: one function a node, from validated settings to a patched clone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ..dbcache.cache_dit import load_cache_dit
from ..dbcache.rules import DBCacheSettings
from ..offload.devices import check_torch
from ..pictures.run_chart import blank, draw_message, draw_run
from .attachments import ReportBox, attach, attached
from .families.find import find_stack
from .sampling.neighbours import whole_step_cache
from .sampling.report import NO_RUN, NOT_OURS
from .sampling.wrappers import add_wrappers
from .streaming.dynamic_vram import plain_copy
from .streaming.patcher import layerwise_patcher, with_new_identity
from .streaming.settings import OffloadSettings
from .versions import is_dynamic, keeps_everything_on_device

log = logging.getLogger("dit_layerwise_offload")


def apply_layerwise_offload(model: Any, settings: OffloadSettings) -> Any:
    """Return a clone of ``model`` whose blocks are streamed as ``settings`` say.

    Raises:
        ValueError: the model has no known block stack, or a setting asks for something this version cannot do.
        RuntimeError: the installed torch is too old for the device.
    """
    find_stack(_diffusion_model(model))
    if is_dynamic(model):
        if settings.engine != "layerwise":
            return _left_to_comfyui(model, "its dynamic VRAM streams this model already")
        model = plain_copy(model)
        return _streamed(model, settings, "asked for; a plain copy of the dynamic VRAM model is streamed")
    if settings.engine == "comfyui":
        raise ValueError(
            "engine is 'comfyui', but this model is not under ComfyUI's dynamic VRAM, so nothing would stream it. Set"
            " engine to 'auto' or 'layerwise'."
        )
    if keeps_everything_on_device(model):
        return _left_to_comfyui(model, "it was told to keep models on the device")
    if model.weight_inplace_update:
        raise ValueError("model is patched in place (weight_inplace_update), which streaming cannot undo. Reload it.")
    why = "asked for" if settings.engine == "layerwise" else "the model is not under ComfyUI's dynamic VRAM"
    return _streamed(model, settings, why)


def _left_to_comfyui(model: Any, why: str) -> Any:
    log.info("DiT Layerwise Offload: the model is left to ComfyUI, because %s.", why)
    patched = _with_report(model.clone())
    attach(patched, engine="comfyui", engine_reason=why)
    return patched


def _streamed(model: Any, settings: OffloadSettings, why: str) -> Any:
    check_torch(model.load_device)
    log.info("DiT Layerwise Offload: engine 'layerwise' (%s).", why)
    patched = layerwise_patcher(_with_report(model.clone()), settings)
    attach(patched, engine="layerwise", engine_reason=why)
    return with_new_identity(patched)


def apply_dbcache(model: Any, settings: DBCacheSettings, node_id: Any = None) -> Any:
    """Return a clone of ``model`` that skips blocks as ``settings`` say; ``node_id`` is where to show progress.

    Raises:
        ValueError: the model has no known block stack, or one that cannot be skipped, or Fn and Bn do not fit it.
        RuntimeError: cache-dit is missing or not a tested version.
    """
    stack = find_stack(_diffusion_model(model))
    if stack.family.no_cache:
        raise ValueError(
            f"model is a {stack.family.name}, which DBCache cannot skip blocks of: {stack.family.no_cache}. Remove"
            " DBCache for this model; DiT Layerwise Offload works."
        )
    rules = settings.rules(len(stack.blocks), stack.family.name if stack.family.long_skips else "")
    other = whole_step_cache(model.model_options)
    if other:
        raise ValueError(
            f"model has {other} on it, which skips whole steps: together with DBCache both would count wrong. Remove"
            " one of the two nodes."
        )
    load_cache_dit()
    patched = _with_report(model.clone())
    attach(patched, cache=rules, node_id=node_id)
    return patched


def last_run(model: Any) -> tuple[str, str, torch.Tensor]:
    """Return (summary for people, JSON, chart as IMAGE) of the last run made with ``model``.

    Before the first run all three carry the same message. Without matplotlib the chart is blank and the summary says
    so.
    """
    box = attached(model).report
    if box is None or box.report is None:
        message = NO_RUN if box is not None else NOT_OURS
        return message, message, _chart(lambda: draw_message(message))[0]
    report = box.report
    chart, missing = _chart(lambda: draw_run(report.chart()))
    return report.summary() + missing, report.to_json(), chart


def _chart(draw: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, str]:
    try:
        return draw(), ""
    except ModuleNotFoundError as error:
        return blank(), f"\n{error}"


def _with_report(patched: Any) -> Any:
    """Give a fresh clone a report of its own and the pack's wrappers."""
    attach(patched, report=ReportBox())
    add_wrappers(patched)
    return patched


def _diffusion_model(model: Any) -> Any:
    inner = getattr(model, "model", None)
    diffusion_model = getattr(inner, "diffusion_model", None)
    if diffusion_model is None:
        raise ValueError(f"model is a {type(model).__name__} without a diffusion model. Connect a MODEL of a DiT.")
    return diffusion_model
