"""The wrappers around sampling runs and model calls: where the hooks go on and come off."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import comfy.model_management
import comfy.patcher_extension
import torch

from ...dbcache.gate import CallGate
from ...dbcache.proving import StackProver
from ...offload.schedule import Plan, head_plan
from ...stack.hooks import HookManager
from ..families.find import find_stack, wrapper_of
from ..keys import RUN_KEY, WRAPPER_KEY
from ..streaming.shared_state import Engine, current_engine
from ..versions import keeping_context
from .prefetch_queue import leave_out
from .run import SamplingRun


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
        engine.streamer.measure()
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
    call = _ModelCall(diffusion_model, engine, run, lambda: executor(*args, **kwargs))
    return call.run(options, arguments.get("control"))


def _in_training(args: tuple) -> bool:
    """Whether the call is one to learn from: ComfyUI says so, or did before it had the flag by asking for gradients of
    the latent."""
    wants_gradients = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
    return getattr(comfy.model_management, "in_training", False) or (torch.is_grad_enabled() and wants_gradients)


class _ModelCall:
    """One forward of the diffusion model, hooked, repeated without the cache if the gate could not follow it."""

    def __init__(
        self,
        diffusion_model: torch.nn.Module,
        engine: Engine | None,
        run: SamplingRun | None,
        forward: Callable[[], Any],
    ) -> None:
        self._stack = find_stack(diffusion_model)
        self._streamer = engine.streamer if engine is not None else None
        self._notes = engine.notes if engine is not None else ()
        self._run = run
        self._forward = forward
        self._hooks: HookManager | None = None
        self._ran: list[int] = []

    def run(self, options: dict[str, Any], control: Any) -> Any:
        if self._run is None:
            return self._attempt(None)
        before = self._stream_counts()
        info = self._run.describe(options, control)
        gate = self._run.begin_call(info, self._announce)
        output = self._attempt(gate)
        outcome = None
        if gate is not None:
            outcome = self._run.finish_call(gate)
            if gate.must_recompute:
                output = self._attempt(None)
        after = self._stream_counts()
        slots = self._streamer.counts.peak_slots if self._streamer is not None else 0
        copied = tuple(self._streamer.weights) if self._streamer is not None else ()
        bytes_of_call = (after[0] - before[0], after[1] - before[1])
        self._run.record(info, outcome, self._ran, *bytes_of_call, slots, copied, self._notes)
        return output

    def _attempt(self, gate: CallGate | StackProver | None) -> Any:
        interceptors = [one for one in (gate, self._streamer) if one is not None]
        if self._streamer is not None:
            cached = gate is not None
            with keeping_context()():  # it makes the slots that are missing
                self._streamer.begin_call(
                    plan=self._first_plan(gate),
                    next_head=self._next_head(),
                    always=self._run.always if cached else None,
                    computed_later=cached and self._run.computed_later,
                )
        hooks = HookManager(self._stack.blocks, interceptors)
        self._hooks = hooks
        try:
            with hooks:
                output = self._forward()
        finally:
            # They lead to the gate, which leads here: the call's inputs would wait for the garbage collector.
            self._hooks = None
            if self._streamer is not None:
                self._streamer.end_call()
        self._ran += hooks.ran
        return output

    def _announce(self, blocks: tuple[int, ...]) -> None:
        """Take the gate's word on which blocks are still to come: the others are not prefetched, by nobody. What it
        says once the model has returned is of no use any more."""
        if self._hooks is None:
            return
        if self._streamer is not None:
            self._streamer.announce(Plan(blocks))
        coming = {*blocks, *self._hooks.ran}
        leave_out(block for index, block in enumerate(self._stack.blocks) if index not in coming)

    def _first_plan(self, gate: CallGate | StackProver | None) -> Plan | None:
        """Until the gate decides, only the blocks before its decision are certain to run."""
        if gate is None:
            return None
        return head_plan(self._run.head(self._stack), len(self._stack.blocks))

    def _next_head(self) -> int | None:
        return len(self._stack.blocks) if self._run is None else self._run.next_head(self._stack)

    def _stream_counts(self) -> tuple[int, int]:
        counts = self._streamer.counts if self._streamer is not None else None
        return (counts.streamed, counts.wasted) if counts is not None else (0, 0)


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
