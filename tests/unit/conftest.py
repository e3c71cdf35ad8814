"""What all unit tests share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def imported_libraries_are_no_garbage():
    """Many tests collect garbage: without this, each time among all that torch and diffusers have imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
