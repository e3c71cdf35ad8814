"""Writes docs/families.md from the family table: ``nox -s families``."""

from __future__ import annotations

import sys
import types
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> None:
    package = types.ModuleType("pack")
    package.__path__ = [str(REPOSITORY)]
    sys.modules["pack"] = package
    from pack.comfy_adapter.family_page import render

    page = REPOSITORY / "docs" / "families.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(render(), encoding="utf-8")
    print(f"wrote {page.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
