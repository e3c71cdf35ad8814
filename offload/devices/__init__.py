"""Where blocks run: one interface, and a device each for streams, for none, and for tests and simulations.

``base`` is the interface. :func:`offload_device` chooses between the two real ones; the virtual
one ships beside them, since the benchmarks and tests of anybody who builds on the engine need it.
"""

from __future__ import annotations

import torch

from .accelerator import AcceleratorDevice
from .base import OffloadDevice
from .synchronous import SynchronousDevice

WITHOUT_STREAMS = ("cpu", "mps", "privateuseone")
OLDEST_TORCH = "2.6"  # the first with torch.accelerator


def offload_device(device: torch.device) -> OffloadDevice:
    """Return the implementation for ``device``: streams where the backend has them, plain copies elsewhere.

    Raises:
        RuntimeError: the device has streams, but this torch has no generic interface to them.
    """
    if device.type in WITHOUT_STREAMS:
        return SynchronousDevice(device)
    check_torch(device)
    return AcceleratorDevice(device)


def check_torch(device: torch.device) -> None:
    """Raise a RuntimeError if blocks cannot be streamed to ``device`` with the torch that is installed."""
    if device.type not in WITHOUT_STREAMS and not hasattr(torch, "accelerator"):
        raise RuntimeError(
            f"torch is {torch.__version__}, but streaming blocks to {device.type} needs {OLDEST_TORCH} or newer. Update"
            " it the way ComfyUI was installed, or remove DiT Layerwise Offload."
        )
