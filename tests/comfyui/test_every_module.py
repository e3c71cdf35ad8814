"""Every module that ships can be imported inside real ComfyUI, also those that no node needs at once."""

from __future__ import annotations

import pytest

from dev.imports import module_name, shipped_files, tracked_files

MODULES = [module_name(name) for name in shipped_files(tracked_files()) if name.endswith(".py") and "/" in name]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_ships_imports_inside_comfyui(pack, name):
    module = pack.module(name)
    assert module.__name__.endswith(f".{name}")


def test_every_room_of_the_pack_is_among_them():
    rooms = {name.split(".")[0] for name in MODULES}
    assert {"nodes", "comfy_adapter", "dbcache", "offload", "stack", "pictures", "toy"} == rooms
