"""One model call of a stack: the gate decides which blocks run, and its verdict steers the copies.

This is the loop the pack exists for. ComfyUI's wrappers, the benchmarks and the tests all run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

from .copies import CopyCounts
from .hooks import BlockInterceptor, HookManager
from .outlook import Outlook, Plan

Outcome = TypeVar("Outcome")
Known = TypeVar("Known", covariant=True)
Announce = Callable[[tuple[int, ...]], None]
Listener = Callable[[tuple[int, ...], Sequence[int]], None]


class Gate(BlockInterceptor, Protocol[Known]):
    """Decides in the course of a call which blocks run, and stands in for the others."""

    @property
    def must_recompute(self) -> bool:
        """Whether the output is unusable: blocks were skipped in a call that then could not be finished. Valid after
        :meth:`finish`."""

    def begin_call(self, announce: Announce) -> None:
        """Take whom to tell the blocks that the call will still run, ascending, as soon as they are certain."""

    def finish(self) -> Known:
        """Close the call after the model returned, and return its outcome."""


class Streaming(BlockInterceptor, Protocol):
    """Brings each block's weights to the device before it runs."""

    def begin_call(self, outlook: Outlook, copies: CopyCounts) -> None:
        """Start a call. Copies started during it are counted in ``copies``, and so is later the waste among them."""

    def announce(self, plan: Plan) -> None:
        """Take the blocks that the call will still run."""

    def end_call(self) -> None:
        """End the call, also after an error."""


@dataclass
class CallResult(Generic[Outcome]):
    """Output and figures of a call.

    Attributes:
        output: the model's.
        outcome: the gate's, ``None`` without one.
        ran: the blocks that ran, in order; those of both tries where the call was made twice.
        copies: the bytes copied during the call. Its waste can still grow, when a later call drops a copy.
    """

    output: Any
    outcome: Outcome | None = None
    ran: list[int] = field(default_factory=list)
    copies: CopyCounts = field(default_factory=CopyCounts)


class StackCall(Generic[Outcome]):
    """One call, to be run once.

    Args:
        blocks: the stack in execution order.
        gate: the cache's, ``None`` to run every block.
        streaming: the engine, ``None`` where nothing is streamed.
        outlook: everything that is certain beforehand.
        listeners: are told, ahead of the engine, (blocks still to run, blocks that ran) when the gate announces them.
        keeping: context manager in which the engine may allocate tensors that outlive the call.
    """

    def __init__(
        self,
        blocks: Sequence[torch.nn.Module],
        gate: Gate[Outcome] | None = None,
        streaming: Streaming | None = None,
        outlook: Outlook | None = None,
        listeners: Sequence[Listener] = (),
        keeping: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._blocks = blocks
        self._gate = gate
        self._streaming = streaming
        self._outlook = outlook or Outlook()
        self._listeners = listeners
        self._keeping = keeping

    def run(self, forward: Callable[[], Any]) -> CallResult[Outcome]:
        """Run the model's ``forward`` under gate and engine; once more without the gate if it lost its way after it
        had skipped blocks. Exceptions pass through unchanged, with everything taken off the blocks."""
        gate, result = self._gate, CallResult[Outcome](None)
        result.output = self._attempt(forward, gate, self._outlook, result)
        if gate is not None:
            result.outcome = gate.finish()
            if gate.must_recompute:
                result.output = self._attempt(forward, None, self._outlook.exact(), result)
        return result

    def _attempt(
        self, forward: Callable[[], Any], gate: Gate[Outcome] | None, outlook: Outlook, result: CallResult[Outcome]
    ) -> Any:
        streaming = self._streaming
        if streaming is not None:
            with self._keeping():
                streaming.begin_call(outlook, result.copies)
        hooks = HookManager(self._blocks, [one for one in (gate, streaming) if one is not None])
        announcement = _Announcement(hooks, streaming, self._listeners)
        try:
            if gate is not None:
                gate.begin_call(announcement)
            with hooks:
                output = forward()
        finally:
            announcement.end()
            if streaming is not None:
                streaming.end_call()
        result.ran += hooks.ran
        return output


class _Announcement:
    """Passes the gate's word on while the hooks are on: later nobody has any use for it.

    Lets go of the hooks then: they lead to the gate, which leads here, and without that the call's inputs would wait
    for the garbage collector.
    """

    def __init__(self, hooks: HookManager, streaming: Streaming | None, listeners: Sequence[Listener]) -> None:
        self._hooks: HookManager | None = hooks
        self._streaming = streaming
        self._listeners = listeners

    def __call__(self, blocks: tuple[int, ...]) -> None:
        if self._hooks is None:
            return
        for listener in self._listeners:
            listener(blocks, self._hooks.ran)
        if self._streaming is not None:
            self._streaming.announce(Plan(blocks))

    def end(self) -> None:
        self._hooks = None
