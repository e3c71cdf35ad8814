"""Watches how much memory is alive while a piece of code runs."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class AllocationLog(TorchDispatchMode):
    """Adds up the memory that is alive, of tensors made while it is switched on, with at least ``least`` elements.

    ``most`` is the most that was alive at once, ``largest`` the largest single piece, in bytes.
    """

    def __init__(self, least):
        super().__init__()
        self._least = least
        self._made: dict[int, tuple[int, list[weakref.ref]]] = {}
        self.on = False
        self.most = 0
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self.on:
            given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
            for made in result if isinstance(result, tuple | list) else (result,):
                if isinstance(made, torch.Tensor) and made.numel() >= self._least:
                    self._note(made, given)
        self.most = max(self.most, self.alive)
        return result

    def _note(self, made, given):
        storage = made.untyped_storage()
        self._drop_dead()  # their memory may be this one's now
        if storage.data_ptr() not in given or storage.data_ptr() in self._made:
            self._made.setdefault(storage.data_ptr(), (storage.nbytes(), []))[1].append(weakref.ref(made))
            self.largest = max(self.largest, storage.nbytes())

    def _drop_dead(self):
        for storage, (_, references) in list(self._made.items()):
            if all(reference() is None for reference in references):
                del self._made[storage]

    @property
    def alive(self):
        self._drop_dead()
        return sum(size for size, _ in self._made.values())
