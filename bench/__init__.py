"""Measures the pack and simulates machines that are not here: ``python -m bench``, or ``nox -s bench``."""

import dev  # noqa: F401  makes the repository importable as ``pack``
