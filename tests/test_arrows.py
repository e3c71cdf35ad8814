"""The order of the house: who may import whom, how long a file may be, and where a path may be added.

The tables are the law that ``docs/how-it-works.md`` draws. Imports for type checkers alone count as any other: what
cannot be named without a circle belongs elsewhere.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dev.imports import all_imports, module_name, room_of, shipped_files, tracked_files

REPOSITORY = Path(__file__).resolve().parent.parent
LONGEST_FILE = 300
MAY_ADD_A_PATH = "dev/comfyui.py"

ROOMS = {
    "__init__": {"nodes"},
    "nodes": {"comfy_adapter", "dbcache", "offload", "pictures", "toy"},
    "comfy_adapter": {"dbcache", "offload", "stack", "pictures", "toy"},
    "dbcache": {"stack"},
    "offload": {"stack"},
    "stack": set(),
    "pictures": set(),
    "toy": set(),
}
TOOLS = {
    "noxfile": set(),
    "dev": set(ROOMS),
    "bench": {*ROOMS, "dev"},
    "tests": {*ROOMS, "dev", "bench", "noxfile"},
}
WINGS = {
    "apply": {"sampling", "streaming", "families", "top"},
    "sampling": {"streaming", "families", "top"},
    "streaming": {"families", "top"},
    "families": {"top"},
    "top": set(),
}
ROOMS_OF_A_WING = {"families": {"stack"}}
LIBRARIES = {
    "__init__": {"comfy_api"},
    "nodes": {"comfy_api", "torch"},
    "comfy_adapter": {"comfy", "comfyui_version", "torch"},
    "dbcache": {"cache_dit", "torch"},
    "offload": {"torch"},
    "stack": {"torch"},
    "pictures": {"matplotlib", "skimage", "torch"},
    "toy": {"safetensors", "torch"},
}


@pytest.fixture(scope="module")
def tracked():
    try:
        return tracked_files()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout")


@pytest.fixture(scope="module")
def imports(tracked):
    return all_imports(shipped_files(tracked))


def wing_of(module: str) -> str:
    """The adapter's wing; its ``apply`` stands above the wings, every other file beside it below them."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in WINGS:
        return parts[1]
    return "top"


def test_every_room_has_its_place_in_the_tables(tracked):
    rooms = {room_of(module_name(name)) for name in tracked if name.endswith(".py")}
    assert rooms == {*ROOMS, *TOOLS}
    wings = {name.split("/")[1] for name in tracked if name.startswith("comfy_adapter/") and name.count("/") > 1}
    assert wings == WINGS.keys() - {"apply", "top"}


def test_imports_between_rooms_run_down(tracked):
    allowed = {**ROOMS, **TOOLS}
    found = [one for one in all_imports(tracked) if one.is_own and room_of(one.source) != room_of(one.target)]
    assert len(found) > 100
    assert not [str(one) for one in found if room_of(one.target) not in allowed[room_of(one.source)]]


def test_imports_between_the_adapters_wings_run_down(imports):
    inside = [one for one in imports if {room_of(one.source), room_of(one.target)} == {"comfy_adapter"}]
    between = [(wing_of(one.source), wing_of(one.target), str(one)) for one in inside]
    assert len(between) > 50
    assert not [text for source, target, text in between if source != target and target not in WINGS[source]]


def test_a_wing_asks_only_the_rooms_it_may(imports):
    for wing, rooms in ROOMS_OF_A_WING.items():
        asked = [one for one in imports if one.is_own and one.source.startswith(f"comfy_adapter.{wing}")]
        assert asked
        assert not [str(one) for one in asked if room_of(one.target) not in {*rooms, "comfy_adapter"}]


def test_rooms_use_the_libraries_they_are_made_for(imports):
    outside = [one for one in imports if not one.is_own and room_of(one.target) not in sys.stdlib_module_names]
    assert len(outside) > 50
    assert not [str(one) for one in outside if room_of(one.target) not in LIBRARIES[room_of(one.source)]]


def test_no_imports_run_round(imports):
    targets: dict[str, set[str]] = {}
    for one in imports:
        if one.is_own:
            targets.setdefault(one.source, set()).add(one.target)
    left = {*targets, *(target for found in targets.values() for target in found)}
    while leaves := {module for module in left if not targets.get(module, set()) & left}:
        left -= leaves
    # what remains lies on a circle, or leads to one
    assert not {module: sorted(targets[module] & left) for module in sorted(left)}


def test_no_python_file_is_longer_than_one_sitting(tracked):
    python = [name for name in tracked if name.endswith(".py")]
    lengths = {name: (REPOSITORY / name).read_text(encoding="utf-8").count("\n") for name in python}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


def test_paths_are_added_in_one_place(tracked):
    changing = [name for name in tracked if name.endswith(".py") and changes_the_path(name)]
    assert changing == [MAY_ADD_A_PATH]


def changes_the_path(name: str) -> bool:
    """Whether a file calls a method of ``sys.path`` or assigns to it or its items; reading it is fine."""
    tree = ast.parse((REPOSITORY / name).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_the_path(node.func.value):
            return True
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bases = [one.value if isinstance(one, ast.Subscript) else one for one in targets]
            if any(is_the_path(one) for one in bases):
                return True
    return False


def is_the_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and ast.unparse(node.value) == "sys"
