"""The streaming engine: every streamed block finds its true weights on the device just before it runs.

Design ingredients, stated before the code (the idea is SGLang pull request 35858's):
- K = prefetch + 1 slots, allocated once; a block is copied into a slot, runs from it, and frees it.
- Only a block whose forward returned has run. A prefetched block that is no longer to come is released.
- Which block comes next is read from the plan the cache announces, else from the order observed before.
- The order of slot reuse is kept by events, never by synchronising the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..stack.copies import BLOCK_FAILED, NOT_CALLED, SLOTS_GIVEN_BACK, WEIGHTS_CHANGED, CopyCounts
from ..stack.outlook import Outlook, Plan
from .block_weights import BlockWeights
from .devices.base import OffloadDevice, is_timed
from .schedule import Horizon, learned_order, ran_whole
from .slots import Slot, SlotPool
from .timing import BlockTiming, CallTimer


class BlockStreamer:
    """Streams the blocks in ``weights`` through slots; every other block of the stack is resident.

    Args:
        weights: the streamed blocks' weights by block index.
        total: number of blocks in the stack.
        device: where the blocks run.
        prefetch: how many streamed blocks are copied ahead of the running one, at least 0.
        counts: where to count all copies; an engine that follows another for the same model goes on with its counts.
    """

    def __init__(
        self,
        weights: Mapping[int, BlockWeights],
        total: int,
        device: OffloadDevice,
        prefetch: int,
        counts: CopyCounts | None = None,
    ) -> None:
        self._weights = dict(weights)
        self._device = device
        self._total = total
        slots = min(prefetch + 1, len(self._weights))
        self._pool = SlotPool(device, max((w.size for w in self._weights.values()), default=0), slots)
        self._in_slot: dict[int, Slot] = {}
        self._order: tuple[int, ...] = tuple(range(total))
        self._horizon = Horizon(self._order, self._weights)
        self._kept_for_next = 0
        self._computed_later = False
        self._ran: list[int] = []
        self._active = 0
        self._when_retired: Callable[[], None] | None = None
        self._timer: CallTimer | None = CallTimer(device) if is_timed(device) else None
        self._timed_call = False
        self.timing: BlockTiming | None = None
        self.last_forwarded: int | None = None
        self.counts = counts if counts is not None else CopyCounts()
        self.peak_slot_bytes = 0
        self._copies = CopyCounts()

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
        return index in self._in_slot

    def acquire_slots(self) -> None:
        """Allocate the slots now. A call does it by itself when they are missing.

        Raises:
            torch.OutOfMemoryError: not even one slot fits on the device.
        """
        if self._weights:
            self._pool.acquire()
            self.peak_slot_bytes = max(self.peak_slot_bytes, self._pool.allocated_bytes)

    def time_next_call(self) -> None:
        """Time blocks and copies in the next call that runs every block: sizes and lengths change from run to run."""
        self._read_timer()
        if self._timer is None and is_timed(self._device):
            self._timer, self._timed_call = CallTimer(self._device), False

    def forget(self) -> None:
        """Drop the copies in the slots: the weights at rest have changed. Not during a model call."""
        if not self.active:
            self._keep_only((), WEIGHTS_CHANGED)

    def release_slots(self) -> int:
        """Give the slots back and return the bytes freed; 0 while a call is in progress."""
        if self.active:
            return 0
        freed = self._pool.allocated_bytes
        for index in list(self._in_slot):
            self._release(index, SLOTS_GIVEN_BACK)
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

    def begin_call(self, outlook: Outlook, copies: CopyCounts | None = None) -> None:
        """Start a model call and prefetch its first blocks.

        Spare slots, those that no call needs, keep the first blocks of the next full call across cached calls. They
        are filled for a full call that is certain to follow (``outlook.computed_later``) only.

        Args:
            outlook: everything that is certain about the call.
            copies: where to count the copies of this call, also when a later one drops them.

        Raises:
            torch.OutOfMemoryError: not even one slot fits on the device.
        """
        self.acquire_slots()
        self._active += 1
        self._copies = copies if copies is not None else CopyCounts()
        always = outlook.always
        self._horizon = Horizon(self._order, self._weights, outlook.plan, outlook.next_head, frozenset(always or ()))
        needed = len(self._pool.slots) if always is None else len(self._weights.keys() & frozenset(always))
        self._kept_for_next = max(0, len(self._pool.slots) - needed)
        self._computed_later = outlook.computed_later
        self._ran = []
        self.last_forwarded = None
        self._read_timer()
        try:
            self.announce(outlook.plan)
        except BaseException:
            self.end_call()
            raise

    def announce(self, plan: Plan | None) -> None:
        """Take the cache's word on which blocks this call will still run; prefetch along it."""
        self._horizon = replace(self._horizon, plan=plan)
        self._keep_only(self._to_keep(self.last_forwarded))
        self._prefetch(self._coming(self.last_forwarded))

    def end_call(self) -> None:
        """End a model call, also after an error: keep only the head of the next call."""
        self._order = learned_order(self._ran, self._total, self._order)
        self._horizon = replace(self._horizon, order=self._order)
        try:
            if self._loads_held_over and self.last_forwarded == self._order[-1]:
                # Now rather than in the next call: a cached call is to move nothing.
                self._prefetch(self._coming(self.last_forwarded))
        finally:
            self._close_call()

    def _close_call(self) -> None:
        timer = self._armed_timer
        if timer is not None:
            self._timed_call = ran_whole(self._ran, self._total)
            if not self._timed_call:
                timer.forget_blocks()
        kept = self._window(None)
        self._active -= 1
        self._horizon = Horizon(self._order, self._weights)
        self._keep_only(self._horizon.upcoming(None, kept))
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
        takes_slot = running in self._weights or self._horizon.plan is None
        return max(0, slots - 1) if takes_slot else slots

    @property
    def _loads_held_over(self) -> bool:
        """Whether to load the blocks held over: at the end of a computed call, for one that is certain to follow."""
        plan = self._horizon.plan
        computed = plan is not None and plan.complete and any(index in self._weights for index in plan.blocks)
        return computed and self._computed_later

    def _coming(self, current: int | None, *, running: bool = False) -> tuple[int, ...]:
        """The streamed blocks to have on their way, nearest first."""
        return self._upcoming(current, running, self._kept_for_next if self._loads_held_over else 0)

    def _to_keep(self, current: int | None, *, running: bool = False) -> tuple[int, ...]:
        """The streamed blocks to leave where they are, if they are there."""
        return self._upcoming(current, running, self._kept_for_next)

    def _upcoming(self, current: int | None, running: bool, held_over: int) -> tuple[int, ...]:
        window = self._window(current if running else None)
        return self._horizon.upcoming(current, window, held_over, running)

    def _run_streamed(
        self, index: int, coming: tuple[int, ...], forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        weights = self._weights[index]
        slot = self._in_slot.get(index) or self._load(index)
        self._prefetch(coming)
        self._device.wait(slot.ready)
        failed: str | None = BLOCK_FAILED
        try:
            with weights.installed(slot.entries(index, weights, self._device)):
                result = self._timed(forward, args, kwargs)
            failed = None
            return result
        finally:
            slot.done = self._device.mark()
            self._release(index, failed)

    @property
    def _armed_timer(self) -> CallTimer | None:
        """The timer while it waits for a call that runs every block; ``None`` once it has had one."""
        return None if self._timed_call else self._timer

    def _timed(self, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a block's forward, with events around it in the call that is measured."""
        timer = self._armed_timer
        if timer is None:
            return forward(*args, **kwargs)
        started = timer.block_starts()
        result = forward(*args, **kwargs)
        timer.block_ended(started)
        return result

    def _read_timer(self) -> None:
        """Take the measured call's figures once they are there; nothing waits for them."""
        if self._timer is not None and self._timed_call:
            measured = self._timer.result()
            if measured is not None or self._timer.failed:
                self.timing, self._timer = measured or self.timing, None

    def _prefetch(self, coming: tuple[int, ...]) -> None:
        for index in coming:
            if index not in self._in_slot:
                self._load(index)

    def _load(self, index: int) -> Slot:
        # no slot is lost, whatever raises in here: those are free that no block is in
        slot = next(slot for slot in self._pool.slots if slot not in self._in_slot.values())
        weights = self._weights[index]
        timer = self._armed_timer
        started = timer.copy_starts() if timer is not None else None
        slot.fill(weights, self._device)
        self._in_slot[index] = slot
        slot.copies = self._copies
        for counts in (self.counts, self._copies):
            counts.streamed += weights.bytes_to_copy
        if timer is not None:
            timer.copy_started(started, weights.bytes_to_copy)
        return slot

    def _keep_only(self, wanted: tuple[int, ...], reason: str = NOT_CALLED) -> None:
        for index in [one for one in self._in_slot if one not in wanted]:
            self._release(index, reason)

    def _release(self, index: int, wasted: str | None = None) -> None:
        """Free a block's slot; ``wasted`` says why its copy was for nothing, if it was."""
        slot = self._in_slot.pop(index)
        if wasted is not None:
            for counts in (self.counts, slot.copies):
                counts.waste(self._weights[index].bytes_to_copy, wasted)
