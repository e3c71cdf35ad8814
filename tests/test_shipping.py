"""The files that the Comfy Registry gets: they are enough to run, and only the tools stay behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dev.imports import all_imports, module_name, shipped_files, tracked_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no TOML reader of its own")

REPOSITORY = Path(__file__).resolve().parent.parent
NOT_SHIPPED = ("bench/", "dev/", "tests/")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


@pytest.fixture(scope="module")
def tracked():
    try:
        return tracked_files()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout")


@pytest.fixture(scope="module")
def shipped(tracked):
    return shipped_files(tracked)


def test_no_file_that_ships_imports_one_that_does_not(shipped):
    own = {module_name(name) for name in shipped if name.endswith(".py")}
    found = [one for one in all_imports(shipped) if one.is_own]
    assert len(found) > 100
    assert not [str(one) for one in found if one.target not in own]


def test_files_that_ship_import_each_other_relatively(shipped):
    """ComfyUI chooses the name of the package they are in."""
    assert not [str(one) for one in all_imports(shipped) if one.is_own and not one.is_relative]


def test_tools_tests_and_benchmarks_do_not_ship(tracked, shipped):
    assert all(any(name.startswith(folder) for name in tracked) for folder in NOT_SHIPPED)
    assert not [name for name in shipped if name.startswith(NOT_SHIPPED)]
    assert not [name for name in shipped if any(part.startswith(".") for part in name.split("/"))]
    assert {"__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md"} <= set(shipped)


def test_comfyignore_holds_plain_names_only():
    """comfy-cli reads it as git reads .gitignore; a plain file or folder at the top means the same to everybody."""
    for line in (REPOSITORY / ".comfyignore").read_text(encoding="utf-8").splitlines():
        assert re.fullmatch(r"/?[\w.\-/]+", line), line
        assert line.endswith("/") == (REPOSITORY / line).is_dir(), line


def test_pyproject_names_no_other_set_of_files():
    """comfy-cli would bring back files named in ``includes``; a build backend would choose by rules of its own."""
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert "includes" not in pyproject["tool"]["comfy"]
    assert "build-system" not in pyproject
    assert "setuptools" not in pyproject["tool"]


def test_links_in_pages_that_ship_lead_to_files_that_ship(shipped):
    pages = [name for name in shipped if name.endswith(".md")]
    assert "README.md" in pages
    links = [(page, link) for page in pages for link in LINK.findall((REPOSITORY / page).read_text(encoding="utf-8"))]
    assert links
    for page, link in links:
        target = ((REPOSITORY / page).parent / link).resolve().relative_to(REPOSITORY).as_posix()
        assert target in shipped or any(name.startswith(f"{target}/") for name in shipped), f"{page}: {link}"
