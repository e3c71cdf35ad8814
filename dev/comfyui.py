"""Starts real ComfyUI without its server and loads the pack by ComfyUI's own loader. For demo, tests and benchmarks."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from .packages import REPOSITORY


def start_comfyui(*arguments: str) -> None:
    """Make the ComfyUI of ``COMFYUI_PATH`` importable and let it parse ``arguments`` as its command line.

    Raises:
        SystemExit: ``COMFYUI_PATH`` is not set.
    """
    path = os.environ.get("COMFYUI_PATH")
    if not path:
        raise SystemExit("COMFYUI_PATH is not set. Use 'nox -s demo' or 'nox -s tests', or set it to a ComfyUI folder.")
    if path not in sys.path:
        sys.path.insert(0, path)
    own, sys.argv = sys.argv, [sys.argv[0], *arguments]
    try:
        import comfy.options

        comfy.options.enable_args_parsing()
        importlib.import_module("comfy.cli_args")  # parses sys.argv now
    finally:
        sys.argv = own


class LoadedPack:
    """The pack as ComfyUI loaded it: its nodes by id, and its modules by their path in the repository."""

    def __init__(self, folder: Path = REPOSITORY) -> None:
        import nodes

        self._name = str(folder).replace(".", "_x_")
        if not asyncio.run(nodes.load_custom_node(str(folder), module_parent="custom_nodes")):
            raise RuntimeError(f"ComfyUI could not load the pack from {folder}.")
        registered = nodes.NODE_CLASS_MAPPINGS
        self.nodes = {name: node for name, node in registered.items() if node.__module__.startswith(self._name)}

    def module(self, path: str) -> ModuleType:
        """Return one of the pack's modules, for example ``dbcache.gate``."""
        return importlib.import_module(f"{self._name}.{path}")

    def execute(self, node_id: str, *arguments: object, **inputs: object) -> tuple:
        """Execute a node with its default inputs, changed by keyword, and return its outputs."""
        node = self.nodes[node_id]
        declared = node.define_schema().inputs
        defaults = {item.id: item.default for item in declared if getattr(item, "default", None) is not None}
        for item in declared[: len(arguments)]:
            defaults.pop(item.id, None)
        return node.execute(*arguments, **{**defaults, **inputs}).result
