"""Makes the pack importable under two names, the way its rooms are meant to be used.

- ``pack``: the repository as a bare package. Its entry point is not run, so the rooms ``offload`` and
  ``dbcache`` prove here that they need no ComfyUI.
- ``pack_on_mock``: the same files once more, for the adapter imported against the mocked ComfyUI.

The integration tests load the pack by ComfyUI's own loader, under a name of ComfyUI's choosing.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import torch

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other

REPOSITORY = Path(__file__).resolve().parent.parent


def _bare_package(name: str, path: Path) -> None:
    package = types.ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package


for _name in ("pack", "pack_on_mock"):
    _bare_package(_name, REPOSITORY)
_bare_package("doubles", Path(__file__).resolve().parent / "doubles")
_bare_package("bench", REPOSITORY / "bench")
sys.path.insert(0, str(Path(__file__).resolve().parent / "unit"))  # for the rigs that several test files share
