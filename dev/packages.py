"""Makes the pack's rooms importable without ComfyUI and without installing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parent.parent


def bare_package(name: str, folder: Path = REPOSITORY) -> None:
    """Make ``folder`` importable as package ``name``, once, without running its entry point, which needs ComfyUI."""
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
