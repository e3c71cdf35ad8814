"""The wrappers around sampling runs and model calls: where the hooks go on and come off."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import comfy.model_management
import comfy.patcher_extension
import torch

from ...stack.call import StackCall
from ...stack.outlook import Outlook
from ..families.find import BlockStack, find_stack, wrapper_of
from ..streaming.shared_state import BuiltEngine, current_engine
from ..versions import keeping_context
from .prefetch_queue import leaving_out
from .run import SamplingRun

WRAPPER_KEY = "dit_layerwise_offload"  # among ComfyUI's wrappers
RUN_KEY = "dit_layerwise_offload_run"  # in a call's ``transformer_options``


def add_wrappers(patcher: Any) -> None:
    """Put the pack's wrappers on ``patcher``, once however many of its nodes are in the chain."""
    kinds = comfy.patcher_extension.WrappersMP
    for kind, wrapper in (
        (kinds.OUTER_SAMPLE, wrap_sampling_run),
        (kinds.PREDICT_NOISE, wrap_prediction),
        (kinds.APPLY_MODEL, wrap_apply_model),
        (kinds.DIFFUSION_MODEL, wrap_diffusion_model),
    ):
        if not patcher.get_wrappers(kind, WRAPPER_KEY):
            patcher.add_wrapper_with_key(kind, WRAPPER_KEY, wrapper)


def wrap_sampling_run(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """OUTER_SAMPLE: one :class:`SamplingRun` for the length of the run, found by the calls in their options."""
    guider = executor.class_obj
    arguments = _bound(executor.original, args, kwargs)
    sampler = arguments.get("sampler")
    run = SamplingRun(guider.model_patcher, arguments["sigmas"], sampler, getattr(guider, "conds", None))
    run.warn_of_neighbours(guider.model_options)
    options = guider.model_options.setdefault("transformer_options", {})
    options[RUN_KEY] = run
    engine = current_engine(guider.model_patcher.model.diffusion_model)
    if engine is not None:
        engine.streamer.time_next_call()
    try:
        return executor(*args, **kwargs)
    finally:
        options.pop(RUN_KEY, None)
        run.close()


def wrap_prediction(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """PREDICT_NOISE: surrounds all model calls of one evaluation of the sampler."""
    options = _bound(executor.original, args, kwargs).get("model_options") or {}
    run: SamplingRun | None = options.get("transformer_options", {}).get(RUN_KEY)
    if run is not None:
        run.begin_evaluation()
    return executor(*args, **kwargs)


@torch.compiler.disable
def wrap_apply_model(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """APPLY_MODEL: used for families whose forward has no wrapper of its own."""
    diffusion_model = executor.class_obj.diffusion_model
    if wrapper_of(diffusion_model) != "apply_model":
        return executor(*args, **kwargs)
    return _call_with_hooks(executor, diffusion_model, args, kwargs)


@torch.compiler.disable
def wrap_diffusion_model(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """DIFFUSION_MODEL: the usual place, right around the model's forward."""
    if wrapper_of(executor.class_obj) != "diffusion_model":
        return executor(*args, **kwargs)
    return _call_with_hooks(executor, executor.class_obj, args, kwargs)


def _call_with_hooks(executor: Any, diffusion_model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    arguments = _bound(executor.original, args, kwargs)
    options = arguments.get("transformer_options") or {}
    run: SamplingRun | None = options.get(RUN_KEY)
    if run is not None and not run.covers(diffusion_model):
        run = None
    engine = current_engine(diffusion_model)
    if run is None and engine is None:
        return executor(*args, **kwargs)
    if _in_training(args):
        raise ValueError(
            "DiT Layerwise Offload and DBCache do not work in training, nor where a sampler takes gradients through the"
            " model. Use the plain MODEL there."
        )
    return _run_call(find_stack(diffusion_model), run, engine, arguments, lambda: executor(*args, **kwargs))


def _run_call(
    stack: BlockStack,
    run: SamplingRun | None,
    engine: BuiltEngine | None,
    arguments: dict[str, Any],
    forward: Callable[[], Any],
) -> Any:
    streamer = engine.streamer if engine is not None else None
    total, keeping = len(stack.blocks), keeping_context()
    if run is None:
        return StackCall(stack.blocks, None, streamer, Outlook(next_head=total), keeping=keeping).run(forward).output
    info = run.describe(arguments.get("transformer_options") or {}, arguments.get("control"))
    gate = run.gate_for(info)
    call = StackCall(stack.blocks, gate, streamer, run.outlook(info), [leaving_out(stack.blocks)], keeping)
    result = call.run(forward)
    if gate is not None:
        run.finish_call(gate)
    run.record(info, result, engine)
    return result.output


def _in_training(args: tuple) -> bool:
    """Whether the call is one to learn from: ComfyUI says so, or did before it had the flag by asking for gradients of
    the latent."""
    wants_gradients = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
    return getattr(comfy.model_management, "in_training", False) or (torch.is_grad_enabled() and wants_gradients)


@functools.lru_cache(maxsize=64)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _bound(method: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by name, those a ``**kwargs`` parameter caught among them."""
    function = getattr(method, "__func__", None)
    if function is None:
        bound = inspect.signature(method).bind(*args, **kwargs)
    else:
        bound = _signature(function).bind(method.__self__, *args, **kwargs)
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments
