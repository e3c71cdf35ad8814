"""One sampling run's cache: made when sampling starts, gone with all its tensors when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext

from ..stack.layout import Hidden, StackLayout
from ..stack.outlook import Outlook, head_plan
from .block_order import StackRoute
from .branches import Branch, branch_name, shape_key
from .cache_dit import CacheContexts
from .calls import CallInfo
from .rules import DBCacheSettings, settings_for_run

log = logging.getLogger("dit_layerwise_offload.dbcache")


class DBCacheSession:
    """Owns the branches of one run; each of its model calls has a :class:`~.gate.CallGate` on it.

    Args:
        settings: the node's settings.
        steps: sampler steps in the schedule.
        layout: the model's stack.
        keeping: context manager in which everything that outlives a block is allocated.

    Raises:
        RuntimeError: cache-dit is missing or not a tested version.
    """

    def __init__(
        self,
        settings: DBCacheSettings,
        steps: int,
        layout: StackLayout,
        keeping: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        run = settings_for_run(settings, steps)
        self.settings = run.settings
        self.off = run.off
        self._steps = steps
        self.route = StackRoute(layout, run.settings.fn, run.settings.bn)
        self.keeping = keeping
        self.notes: list[str] = list(run.notes)
        self._contexts = None if run.off else CacheContexts(run, steps)
        self._branches: dict[Hashable, Branch] = {}

    def outlook(self, call: CallInfo) -> Outlook:
        """Return what is certain about a call before its first block runs."""
        route = self.route
        head = route.total if self.off else route.fn
        tail = () if self.off else range(route.total - route.bn, route.total)
        return Outlook(
            plan=head_plan(head, route.total),
            next_head=None if call.last else head,
            always=(*range(head), *tail),
            computed_later=self.computes_after(call.step),
        )

    def computes_after(self, step: int) -> bool:
        """Whether a later step than ``step`` is certain to run every block: the last one, one that still warms up, or
        one that the cap on cached steps in a row leaves no choice. False where only the residuals will tell."""
        settings, left = self.settings, self._steps - 1 - step
        if left <= 0:
            return False
        forced = settings.scm != "none" and settings.scm_policy == "static"
        capped = not forced and 0 <= settings.max_continuous < left
        return bool(self.off) or settings.compute_last_step or step + 1 < settings.warmup_steps or capped

    def branch(self, call: CallInfo, hidden: Hidden) -> Branch:
        """Return the branch of a call, by its conditions, its setting and its first hidden states."""
        key = (call.conds, call.kinds, call.setting, shape_key(hidden))
        if key not in self._branches:
            name = branch_name(call.kinds, [branch.name for branch in self._branches.values()])
            self._branches[key] = Branch(name, self._contexts.new_context(name))
        return self._branches[key]

    @property
    def kept_bytes(self) -> int:
        """What the cache keeps now, in bytes, on the device or in main memory."""
        return sum(branch.context.kept_bytes for branch in self._branches.values())

    def note_once(self, text: str) -> None:
        """Log ``text`` and keep it for the report, the first time it comes up."""
        if text not in self.notes:
            self.notes.append(text)
            log.warning("%s", text)

    def run_out_of_memory(self) -> str:
        """Drop the cache and go on without it for the rest of the run; return why."""
        self.off = "out of memory for the cache"
        self.note_once("DBCache: the device has no room for the cache, so the rest of this run is computed exactly.")
        self.close()
        return self.off

    def close(self) -> None:
        """Drop every tensor of the run."""
        self._branches.clear()
        if self._contexts is not None:
            self._contexts.clear()
