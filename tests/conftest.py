"""Makes the pack importable under two names, the way its rooms are meant to be used.

- ``pack``: the repository as a bare package. Its entry point is not run, so the rooms ``stack``, ``offload`` and
  ``dbcache`` prove here that they need no ComfyUI.
- ``pack_on_mock``: the same files once more, for the adapter imported against the mocked ComfyUI.

The tests in ``comfyui/`` load the pack by ComfyUI's own loader, under a name of ComfyUI's choosing.
"""

from __future__ import annotations

import gc

import pytest
import torch

import bench  # noqa: F401  before pytest takes the folder of tests named after it for the package itself
from dev.packages import REPOSITORY, bare_package

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other

bare_package("pack_on_mock")
bare_package("rigs", REPOSITORY / "tests" / "rigs")


@pytest.fixture(scope="module", autouse=True)
def imported_libraries_are_no_garbage():
    """Many tests collect garbage: without this, each time among all that torch and diffusers have imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
