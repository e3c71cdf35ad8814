"""The examples in docstrings run, and give the results they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

from dev.imports import module_name, shipped_files, tracked_files
from dev.packages import REPOSITORY

SHOWING = [
    module_name(name)
    for name in shipped_files(tracked_files())
    if name.endswith(".py") and "\n>>> " in (REPOSITORY / name).read_text(encoding="utf-8")
]


def test_engine_and_cache_show_how_to_use_them_without_comfyui():
    assert {"offload", "dbcache"} <= set(SHOWING)


@pytest.mark.parametrize("name", SHOWING)
def test_the_examples_in_a_docstring(name):
    result = doctest.testmod(importlib.import_module(f"pack.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
