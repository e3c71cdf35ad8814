"""Saving a model whose blocks are streamed.

ComfyUI wraps every weight that is not fully loaded into a lazy object that patches it while the file is written.
For integer weights that wrapper cannot be made (it asks for gradients), which a full load hides. So while the
state dict is read, streamed blocks hold their patched weights, marked as such, and are read like loaded ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ...offload.block_weights import AttributeWhileRunning, BlockWeights
from .patcher_base import PatcherBase


class PatchedStateDict(PatcherBase):
    """Mixin for patchers that build the state dict to save themselves (ComfyUI newer than 0.3.75)."""

    def model_state_dict_for_saving(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with _patched_at_rest(self.patched_streamed_blocks()):
            return super().model_state_dict_for_saving(*args, **kwargs)


@contextmanager
def _patched_at_rest(streamed: Iterable[tuple[torch.nn.Module, BlockWeights]]) -> Iterator[None]:
    with ExitStack() as stack:
        for block, weights in streamed:
            marked = [
                AttributeWhileRunning(module, "comfy_patched_weights", True)
                for module in block.modules()
                if hasattr(module, "comfy_cast_weights")
            ]
            stack.enter_context(weights.installed(weights.host_entries(), marked))
        yield
