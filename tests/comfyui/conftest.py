"""Starts real ComfyUI in this process, on the CPU, and loads the pack by ComfyUI's own custom node loader."""

from __future__ import annotations

import json
import os

import pytest

collect_ignore_glob = []

if os.environ.get("COMFYUI_PATH"):
    from dev.comfyui import start_comfyui

    start_comfyui("--cpu", "--disable-metadata")
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    path = os.environ.get("COMFYUI_PATH")
    return f"ComfyUI: {path}" if path else "ComfyUI: COMFYUI_PATH is not set, so the integration tests are left out"


@pytest.fixture(scope="session")
def comfy_nodes():
    """ComfyUI's own ``nodes`` module."""
    import nodes

    return nodes


@pytest.fixture(scope="session")
def pack(comfy_nodes):
    """The pack as ComfyUI loaded it."""
    from dev.comfyui import LoadedPack

    return LoadedPack()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """ComfyUI's real server with the pack installed, and empty files in place of the models the workflows name."""
    from PIL import Image
    from rigs import example_workflows
    from rigs.comfyui_server import ComfyUIServer

    folder = tmp_path_factory.mktemp("comfyui")
    for path in example_workflows.FILES:
        for file in example_workflows.model_files(example_workflows.load(path)):
            place = folder / "models" / file["directory"] / file["name"]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    (folder / "input").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "input" / "example.png")
    server = ComfyUIServer(folder)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture
def offload(pack):
    """Execute the offload node with its defaults, changed by keyword; returns the MODEL."""
    return lambda model, **inputs: pack.execute("DiTLayerwiseOffload", model, **inputs)[0]


@pytest.fixture
def dbcache(pack):
    """Execute the DBCache node with its defaults, changed by keyword; returns the MODEL."""
    return lambda model, **inputs: pack.execute("DiTDBCache", model, **inputs)[0]


@pytest.fixture
def report(pack):
    """Execute the report node and return its JSON, parsed."""
    return lambda model: json.loads(pack.execute("DiTRunReport", model, after=None)[1])


@pytest.fixture
def unet():
    """ComfyUI's own patcher over a small UNet of Stable Diffusion 1.5's kind."""
    from rigs.tiny_models import config_of, patcher_over
    from rigs.tiny_sizes import UNET

    return patcher_over(config_of("SD15", UNET).get_model({}, ""))
