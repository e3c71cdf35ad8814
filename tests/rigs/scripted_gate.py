"""A gate whose verdict is known beforehand."""

from __future__ import annotations

from collections.abc import Collection


class ScriptedGate:
    """Runs only the blocks in ``run`` and says so once block ``judged_at`` has run; ``known`` ones before the first.

    ``announced`` replaces what is said; ``None`` says nothing.
    """

    must_recompute = False

    def __init__(self, run: Collection[int], announced=None, *, judged_at: int = 0, known: bool = False) -> None:
        self._run = set(run)
        self._announced = announced
        self._at = None if announced is None else judged_at
        self._known = known

    def begin_call(self, announce):
        self._announce = announce

    def run_block(self, index, forward, args, kwargs):
        if self._known and index == 0:
            self._announce(self._announced)
        result = forward(*args, **kwargs) if index in self._run else args[0]
        if not self._known and index == self._at:
            self._announce(self._announced)
        return result

    def finish(self):
        return None
