"""The streaming engine: every streamed block finds its true weights on the device just before it runs.

Design ingredients, stated before the code (the idea is SGLang pull request 35858's):
- K = prefetch + 1 slots, allocated once; a block is copied into a slot, runs from it, and frees it.
- Only a block whose forward returned has run. What was prefetched and is no longer to come is released.
- Which block comes next is read from the plan the cache announces, else from the order observed before.
- The order of slot reuse is kept by events, never by synchronising the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .block_weights import BlockWeights
from .devices.base import OffloadDevice
from .schedule import Plan, learned_order, ran_whole, upcoming_either_way, upcoming_streamed
from .slots import Slot, SlotPool
from .timing import BlockTiming, CallTimer


@dataclass
class StreamCounts:
    """What the engine did so far. All sizes in bytes; ``wasted`` is the part of ``streamed`` that never ran."""

    streamed: int = 0
    wasted: int = 0
    peak_slots: int = 0


class BlockStreamer:
    """Streams the blocks in ``weights`` through slots; every other block of the stack is resident.

    Args:
        weights: the streamed blocks' weights by block index.
        total: number of blocks in the stack.
        device: where the blocks run.
        prefetch: how many streamed blocks are copied ahead of the running one, at least 0.
        keep_alive: an object that must live as long as the engine, for example what keeps host memory pinned.
    """

    def __init__(
        self,
        weights: Mapping[int, BlockWeights],
        total: int,
        device: OffloadDevice,
        prefetch: int,
        keep_alive: object = None,
    ) -> None:
        self._keep_alive = keep_alive
        self._weights = dict(weights)
        self._device = device
        self._total = total
        slots = min(prefetch + 1, len(self._weights))
        self._pool = SlotPool(device, max((w.size for w in self._weights.values()), default=0), slots)
        self._held: dict[int, Slot] = {}
        self._order: tuple[int, ...] = tuple(range(total))
        self._plan: Plan | None = None
        self._next_head: int | None = total
        self._held_over = 0
        self._always: frozenset[int] = frozenset()
        self._computed_later = False
        self._ran: list[int] = []
        self._active = 0
        self._when_retired: Callable[[], None] | None = None
        self._timer: CallTimer | None = CallTimer(device) if device.overlaps else None
        self._timed_call = False
        self.timing: BlockTiming | None = None
        self.last_forwarded: int | None = None
        self.counts = StreamCounts()

    @property
    def active(self) -> bool:
        """Whether a model call is in progress: slots must not be dropped then."""
        return self._active > 0

    @property
    def weights(self) -> Mapping[int, BlockWeights]:
        """The streamed blocks' weights by block index."""
        return self._weights

    @property
    def slot_bytes(self) -> int:
        """Device bytes of the slots allocated at the moment."""
        return self._pool.allocated_bytes

    def holds(self, index: int) -> bool:
        """Whether streamed block ``index`` is in a slot, or on its way there."""
        return index in self._held

    def acquire_slots(self) -> None:
        """Allocate the slots now. A call does it by itself when they are missing.

        Raises:
            torch.OutOfMemoryError: not even one slot fits on the device.
        """
        if self._weights:
            self._pool.acquire()
            self.counts.peak_slots = max(self.counts.peak_slots, self._pool.allocated_bytes)

    def measure(self) -> None:
        """Time blocks and copies in the next call that runs every block: sizes and lengths change from run to run."""
        self._read_timer()
        if self._timer is None and self._device.overlaps:
            self._timer, self._timed_call = CallTimer(self._device), False

    def forget(self) -> None:
        """Take what is in the slots as out of date: the weights at rest have changed. Not during a model call."""
        if not self.active:
            self._keep_only(())

    def release_slots(self) -> int:
        """Give the slots back and return the bytes freed; 0 while a call is in progress."""
        if self.active:
            return 0
        freed = self._pool.allocated_bytes
        for index in list(self._held):
            self._release(index, wasted=True)
        self._pool.release()
        return freed

    def retire(self, afterwards: Callable[[], None] | None = None) -> None:
        """Give everything back for good: now, or when the call in progress ends.

        ``afterwards`` is called when no copy can be under way any more, for example to unpin host memory.
        """
        self._when_retired = afterwards or (lambda: None)
        self._finish_retirement()

    def _finish_retirement(self) -> None:
        if self._when_retired is not None and not self.active:
            self.release_slots()
            afterwards, self._when_retired = self._when_retired, None
            afterwards()

    def begin_call(
        self,
        *,
        plan: Plan | None,
        next_head: int | None,
        always: Collection[int] | None = None,
        computed_later: bool = False,
    ) -> None:
        """Start a model call and prefetch its first blocks.

        Args:
            plan: what is known about this call; ``None`` expects every block.
            next_head: how many blocks at the head of the call after this one are certain to run; ``None`` when
                this is the last call.
            always: the blocks that even a cached call runs, ``None`` when calls are not cached. The slots that none
                of them needs hold over cached calls what the next computed one begins with.
            computed_later: whether a call that runs every block is certain to follow: only for one is anything
                copied to be held over, so nothing is copied for nothing.

        Raises:
            torch.OutOfMemoryError: not even one slot fits on the device.
        """
        self.acquire_slots()
        self._active += 1
        self._next_head = next_head
        self._always = frozenset(always or ())
        needed = len(self._pool.slots) if always is None else len(self._weights.keys() & self._always)
        self._held_over = max(0, len(self._pool.slots) - needed)
        self._computed_later = computed_later
        self._ran = []
        self.last_forwarded = None
        self._read_timer()
        try:
            self.announce(plan)
        except BaseException:
            self.end_call()
            raise

    def announce(self, plan: Plan | None) -> None:
        """Take the cache's word on which blocks this call will still run; prefetch along it."""
        self._plan = plan
        self._keep_only(self._to_keep(self.last_forwarded))
        self._prefetch(self._coming(self.last_forwarded))

    def end_call(self) -> None:
        """End a model call, also after an error: keep only what the head of the next call needs."""
        self._order = learned_order(self._ran, self._total, self._order)
        try:
            if self._loads_held_over and self.last_forwarded == self._order[-1]:
                # Now rather than in the next call: a cached call is to move nothing.
                self._prefetch(self._coming(self.last_forwarded))
        finally:
            self._close_call()

    def _close_call(self) -> None:
        if self._measuring:
            self._timed_call = ran_whole(self._ran, self._total)
            if not self._timed_call:
                self._timer.forget_blocks()
        kept = self._window(None)
        self._active -= 1
        self._plan = None
        self._keep_only(upcoming_streamed(None, self._order, None, None, self._weights, kept))
        self._finish_retirement()

    def run_block(self, index: int, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run block ``index`` with its weights on the device; exceptions pass through unchanged."""
        coming = self._coming(index, running=True)
        self._keep_only((index, *self._to_keep(index, running=True)))
        if index not in self._weights:
            self._prefetch(coming)
            result = self._timed(forward, args, kwargs)
        else:
            result = self._run_streamed(index, coming, forward, args, kwargs)
        self.last_forwarded = index
        self._ran.append(index)
        return result

    def _window(self, running: int | None) -> int:
        """How many blocks to have ready: a streamed block needs a slot itself, and guesses are kept to the window."""
        slots = len(self._pool.slots)
        takes_slot = running in self._weights or self._plan is None
        return max(0, slots - 1) if takes_slot else slots

    @property
    def _loads_held_over(self) -> bool:
        """Whether to load what is held over: at the end of a computed call, for one that is certain to follow."""
        plan = self._plan
        computed = plan is not None and plan.complete and any(index in self._weights for index in plan.blocks)
        return computed and self._computed_later

    def _coming(self, current: int | None, *, running: bool = False) -> tuple[int, ...]:
        """The streamed blocks to have on their way, nearest first."""
        return self._upcoming(current, running, self._held_over if self._loads_held_over else 0)

    def _to_keep(self, current: int | None, *, running: bool = False) -> tuple[int, ...]:
        """The streamed blocks to leave where they are, if they are there."""
        return self._upcoming(current, running, self._held_over)

    def _upcoming(self, current: int | None, running: bool, held_over: int) -> tuple[int, ...]:
        window = self._window(current if running else None)
        plan, known = self._plan, (self._next_head, self._weights, window, held_over, running)
        if plan is not None and not plan.complete:
            return upcoming_either_way(current, self._order, plan, *known, self._always)
        return upcoming_streamed(current, self._order, plan, *known)

    def _run_streamed(
        self, index: int, coming: tuple[int, ...], forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        weights = self._weights[index]
        slot = self._held.get(index) or self._load(index)
        self._prefetch(coming)
        self._device.wait(slot.ready)
        ran = False
        try:
            with weights.installed(slot.entries(weights, self._device)):
                result = self._timed(forward, args, kwargs)
            ran = True
            return result
        finally:
            slot.done = self._device.mark()
            self._release(index, wasted=not ran)

    @property
    def _measuring(self) -> bool:
        return self._timer is not None and not self._timed_call

    def _timed(self, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a block's forward, with events around it in the call that is measured."""
        if not self._measuring:
            return forward(*args, **kwargs)
        started = self._timer.block_starts()
        result = forward(*args, **kwargs)
        self._timer.block_ended(started)
        return result

    def _read_timer(self) -> None:
        """Take the measured call's figures once they are there; nothing waits for them."""
        if self._timer is not None and self._timed_call:
            measured = self._timer.result()
            if measured is not None or self._timer.failed:
                self.timing, self._timer = measured or self.timing, None

    def _prefetch(self, coming: tuple[int, ...]) -> None:
        for index in coming:
            if index not in self._held:
                self._load(index)

    def _load(self, index: int) -> Slot:
        # by what is held, not by what a slot says: whatever raises in here, no slot is lost
        slot = next(slot for slot in self._pool.slots if slot not in self._held.values())
        weights = self._weights[index]
        started = self._timer.copy_starts() if self._measuring else None
        slot.fill(index, weights, self._device)
        self._held[index] = slot
        self.counts.streamed += weights.bytes_to_copy
        if self._measuring:
            self._timer.copy_started(started, weights.bytes_to_copy)
        return slot

    def _keep_only(self, wanted: tuple[int, ...]) -> None:
        for index in [held for held in self._held if held not in wanted]:
            self._release(index, wasted=True)

    def _release(self, index: int, *, wasted: bool) -> None:
        del self._held[index]
        if wasted:
            self.counts.wasted += self._weights[index].bytes_to_copy
