"""Tools of those who work on the pack. None of them is shipped, and nothing that is shipped imports them.

Run them from the repository's folder by ``python -m dev.NAME``; ``nox`` does. Importing this package makes the
repository importable as ``pack``, under which name tools, benchmarks and tests use its rooms.
"""

from .packages import bare_package

bare_package("pack")
