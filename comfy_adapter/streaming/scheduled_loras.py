"""Keeps the engine right while ComfyUI switches scheduled LoRAs, for which it edits the weights at rest in place."""

from __future__ import annotations

from typing import Any

from .patcher_base import PatcherBase


class ScheduledLoras(PatcherBase):
    """Mixed into layerwise patchers: calls ``follow_edited_weights`` after ComfyUI changed weights for scheduled LoRAs
    (its hooks), or put them back."""

    _switching_hooks = False

    def patch_hooks(self, hooks: Any) -> Any:
        edited = bool(self.hook_backup)
        self._switching_hooks = True
        try:
            result = super().patch_hooks(hooks)
        finally:
            self._switching_hooks = False
        if edited or self.hook_backup:
            self.follow_edited_weights()
        return result

    def unpatch_hooks(self, *args: Any, **kwargs: Any) -> Any:
        edited = bool(self.hook_backup)
        result = super().unpatch_hooks(*args, **kwargs)
        if edited and not self._switching_hooks:
            self.follow_edited_weights()
        return result
