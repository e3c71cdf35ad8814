"""The noise level of a model call, without asking the device where that can be avoided."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class SigmaReader:
    """Tells the noise level of each call of one run.

    Args:
        foretold: the level of each evaluation in order, ``None`` where they are not known beforehand (see
            ``sampler_rehearsal.py``).
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
