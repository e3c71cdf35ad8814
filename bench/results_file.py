"""The JSON file of all benchmarks: one entry a part, each with the machine and the time it was measured at."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .tables import Part


class ResultsFile:
    """Results by part; a part measured again takes the place of its earlier result, the others stay.

    Args:
        path: the file, which need not exist.
        order: names of all parts, in the order they are to be written in.

    Raises:
        ValueError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        self._path = path
        self._order = list(order)
        self._parts: dict[str, Any] = self._read()
        try:
            self._write()
        except OSError as error:
            raise ValueError(
                f"--json is {str(path)!r}, which cannot be written ({error.strerror}). Name a file in a folder"
                " that exists and is yours."
            ) from error

    def _read(self) -> dict[str, Any]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError:
            return {}
        try:
            return {part["name"]: part for part in json.loads(text)["parts"]}
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"--json is {str(self._path)!r}, which holds something else than benchmark results. Name another file."
            ) from error

    def put(self, part: Part, machine: Mapping[str, Any]) -> None:
        """Keep a part's result, measured now, and write the file."""
        self._parts[part.name] = {
            "name": part.name,
            "title": part.title,
            "measured": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": dict(machine),
            "rows": [dict(row) for row in part.rows],
            "notes": list(part.notes),
            "skipped": part.skipped,
            "failed": part.failed,
        }
        self._write()

    def _write(self) -> None:
        known = [name for name in self._order if name in self._parts]
        others = [name for name in self._parts if name not in self._order]
        content = {"parts": [self._parts[name] for name in known + others]}
        self._path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
