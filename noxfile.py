"""``nox -s demo`` runs the pack on an embedded tiny model, ``nox -s tests`` runs the whole suite.

Both make, or reuse, the environment that ComfyUI runs in (``tests/comfyui_host.py``), so a machine with Python,
pip and git is enough. ``COMFYUI_PATH`` names another ComfyUI than the default 0.3.75.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tests"))

from comfyui_host import find_host

nox.options.sessions = ["tests"]


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the suite: units on the mocked comfy, engine on plain torch, integration on real ComfyUI and its frontend."""
    os.environ.setdefault("INSTALL_CHROMIUM", "1")  # tests/integration/chromium.py, where it may
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: two processes do more than two threads
    _run(session, "-m", "pytest", *(session.posargs or ["-n", "2", "--dist", "loadfile", "tests"]))


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Draw digits with the embedded toy model six ways in real ComfyUI; print and show what each way took."""
    _run(session, "bench/demo.py", *session.posargs)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure the pack, simulate machines that are not here, and write everything to bench_results.json."""
    _run(session, "bench/run.py", *session.posargs)


@nox.session(venv_backend="none")
def quality(session: nox.Session) -> None:
    """Measure picture quality against skipped work on the toy model, about an hour; writes bench/results."""
    _run(session, "bench/quality.py", *session.posargs)


@nox.session(venv_backend="none")
def train_toy(session: nox.Session) -> None:
    """Train the embedded toy model anew, about a quarter of an hour on two cores."""
    _run(session, "toy/train.py", *session.posargs)


@nox.session(venv_backend="none")
def families(session: nox.Session) -> None:
    """Write the documentation's page of model families from their table."""
    _run(session, "bench/family_page.py")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    _run(session, "-m", "ruff", "check", ".")
    _run(session, "-m", "ruff", "format", "--check", ".")


def _run(session: nox.Session, *arguments: str) -> None:
    host = find_host()
    session.run(str(host.python), *arguments, env={"COMFYUI_PATH": str(host.comfyui)}, external=True)
