"""Starts real ComfyUI in this process, on the CPU, and loads the pack by ComfyUI's own custom node loader."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent

COMFYUI_PATH = os.environ.get("COMFYUI_PATH")
collect_ignore_glob = []
if not COMFYUI_PATH:
    collect_ignore_glob = ["test_*.py"]
else:
    for folder in (str(HERE), COMFYUI_PATH):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    sys.argv = [sys.argv[0], "--cpu", "--disable-metadata"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.model_management  # parses the arguments now, before pytest's own are back


@pytest.fixture(scope="session")
def comfy_nodes():
    """ComfyUI's own ``nodes`` module."""
    import nodes

    return nodes


@pytest.fixture(scope="session")
def pack(comfy_nodes, tmp_path_factory):
    """The pack as ComfyUI loaded it from a ``custom_nodes`` folder: its nodes by id, and its rooms by name."""
    folder = tmp_path_factory.mktemp("comfyui") / "custom_nodes"
    folder.mkdir()
    link = folder / "dit-layerwise-offload"
    link.symlink_to(REPOSITORY, target_is_directory=True)
    assert asyncio.run(comfy_nodes.load_custom_node(str(link), module_parent="custom_nodes"))
    name = str(link).replace(".", "_x_")

    def room(path: str):
        return importlib.import_module(f"{name}.{path}")

    return SimpleNamespace(
        nodes={
            key: comfy_nodes.NODE_CLASS_MAPPINGS[key] for key in ("DiTLayerwiseOffload", "DiTDBCache", "DiTRunReport")
        },
        room=room,
        name=name,
    )


def _defaults(node) -> dict:
    values = {}
    for item in node.define_schema().inputs:
        if getattr(item, "default", None) is not None:
            values[item.id] = item.default
    return values


@pytest.fixture
def offload(pack):
    """Execute the offload node with its defaults, changed by keyword; returns the MODEL."""
    node = pack.nodes["DiTLayerwiseOffload"]
    return lambda model, **inputs: node.execute(model, **{**_defaults(node), **inputs}).result[0]


@pytest.fixture
def dbcache(pack):
    """Execute the DBCache node with its defaults, changed by keyword; returns the MODEL."""
    node = pack.nodes["DiTDBCache"]
    return lambda model, **inputs: node.execute(model, **{**_defaults(node), **inputs}).result[0]


@pytest.fixture
def report(pack):
    """Execute the report node and return its JSON, parsed."""
    import json

    node = pack.nodes["DiTRunReport"]
    return lambda model: json.loads(node.execute(model, None).result[1])
