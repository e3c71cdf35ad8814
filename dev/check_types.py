"""Checks the types of the rooms in :data:`ROOMS` with mypy. ``nox -s lint`` runs it.

The rooms import one another relatively, since ComfyUI makes a package of the repository, under a name of its own. Here
mypy reads them as a package too: read one by one, everything that crosses from one room to another would be ``Any``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from .packages import REPOSITORY

ROOMS = ("stack", "offload", "dbcache", "pictures", "nodes")
BESIDE = ("comfy_adapter", "toy")  # imported by the nodes; ComfyUI has no types, so neither have these


def check(rooms: tuple[str, ...] = ROOMS, source: Path = REPOSITORY) -> tuple[str, int]:
    """Return mypy's report on ``rooms`` of the repository in ``source``, and its exit status."""
    from mypy import api

    arguments = [f"--config-file={REPOSITORY / 'pyproject.toml'}", f"--cache-dir={REPOSITORY / '.mypy_cache'}"]
    arguments += [word for room in rooms for word in ("--package", f"pack.{room}")]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "pack")
        for room in (*ROOMS, *BESIDE):
            shutil.copytree(source / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        os.chdir(folder)
        try:
            report, errors, status = api.run(arguments)
        finally:
            os.chdir(before)
    return (report + errors).replace(f"pack{os.sep}", ""), status


if __name__ == "__main__":
    report, status = check()
    print(report, end="")
    sys.exit(status)
