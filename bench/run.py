"""The one entry to all benchmarks: ``nox -s bench``, or some parts of it, ``nox -s bench -- published policies``.

Each part prints a table; all rows go to a JSON file.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bare_packages import make_importable


def main() -> None:
    make_importable()
    from bench.command import main as run_parts

    run_parts()


if __name__ == "__main__":
    main()
