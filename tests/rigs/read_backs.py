"""Counts what makes the host wait for the device: numbers that are read back from tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NUMBER = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


class _Lists(TorchFunctionMode):
    """Tells of ``Tensor.tolist``, of which torch's dispatcher sees nothing on the CPU."""

    def __init__(self, count: ReadBacks) -> None:
        super().__init__()
        self._count = count

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count.count += function is torch.Tensor.tolist
        return function(*args, **(kwargs or {}))


class ReadBacks(TorchDispatchMode):
    """Context manager, which may be entered again: ``count`` goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._lists = _Lists(self)
        self.count = 0

    def __enter__(self) -> ReadBacks:
        self._lists.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._lists.__exit__(*exception)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in NUMBER
        return function(*args, **(kwargs or {}))
