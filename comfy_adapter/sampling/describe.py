"""A model call as the cache sees it, from ComfyUI's options and control input: pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...dbcache.calls import CallInfo
from .control_ranges import ControlRanges, patches_acting


def call_info(
    options: Mapping[str, Any],
    control: Any,
    *,
    step: int,
    sigma: float,
    last: bool = False,
    closed: str = "",
    controls: ControlRanges | None = None,
    strengths: Hashable = (),
) -> CallInfo:
    """Return the description of one model call.

    Args:
        options: its ``transformer_options``.
        control: its control input: lists of tensors by name, or nothing.
        step: sampler step, from 0.
        sigma: noise level.
        last: whether this is the last step of the schedule.
        closed: why no call may hit now, or an empty string.
        controls: the ranges of the run's ControlNets.
        strengths: those of :func:`scheduled_strengths`.
    """
    acting = (controls or ControlRanges()).acting(sigma)
    return CallInfo(
        step=step,
        sigma=sigma,
        conds=tuple(options.get("uuids", ())),
        kinds=tuple(options.get("cond_or_uncond", ())),
        setting=(_window(options), _replaced(options)),
        control=(_control_signature(control, acting), patches_acting(options, sigma), strengths),
        closed=closed,
        last=last,
    )


def scheduled_strengths(model: Any) -> Hashable:
    """Return the strengths at which scheduled LoRAs are on the model's weights now: at another it is another model."""
    hooks = getattr(getattr(model, "current_patcher", None), "current_hooks", None)
    return tuple(hook.strength for hook in getattr(hooks, "hooks", ()))


def _window(options: Mapping[str, Any]) -> Hashable:
    window = options.get("context_window")
    return None if window is None else tuple(getattr(window, "index_list", (str(window),)))


def _replaced(options: Mapping[str, Any]) -> Hashable:
    """The blocks and attentions that other nodes replace in this call: skip-layer or perturbed guidance, for example,
    calls the model again for the same condition with some of them replaced."""
    replaced = options.get("patches_replace", {})
    return tuple(sorted((name, tuple(sorted(map(str, keys)))) for name, keys in replaced.items() if keys))


def _control_signature(control: Any, acting: tuple[bool, ...]) -> Hashable:
    """The ControlNets that act in a call, and the shapes of their additions, not the values."""
    if not isinstance(control, Mapping):
        return ()
    return acting, tuple(
        (name, tuple(None if add is None else tuple(add.shape) for add in additions))
        for name, additions in sorted(control.items())
        if additions is not None
    )
