"""Run in a fresh interpreter by test_loading.py: loads the pack by ComfyUI's loader and prints what it saw."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from dev.comfyui import LoadedPack, start_comfyui
from dev.packages import REPOSITORY, bare_package

bare_package("rigs", REPOSITORY / "tests" / "rigs")

start_comfyui("--cpu")

import nodes  # noqa: E402


class NotThere:
    """Hides cache-dit: neither importable nor installed."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cache_dit":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return None


def hide_cache_dit():
    sys.meta_path.insert(0, NotThere())
    version = importlib.metadata.version

    def hidden(name):
        if name == "cache-dit":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    importlib.metadata.version = hidden


def comfy_state():
    return {
        name: {key: id(value) for key, value in vars(module).items()}
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in ("comfy", "comfy_extras", "comfy_api", "comfy_execution", "execution", "folder_paths")
    }


def install_and_load() -> LoadedPack:
    """Copy the pack into a ``custom_nodes`` folder, as a user would, and load it from there."""
    folder = Path(tempfile.mkdtemp()) / "custom_nodes" / "dit-layerwise-offload"
    shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    return LoadedPack(folder)


def packages():
    return sorted(name for name in ("cache_dit", "diffusers") if name in sys.modules)


def run_nodes(pack):
    import torch
    from rigs.real_comfy import WAN, build, sample

    plain = build(WAN)
    streamed = pack.execute("DiTLayerwiseOffload", plain, resident_blocks=0)[0]
    try:
        pack.execute("DiTDBCache", plain)
        error = ""
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {"offload_identical": torch.equal(sample(plain, WAN), sample(streamed, WAN)), "dbcache_error": error}


class Collect(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


mode = sys.argv[1]
result = {}
if mode == "without_cache_dit":
    hide_cache_dit()
before, state = packages(), comfy_state()
pack = install_and_load()
after = comfy_state()
result["imported"] = sorted(set(packages()) - set(before))
result["changed_comfy_modules"] = sorted(name for name, members in state.items() if after[name] != members)
result["nodes_module_is_comfyuis"] = sys.modules["nodes"] is nodes
if mode == "without_cache_dit":
    result |= run_nodes(pack)
if mode == "log":
    collect = Collect()
    logging.getLogger("dit_layerwise_offload").addHandler(collect)
    logging.getLogger("dit_layerwise_offload").setLevel(logging.INFO)
    result["before"] = packages()
    run_nodes(pack)
    run_nodes(pack)
    result["messages"] = collect.messages
print(json.dumps(result))
