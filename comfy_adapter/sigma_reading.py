"""The noise level of a model call, without asking the device where that can be avoided.

ComfyUI hands it over as a tensor on the device; to read it back waits for everything queued before it. The schedule
is known on the host from the start, so for the samplers that evaluate the model once at each of its entries, in order,
counting their evaluations tells the level. Which do was tried with every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.k_diffusion.sampling
import torch

ONE_EVALUATION_A_STEP = (
    "euler",
    "euler_cfg_pp",
    "euler_ancestral",
    "euler_ancestral_cfg_pp",
    "lms",
    "dpmpp_2m",
    "dpmpp_2m_cfg_pp",
    "dpmpp_2m_sde",
    "dpmpp_3m_sde",
    "ddpm",
    "lcm",
    "ipndm",
    "ipndm_v",
    "deis",
    "res_multistep",
    "res_multistep_cfg_pp",
    "res_multistep_ancestral",
    "res_multistep_ancestral_cfg_pp",
    "gradient_estimation",
    "gradient_estimation_cfg_pp",
    "er_sde",
)


def evaluates_once_a_step(sampler: Any) -> bool:
    """Whether ``sampler`` is one of ComfyUI's own that are known to: the function itself, not one of its name."""
    function = getattr(sampler, "sampler_function", None)
    known = (getattr(comfy.k_diffusion.sampling, f"sample_{name}", None) for name in ONE_EVALUATION_A_STEP)
    return function is not None and any(function is one for one in known)


class SigmaReader:
    """Tells the noise level of each call of one run.

    Args:
        schedule: the run's noise levels, steps + 1 of them.
        once_a_step: whether the sampler evaluates once at each entry but the last.
    """

    def __init__(self, schedule: Sequence[float], once_a_step: bool) -> None:
        self._schedule = schedule
        self._once_a_step = once_a_step
        self._evaluation = -1

    def begin_evaluation(self) -> None:
        """The sampler asks for a prediction, which may take several model calls."""
        self._evaluation += 1

    def sigma(self, on_device: torch.Tensor | None) -> float:
        """Return the noise level of a call, ``on_device`` as ComfyUI told it: known, or read back; 0 for ``None``."""
        if self._once_a_step and 0 <= self._evaluation < len(self._schedule) - 1:
            return self._schedule[self._evaluation]
        return float(on_device.flatten()[0]) if on_device is not None else 0.0
