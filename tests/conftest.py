"""Makes the pack importable under two names, the way its rooms are meant to be used.

- ``pack``: the repository as a bare package. Its entry point is not run, so the rooms ``offload`` and
  ``dbcache`` prove here that they need no ComfyUI.
- ``pack_on_mock``: the same files once more, for the adapter imported against the mocked ComfyUI.

The integration tests load the pack by ComfyUI's own loader, under a name of ComfyUI's choosing.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "unit"))  # for the rigs that several test files share

import torch
from bare_packages import REPOSITORY, bare_package

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other

for _name in ("pack", "pack_on_mock"):
    bare_package(_name, REPOSITORY)
bare_package("doubles", REPOSITORY / "tests" / "doubles")
bare_package("bench", REPOSITORY / "bench")
