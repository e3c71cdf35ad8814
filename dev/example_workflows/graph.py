"""An example workflow as data: nodes by column, their values and links. Drawn by ``draw.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

NOTES = Path(__file__).resolve().parent / "notes"
HUGGING_FACE = "https://huggingface.co/{repository}/resolve/main/{path}"


@dataclass(frozen=True)
class File:
    """A model file: its folder under ``models``, its name, and where it is downloaded."""

    folder: str
    name: str
    repository: str
    path: str

    @property
    def url(self) -> str:
        return HUGGING_FACE.format(repository=self.repository, path=self.path)


@dataclass
class Node:
    """One node: ``values`` by widget name, ``links`` by input name to (node's key, output number)."""

    key: str
    type: str
    values: dict[str, object] = field(default_factory=dict)
    links: dict[str, tuple[str, int]] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    title: str = ""
    size: tuple[int, int] | None = None


@dataclass
class Graph:
    """One workflow: columns of nodes, left to right, each under a heading. ``api`` asks for an API-format twin.

    Its note is ``notes/<name>.md``.
    """

    name: str
    columns: list[tuple[str, list[Node]]]
    api: bool = False

    @property
    def note(self) -> str:
        return (NOTES / f"{self.name}.md").read_text(encoding="utf-8")


def offload(key: str, source: tuple[str, int], **values: object) -> Node:
    return Node(key, "DiTLayerwiseOffload", values, {"model": source})


def dbcache(key: str, source: tuple[str, int], preset: str) -> Node:
    return Node(key, "DiTDBCache", {"preset": preset}, {"model": source})


def report(key: str, model: str, after: tuple[str, int], title: str = "") -> Node:
    return Node(key, "DiTRunReport", {}, {"model": (model, 0), "after": after}, title=title, size=(430, 560))


def split(repository: str, folder: str, name: str) -> File:
    """A file where Comfy-Org's repackaged repositories keep it."""
    return File(folder, name, repository, f"split_files/{folder}/{name}")
