"""The pages for developers: the picture is that of the imports, and what they name exists."""

from __future__ import annotations

import ast
import re

import pytest

from dev.packages import REPOSITORY
from dev.rooms_picture import PAGE, arrows, with_picture, without_detours

PAGES = ("docs/how-it-works.md", "CONTRIBUTING.md")
PLACE = re.compile(r"`([\w.]+(?:/[\w.\-]*)+)(?::\s+([\w.]+))?`")
COMMAND = re.compile(r"`nox -s (\w+)")
NEEDS = ("calibrator", "family", "residency policy", "report field")


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def defined(path: str) -> set[str]:
    """The names that a module and its classes define."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(page(path))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_picture_of_the_rooms_is_that_of_the_imports():
    text = PAGE.read_text(encoding="utf-8")
    assert "flowchart" in text
    assert text == with_picture(text), "docs/how-it-works.md is stale: run 'nox -s rooms'"


def test_only_arrows_that_follow_from_others_are_left_out():
    found = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("c", "e"), ("a", "e")}
    assert without_detours(found) == {("a", "b"), ("b", "c"), ("a", "d"), ("c", "e")}
    assert arrows([]) == set()


@pytest.mark.parametrize("name", PAGES)
def test_files_and_names_on_the_page_exist(name):
    places = PLACE.findall(page(name))
    assert len(places) > 15
    for path, symbol in places:
        assert (REPOSITORY / path).exists(), path
        for part in symbol.split(".") if symbol else ():
            assert part in defined(path), f"{path}: {symbol}"


@pytest.mark.parametrize("name", [*PAGES, "README.md"])
def test_commands_on_the_page_exist(name):
    sessions = defined("noxfile.py")
    commands = COMMAND.findall(page(name))
    assert commands
    assert set(commands) <= sessions


def test_a_newcomer_finds_where_to_add_things():
    rows = [line for line in page(PAGES[0]).splitlines() if line.startswith("| a ")]
    for need in NEEDS:
        assert any(row.startswith("| a ") and need in row.split("|")[1] for row in rows), need


def test_waste_is_explained_with_all_its_reasons():
    reasons = re.findall(r'^[A-Z_]+ = "(.+)"$', page("stack/copies.py"), re.MULTILINE)
    assert len(reasons) == 4
    for name in (*PAGES, "README.md"):
        assert all(f"`{reason}`" in page(name) for reason in reasons), name
