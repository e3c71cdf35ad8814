"""Writes docs/families.md from the family table: ``nox -s families``."""

from __future__ import annotations

from bare_packages import REPOSITORY, bare_package


def main() -> None:
    bare_package("pack")
    from pack.comfy_adapter.family_page import render

    page = REPOSITORY / "docs" / "families.md"
    page.write_text(render(), encoding="utf-8")
    print(f"wrote {page.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
