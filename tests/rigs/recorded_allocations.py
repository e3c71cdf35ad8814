"""A stand-in for newer ComfyUI's allocation recorder, with the rules of its own: see :class:`AllocationRecorder`."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class AllocationRecorder(TorchDispatchMode):
    """Scopes within scopes, as ComfyUI 0.38 opens one around a model call and one around each block in it.

    What is made in a scope must be freed in that very scope: the real recorder fails, or aborts the process, where it
    is freed in another one, outlives its own, or is freed while recording is paused. What is made in a pause is left
    alone. ``faults`` says what went wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.paused = False
        self._block = ExitStack()
        self._scopes: list[tuple[str, object]] = []
        self._owners: dict[int, tuple[str, object]] = {}
        self._tensors: dict[int, set[int]] = defaultdict(set)

    @contextmanager
    def scope(self, name: str):
        scope = (name, object())
        self._scopes.append(scope)
        try:
            yield
        finally:
            left = [address for address, owner in self._owners.items() if owner is scope]
            self.faults += [f"made in {name} and still there after it" for _ in left]
            for address in left:
                del self._owners[address]
            self._scopes.pop()

    @contextmanager
    def pause(self):
        """Like the real one, this ends any pause around it too."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def next_block(self, name: str | None) -> None:
        """End the scope of the block before and begin one for the next; ``None`` after the last block."""
        self._block.close()
        if name is not None:
            self._block.enter_context(self.scope(name))

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a model's ``forward`` in a scope of its own. What it returns is copied out, as ComfyUI's models
        do it."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self.scope("the call"):
                output = forward(*args, **kwargs)
                self.next_block(None)
                with self.pause():
                    kept = [one.clone() for one in output] if isinstance(output, list) else output.clone()
                del output
            return kept

        return recorded

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        known = {_address(one) for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)}
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor, is_new=_address(tensor) not in known)
        return result

    def _follow(self, tensor: torch.Tensor, is_new: bool) -> None:
        address = _address(tensor)
        if is_new and self._scopes and not self.paused:
            self._owners[address] = self._scopes[-1]
        if address in self._owners and id(tensor) not in self._tensors[address]:
            self._tensors[address].add(id(tensor))
            weakref.finalize(tensor, self._gone, address, id(tensor))

    def _gone(self, address: int, tensor: int) -> None:
        self._tensors[address].discard(tensor)
        if self._tensors[address]:
            return
        del self._tensors[address]
        owner = self._owners.pop(address, None)
        if owner is None:
            return
        now = "a pause" if self.paused else self._scopes[-1][0] if self._scopes else "no scope"
        if self.paused or not self._scopes or self._scopes[-1] is not owner:
            self.faults.append(f"made in {owner[0]} and freed in {now}")


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
