"""A device whose copies to main memory arrive only when somebody waits for them: until then they read as NaN."""

from __future__ import annotations

import torch


class LateDevice:
    """Implements ``CopyingDevice``. An event is the number of a copy; copies arrive in order.

    ``waited`` and ``finished`` count the waits of the device and of the host, ``on_their_way`` the copies that nobody
    waited for yet.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._started = 0
        self.waited = 0
        self.finished = 0

    @property
    def on_their_way(self) -> int:
        return len(self._copies)

    def start_copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        copy = torch.full_like(tensor, float("nan"))
        self._copies[self._started] = (copy, tensor.clone())
        self._started += 1
        return copy, self._started - 1

    def wait(self, event: int) -> None:
        self.waited += 1
        self._arrive(event)

    def finish(self, event: int) -> None:
        self.finished += 1
        self._arrive(event)

    def _arrive(self, event: int) -> None:
        for number in [number for number in self._copies if number <= event]:
            copy, source = self._copies.pop(number)
            copy.copy_(source)
