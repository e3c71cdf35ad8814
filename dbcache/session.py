"""One sampling run's cache: made when sampling starts, gone with all its tensors when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ..stack.layout import Hidden, StackLayout
from ..stack.outlook import Outlook, head_plan
from .block_order import StackRoute
from .branches import Branch, branch_name, shape_key
from .cache_dit import CacheContexts
from .calls import CallInfo
from .decision import computes_after
from .main_memory import CopyingDevice, MainMemory, OnDevice, copying_device
from .rules import CacheRules, rules_for_run

log = logging.getLogger("dit_layerwise_offload.dbcache")


class DBCacheSession:
    """Owns the branches of one run; each of its model calls has a :class:`~.gate.CallGate` on it.

    Args:
        rules: DBCache's for the model.
        steps: sampler steps in the schedule.
        layout: the model's stack.
        keeping: context manager in which everything that outlives a block is allocated.
        device_for: returns how a device copies to main memory beside the host, for tests.

    Raises:
        RuntimeError: cache-dit is missing or not a tested version.
    """

    def __init__(
        self,
        rules: CacheRules,
        steps: int,
        layout: StackLayout,
        keeping: Callable[[], AbstractContextManager[Any]] = nullcontext,
        device_for: Callable[[torch.device], CopyingDevice | None] = copying_device,
    ) -> None:
        self.rules = rules_for_run(rules, steps)
        self.off = self.rules.off
        self.route = StackRoute(layout, rules.fn, rules.bn)
        self.keeping = keeping
        self.notes: list[str] = list(self.rules.notes)
        in_main_memory = rules.cache_device == "cpu"
        store = MainMemory(self.note_once, device_for) if in_main_memory else OnDevice()
        self._contexts = CacheContexts(self.rules, store)
        self._branches: dict[Hashable, Branch] = {}

    def outlook(self, call: CallInfo) -> Outlook:
        """Return the certainties about a call before its first block runs."""
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
        """Whether a later step than ``step`` is certain to run every block."""
        return computes_after(replace(self.rules, off=self.off), self._contexts.mask, step)

    def branch(self, call: CallInfo, hidden: Hidden) -> Branch:
        """Return the branch of a call, by its conditions, its setting and its first hidden states."""
        key = (call.conds, call.kinds, call.setting, shape_key(hidden))
        if key not in self._branches:
            name = branch_name(call.kinds, [branch.name for branch in self._branches.values()])
            self._branches[key] = Branch(name, self._contexts.new_context(name))
        return self._branches[key]

    @property
    def kept_bytes(self) -> int:
        """The size of everything kept now, in bytes, on the device or in main memory."""
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
        self._contexts.clear()
