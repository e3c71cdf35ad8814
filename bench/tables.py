"""What a benchmark part hands over: a short table for people and the same rows for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass
class Part:
    """One part's result.

    Attributes:
        name: short, as on the command line.
        title: what was measured, on what, in one line.
        columns: those of the rows' keys that the table shows, in order, with a format each (``"{:.2f}"``).
        rows: everything, also what the table leaves out.
        shown: indices of the rows the table shows, ``None`` for all.
        notes: sources, assumptions, what to read with the figures.
        skipped: why the part did not run, or an empty string.
        failed: the error that ended it, or an empty string.
    """

    name: str
    title: str
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    shown: Sequence[int] | None = None
    notes: Sequence[str] = ()
    skipped: str = ""
    failed: str = ""

    def text(self) -> str:
        """Return the part as an aligned table with its notes."""
        if self.skipped:
            return f"{self.title}\n  skipped: {self.skipped}"
        if self.failed:
            return f"{self.title}\n  failed: {self.failed}"
        chosen = self.rows if self.shown is None else [self.rows[index] for index in self.shown]
        cells = [list(self.columns)]
        cells += [[_cell(row.get(key), form) for key, form in self.columns.items()] for row in chosen]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  "
            + "  ".join(
                cell.ljust(width) if number == 0 else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        return "\n".join([self.title, *lines, *(f"  - {note}" for note in self.notes)])


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
