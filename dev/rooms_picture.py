"""Draws the rooms that ship, from their imports, into ``docs/how-it-works.md``. ``nox -s rooms`` does."""

from __future__ import annotations

from collections.abc import Iterable

from .imports import Import, all_imports, room_of, shipped_files, tracked_files
from .packages import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-it-works.md"
BEGIN, END = "<!-- drawn by `nox -s rooms`: change the imports, not this -->\n", "<!-- end of the drawing -->"
ADAPTER = "comfy_adapter"
WINGS = ("apply", "sampling", "streaming", "families")

Arrows = set[tuple[str, str]]


def box_of(module: str) -> str | None:
    """Return the box a module is drawn in: its room, or its wing of the adapter; ``None`` for files beside them."""
    parts = module.split(".")
    if parts[0] != ADAPTER:
        return None if parts[0] == "__init__" else parts[0]
    return parts[1] if len(parts) > 1 and parts[1] in WINGS else None


def arrows(imports: Iterable[Import]) -> Arrows:
    """Return who imports from whom, box by box."""
    pairs = ((box_of(one.source), box_of(one.target)) for one in imports if one.is_own)
    return {(source, target) for source, target in pairs if source and target and source != target}


def without_detours(found: Arrows) -> Arrows:
    """Leave out each arrow whose end can be reached by way of another box as well."""
    return {(a, b) for a, b in found if not any(_reaches(found, c, b) for x, c in found if x == a and c != b)}


def _reaches(found: Arrows, start: str, end: str) -> bool:
    seen, coming = {start}, [start]
    while coming:
        here = coming.pop()
        new = {target for source, target in found if source == here} - seen
        seen |= new
        coming += new
    return end in seen


def draw(imports: Iterable[Import]) -> str:
    """Return the picture as a Mermaid block."""
    imports = list(imports)
    found = arrows(imports)
    rooms = sorted({room_of(one.source) for one in imports} - {"__init__", ADAPTER})
    lines = ["```mermaid", "flowchart TD", _box(ADAPTER, "    subgraph ")]
    lines += [_box(wing, "        ", ".py" if wing == "apply" else "/") for wing in WINGS]
    lines += ["    end", *(_box(room, "    ") for room in rooms)]
    lines += [f"    {source} --> {target}" for source, target in sorted(without_detours(found))]
    return "\n".join([*lines, "```", ""])


def _box(name: str, before: str, ending: str = "/") -> str:
    return f'{before}{name}["{name}{ending}"]'


def with_picture(page: str) -> str:
    """Return the page's text with the picture as the imports are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + draw(all_imports(shipped_files(tracked_files()))) + END + after


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"drew the rooms in {PAGE.relative_to(REPOSITORY)}")
