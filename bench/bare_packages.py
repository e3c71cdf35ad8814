"""Makes the pack's rooms, the benchmarks and the tests' doubles importable without ComfyUI and without installing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parent.parent


def bare_package(name: str, folder: Path = REPOSITORY) -> None:
    """Make ``folder`` importable as package ``name`` without running its entry point, which needs ComfyUI."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def make_importable() -> None:
    """Register ``pack``, ``bench`` and ``doubles`` as bare packages, those that are not registered yet."""
    for name, folder in (("pack", "."), ("bench", "bench"), ("doubles", "tests/doubles")):
        if name not in sys.modules:
            bare_package(name, (REPOSITORY / folder).resolve())
