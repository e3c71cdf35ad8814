"""The noise level of each model call: foretold by rehearsing the sampler, read back from the device where it cannot be.

ComfyUI hands a call's noise level over as a tensor on the device; to read it back waits for everything queued before
it. The schedule is known on the host, but a sampler visits it in a way of its own: once an entry, twice,
somewhere between two. So its own function is run beforehand, on one number in main memory. Two rehearsals with unlike
predictions must ask for the same levels: a sampler whose steps depend on the model's output is not foretold.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import comfy.samplers
import torch

log = logging.getLogger("dit_layerwise_offload.noise_levels")

REHEARSED_MODULES = ("comfy.k_diffusion.sampling", "comfy.extra_samplers.uni_pc", "comfy.samplers")
MOST_EVALUATIONS_A_STEP = 8
PREDICTIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.zeros_like, lambda x: 0.3 * x + 0.7)


class SigmaReader:
    """Tells the noise level of each call of one run.

    Args:
        foretold: the level of each evaluation in order, ``None`` where they are not known beforehand (see
            :func:`foretold_levels`).
    """

    def __init__(self, foretold: Sequence[float] | None) -> None:
        self._foretold = foretold or ()
        self._evaluation = -1

    def begin_evaluation(self) -> None:
        """The sampler asks for a prediction, which may take several model calls."""
        self._evaluation += 1

    def sigma(self, on_device: torch.Tensor | None) -> float:
        """Return the noise level of a call, ``on_device`` as ComfyUI told it: known, or read back; 0 for ``None``."""
        if 0 <= self._evaluation < len(self._foretold):
            return self._foretold[self._evaluation]
        return float(on_device.flatten()[0]) if on_device is not None else 0.0


def foretold_levels(sampler: Any, sigmas: torch.Tensor, patcher: Any) -> tuple[float, ...] | None:
    """Return the noise level of each evaluation of a run to come, in order.

    Args:
        sampler: ComfyUI's sampler object.
        sigmas: the schedule, of shape (steps + 1,).
        patcher: ComfyUI's model patcher; some samplers plan by its ``model_sampling``.

    Returns:
        The levels, or ``None`` where they cannot be foretold: another pack's sampler, one that is given objects as
        options, or one that adapts its steps to the model's output.
    """
    if not _is_comfyuis_own(sampler) or len(sigmas) < 2:
        return None
    model_sampling = patcher.get_model_object("model_sampling")
    try:
        first, second = (_rehearse(sampler, sigmas, model_sampling, predict) for predict in PREDICTIONS)
    except Exception as error:  # whatever it is: the run itself is to show it, or not
        log.debug("The sampler's noise levels are read back: %s", error)
        return None
    return first if first == second else None


def _is_comfyuis_own(sampler: Any) -> bool:
    if type(sampler) is not comfy.samplers.KSAMPLER or sampler.sampler_function.__module__ not in REHEARSED_MODULES:
        return False
    return all(isinstance(value, int | float | str | None) for value in sampler.extra_options.values())


def _rehearse(
    sampler: Any, sigmas: torch.Tensor, model_sampling: Any, predict: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[float, ...]:
    stand_in = _StandIn(model_sampling, predict, MOST_EVALUATIONS_A_STEP * len(sigmas))
    start = torch.full((1, 1, 1, 1), 0.5)
    options = dict(sampler.extra_options)
    if "noise_sampler" in inspect.signature(sampler.sampler_function).parameters:
        options["noise_sampler"] = lambda *_: torch.zeros_like(start)  # their own take long to make
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.inference_mode():
        warnings.simplefilter("ignore")
        sampler.sampler_function(
            stand_in,
            start,
            sigmas.detach().to("cpu", torch.float32, copy=True),
            extra_args={"model_options": {}, "seed": 0},
            callback=None,
            disable=True,
            **options,
        )
    return tuple(stand_in.levels)


class _StandIn:
    """Stands in for the model in a rehearsal: it has the noise schedule, but no weights."""

    def __init__(self, model_sampling: Any, predict: Callable[[torch.Tensor], torch.Tensor], most: int) -> None:
        patcher = SimpleNamespace(get_model_object={"model_sampling": model_sampling}.__getitem__)
        model = SimpleNamespace(model_sampling=model_sampling)
        self.inner_model = SimpleNamespace(inner_model=model, model_patcher=patcher)
        self.levels: list[float] = []
        self._predict = predict
        self._most = most

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, model_options: Any = None, **_: Any) -> torch.Tensor:
        self.levels.append(float(sigma.flatten()[0]))
        if len(self.levels) > self._most:
            raise RuntimeError(f"more than {self._most} evaluations")
        denoised = self._predict(x)
        for hook in (model_options or {}).get("sampler_post_cfg_function", ()):
            denoised = hook({"denoised": denoised, "cond_denoised": denoised, "uncond_denoised": denoised})
        return denoised
