"""The one entry to all benchmarks: ``nox -s bench``, or some parts of it, ``nox -s bench -- published policies``.

Each part prints a table; all rows go to a JSON file.
"""

from .command import main

if __name__ == "__main__":
    main()
