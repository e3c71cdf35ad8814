"""Makes the pack's rooms, the benchmarks and the tests' doubles importable without ComfyUI and without installing."""

from __future__ import annotations

import sys
import types
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def make_importable() -> None:
    """Register ``pack``, ``bench`` and ``doubles`` as bare packages, those that are not registered yet."""
    for name, folder in (("pack", "."), ("bench", "bench"), ("doubles", "tests/doubles")):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str((REPOSITORY / folder).resolve())]
            sys.modules[name] = package
