"""Reads who imports whom from the source: for the picture of the rooms, and for the tests that keep it in order.

Names are dotted paths in the repository, ``offload.slots``; a package stands for its ``__init__``. Imports inside
functions and for type checkers alone count as any other.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from .packages import REPOSITORY

IMPORTED_AS = {"pack": "", "pack_on_mock": "", "rigs": "tests.rigs"}  # the names that tests and tools give our folders
ENTRY_POINT = "__init__"


@dataclass(frozen=True)
class Import:
    """One import: ``target`` is a module of the repository if ``is_own``, else an absolute name from outside."""

    source: str
    target: str
    line: int
    is_own: bool
    is_relative: bool

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}, imports {self.target}"


def tracked_files() -> list[str]:
    """Return the paths of all files in git, with slashes.

    Raises:
        OSError, subprocess.CalledProcessError: there is no git, or this is no checkout.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (REPOSITORY / name).exists()]


def shipped_files(tracked: Iterable[str]) -> list[str]:
    """Return the files that the Comfy Registry gets: comfy-cli takes all in git that ``.comfyignore`` does not name."""
    ignored = (REPOSITORY / ".comfyignore").read_text(encoding="utf-8").split()
    folders = tuple(line for line in ignored if line.endswith("/"))
    return [name for name in tracked if name not in ignored and not name.startswith(folders)]


def module_name(path: str) -> str:
    """Return the dotted name of a Python file; that of the repository's own ``__init__.py`` is ``__init__``."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == ENTRY_POINT and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def imports_of(path: str, modules: Sequence[str]) -> Iterator[Import]:
    """Yield the imports in one Python file of the repository, whose modules are ``modules``."""
    source = module_name(path)
    package = list(PurePosixPath(path).parent.parts)
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names, is_relative = [_own_name(alias.name) for alias in node.names], False
        elif isinstance(node, ast.ImportFrom):
            names, is_relative = _imported_from(node, package, modules), node.level > 0
        else:
            continue
        for name, is_own in names:
            yield Import(source, name, node.lineno, is_own, is_relative)


def _imported_from(node: ast.ImportFrom, package: list[str], modules: Sequence[str]) -> list[tuple[str, bool]]:
    if node.level:
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        name, is_own = ".".join(part for part in base if part), True
    else:
        name, is_own = _own_name(node.module or "")
    if not is_own:
        return [(name, False)]
    within = [f"{name}.{alias.name}".strip(".") for alias in node.names]
    return [(one if one in modules else name or ENTRY_POINT, True) for one in within]


def _own_name(name: str) -> tuple[str, bool]:
    """Return an absolute name as one of the repository's, and whether it is: ``nodes`` alone is ComfyUI's."""
    first, _, rest = name.partition(".")
    if first in IMPORTED_AS:
        return ".".join(part for part in (IMPORTED_AS[first], rest) if part), True
    return name, first in ("dev", "bench", "tests", "noxfile")


def all_imports(files: Iterable[str]) -> list[Import]:
    """Return the imports in all Python files among ``files``."""
    python = [name for name in files if name.endswith(".py")]
    modules = [module_name(name) for name in python]
    return [one for name in python for one in imports_of(name, modules)]


def room_of(module: str) -> str:
    """Return the top folder that a module is in."""
    return module.split(".")[0]
