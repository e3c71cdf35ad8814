"""What the Comfy Registry and people on other systems need of the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no TOML reader of its own")

REPOSITORY = Path(__file__).resolve().parent.parent
OF_WINDOWS = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
LONGEST_PATH = 120  # Windows allows 260, of which ComfyUI's folder takes its part
ICON_LIMITS = (800, 400)  # the registry's


@pytest.fixture(scope="module")
def pyproject():
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tracked_files():
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name]


def test_name_version_and_licence_are_as_the_registry_wants_them(pyproject):
    project = pyproject["project"]
    assert re.fullmatch(r"[a-z](?:[-_.]?[a-z0-9])*", project["name"])
    assert len(project["name"]) < 100
    assert "comfyui" not in project["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert (REPOSITORY / project["license"]["file"]).read_text(encoding="utf-8").lstrip().startswith("Apache License")
    assert project["description"]


def test_links_and_requirements_are_there(pyproject):
    urls, comfy = pyproject["project"]["urls"], pyproject["tool"]["comfy"]
    assert {"Repository", "Documentation", "Issues"} <= set(urls)
    assert all(url.startswith("https://") for url in (*urls.values(), comfy["Icon"]))
    assert comfy["PublisherId"]
    assert comfy["DisplayName"]
    assert re.fullmatch(r">=\d+\.\d+\.\d+", comfy["requires-comfyui"])
    assert pyproject["project"]["requires-python"].startswith(">=3.")


def test_systems_and_accelerators_are_in_the_registrys_words(pyproject):
    classifiers = pyproject["project"]["classifiers"]
    systems = {name.split(" :: ")[1] for name in classifiers if name.startswith("Operating System")}
    accelerators = {name for name in classifiers if name.startswith("Environment")}
    assert systems <= {"Microsoft", "POSIX", "MacOS", "OS Independent"}
    assert {"Microsoft", "POSIX"} <= systems
    assert accelerators <= {
        "Environment :: GPU :: NVIDIA CUDA",
        "Environment :: GPU :: AMD ROCm",
        "Environment :: GPU :: Intel Arc",
        "Environment :: NPU :: Huawei Ascend",
        "Environment :: GPU :: Apple Metal",
    }
    assert accelerators


def test_requirements_txt_is_all_an_install_needs(pyproject):
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == pyproject["project"]["dependencies"]
    assert not any((REPOSITORY / name).exists() for name in ("install.py", "setup.py", "prestartup_script.py"))


def test_the_icon_lies_where_its_address_says_and_is_small_enough(pyproject):
    address = pyproject["tool"]["comfy"]["Icon"]
    file = REPOSITORY / address.split("/main/")[1]
    root = ElementTree.parse(file).getroot()
    assert root.tag.endswith("svg")
    assert int(root.get("width")) <= ICON_LIMITS[0]
    assert int(root.get("height")) <= ICON_LIMITS[1]


def test_the_changelog_has_this_version(pyproject):
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {pyproject['project']['version']}\n" in changelog


def test_no_code_that_the_registry_will_refuse():
    command = [sys.executable, "-m", "ruff", "check", ".", "--isolated", "--quiet", "--select", "S102,S307,E702"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if "No module named ruff" in result.stderr:
        pytest.skip("ruff is not installed")
    assert (result.returncode, result.stdout) == (0, "")


def test_paths_exist_on_windows_too(tracked_files):
    for name in tracked_files:
        assert len(name) <= LONGEST_PATH, name
        for part in name.split("/"):
            assert not re.search(r'[<>:"\\|?*\x00-\x1f]', part), name
            assert not part.endswith((" ", ".")), name
            assert part.split(".")[0].lower() not in OF_WINDOWS, name
    assert len({name.lower() for name in tracked_files}) == len(tracked_files)


def test_what_is_not_published_exists():
    for line in (REPOSITORY / ".comfyignore").read_text(encoding="utf-8").split():
        assert (REPOSITORY / line).exists(), line
