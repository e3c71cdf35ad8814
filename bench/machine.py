"""What figures were measured on: processor, card, bus under load, driver, versions of everything that takes part."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from dev.packages import REPOSITORY

CARD_FIELDS = ("name", "driver_version", "pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.current")
LOAD_BYTES = 2**28


def describe_machine() -> dict[str, Any]:
    """Return processor, card and versions, as plain values."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        **describe_card(),
        **versions(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of torch, CUDA, cache-dit, ComfyUI and the pack, and its commit; ``None`` for what is not
    there. Imports none of them."""
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cache-dit": _installed("cache-dit"),
        "comfyui": _stated(Path(os.environ.get("COMFYUI_PATH") or "/nowhere") / "comfyui_version.py", "__version__"),
        "pack": _stated(REPOSITORY / "pyproject.toml", "version"),
        "commit": _answer(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]),
    }


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _stated(file: Path, name: str) -> str | None:
    """Return the value of the first line ``name = "value"`` of a file."""
    if not file.is_file():
        return None
    found = re.search(rf'^{name}\s*=\s*"([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def _answer(command: Sequence[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@contextmanager
def busy_bus() -> Iterator[None]:
    """Copy to the card for the length of the context: an idle link reports a lower generation."""
    host = torch.empty(LOAD_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(LOAD_BYTES, dtype=torch.uint8, device="cuda")
    finished = threading.Event()

    def copy() -> None:
        while not finished.is_set():
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def describe_card(
    ask: Callable[[Sequence[str]], str | None] = _answer,
    load: Callable[[], AbstractContextManager[None]] = busy_bus,
) -> dict[str, Any]:
    """Return card, driver and the bus as it is while it is used; ``{"card": None}`` without a GPU.

    Args:
        ask: runs a command and returns what it prints, ``None`` where it fails.
        load: keeps the bus busy.
    """
    if not torch.cuda.is_available():
        return {"card": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    described = {"card": properties.name, "memory GB": properties.total_memory / 1e9}
    command = ["nvidia-smi", f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader"]
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:  # other cards of the machine are numbered differently there
        command += ["-i", f"GPU-{uuid}"]
    with load():
        answer = ask(command)
    return described | (parsed_card(answer) if answer else {"nvidia-smi": None})


def parsed_card(answer: str, fields: Sequence[str] = CARD_FIELDS) -> dict[str, str]:
    """Return the first card of ``nvidia-smi``'s answer by field."""
    values = [value.strip() for value in answer.strip().splitlines()[0].split(",")]
    return dict(zip(fields, values, strict=True))
