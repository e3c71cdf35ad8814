"""Hooks around the blocks of a stack, for the length of one model call.

Nothing stays on the modules between calls: ``vars(block)`` is the same before and after, also after an exception or
an interrupt (ComfyUI's is a BaseException).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

MISSING = object()


class BlockInterceptor(Protocol):
    """Runs around one block: may change its inputs and its result, or not call ``forward`` at all."""

    def run_block(self, index: int, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any: ...


class HookManager:
    """Context manager that puts ``interceptors`` around every block's forward, the first one outermost.

    ``ran`` lists the blocks whose own forward returned, in order of completion: skipped ones are not in it.
    The blocks' signatures stay readable through the hooks (``inspect.signature``).
    """

    def __init__(self, blocks: Sequence[torch.nn.Module], interceptors: Sequence[BlockInterceptor]) -> None:
        self._blocks = blocks
        self._interceptors = interceptors
        self._before: list[tuple[torch.nn.Module, Any]] = []
        self.ran: list[int] = []

    def __enter__(self) -> HookManager:
        try:
            for index, block in enumerate(self._blocks):
                hooked = self._hooked(index, block.forward)
                self._before.append((block, vars(block).get("forward", MISSING)))
                vars(block)["forward"] = hooked
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _restore(self) -> None:
        while self._before:
            block, forward = self._before.pop()
            if forward is MISSING:
                vars(block).pop("forward", None)
            else:
                vars(block)["forward"] = forward

    def _hooked(self, index: int, original: Callable[..., Any]) -> Callable[..., Any]:
        call = self._recorded(index, original)
        for interceptor in reversed(self._interceptors):
            call = _intercepted(index, interceptor, call)
        return functools.wraps(original)(call)

    def _recorded(self, index: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.ran.append(index)
            return result

        return forward


def _intercepted(index: int, interceptor: BlockInterceptor, inner: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return interceptor.run_block(index, inner, args, kwargs)

    return forward
