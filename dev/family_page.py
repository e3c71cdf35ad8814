"""Renders the family table as the documentation's page. Needs no comfy."""

from __future__ import annotations

from collections.abc import Sequence

from pack.comfy_adapter.families.entry import NEWER, OLDEST, Family
from pack.comfy_adapter.families.table import FAMILIES
from pack.comfy_adapter.families.unsupported import UNSUPPORTED

from .packages import REPOSITORY

TESTED = (OLDEST, NEWER)
HEAD = """\
# Model families

Rendered from the table in `comfy_adapter/families/table.py` by `nox -s families`; a test fails when it is stale.

Every family is tested with tiny random models of ComfyUI's own classes, on each ComfyUI named in its row: streamed
results are bit-identical to a full load, results without hits to the uncached model, and cached results to the cache
written out by hand. *Streams* are what DBCache judges on its own: one that changes too much makes the call a miss.
"""
UNKNOWN = """\
Any other model is taken as a stack when one list of at least four blocks of one class holds half of its weights. It is
streamed as it is; DBCache first watches one whole call, and caches only if every block was given what the block before
it returned. Otherwise everything is computed, and the log and the report say why. A model without such a list is
refused by name.
"""
COLUMNS = ("family", "ComfyUI", "offload", "DBCache", "streams", "block lists", "notes")


def render(families: Sequence[Family] = FAMILIES) -> str:
    """Return the page as Markdown."""
    lines = [HEAD, _row(COLUMNS), _row(["---"] * len(COLUMNS))]
    lines += [_row(_cells(family)) for family in sorted(families, key=lambda one: one.name.lower())]
    lines += ["", "## Block lists left alone, and what happens between blocks", ""]
    for family in sorted(families, key=lambda one: one.name.lower()):
        facts = []
        if family.about.between:
            facts.append(f"between blocks: {family.about.between}")
        if family.about.left_alone:
            facts.append(f"left alone: {family.about.left_alone}")
        if family.wrapper == "apply_model":
            facts.append("hooked around APPLY_MODEL, as its forward has no wrapper of its own")
        if facts:
            lines.append(f"- **{family.name}** ({', '.join(family.classes)}): {'; '.join(facts)}.")
    lines += ["", "## Not supported", "", "Both nodes refuse these by name:", ""]
    lines += [f"- `{name}`: {why}." for name, why in UNSUPPORTED.items()]
    lines += ["", UNKNOWN.rstrip()]
    return "\n".join(lines) + "\n"


def _cells(family: Family) -> list[str]:
    versions = TESTED[TESTED.index(family.about.since) :]
    notes = [family.about.notes] if family.about.notes else []
    if family.long_skips:
        notes.append("late blocks take outputs of early ones: Fn at least Bn")
    return [
        family.name,
        ", ".join(versions),
        "yes",
        f"no: {family.no_cache}" if family.no_cache else "yes",
        "-" if family.no_cache else ", ".join(family.judged),
        ", ".join(f"`{one.path}`" for one in family.lists),
        "; ".join(notes),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    page = REPOSITORY / "docs" / "families.md"
    page.write_text(render(), encoding="utf-8")
    print(f"wrote {page.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
