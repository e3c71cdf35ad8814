"""``nox -s demo`` runs the pack on an embedded tiny model, ``nox -s tests`` runs the whole suite.

Both make, or reuse, the environment that ComfyUI runs in (``dev/comfyui_host.py``), so a machine with Python,
pip and git is enough. ``COMFYUI_PATH`` names another ComfyUI than the default 0.3.75.
"""

from __future__ import annotations

import json
import os
import sys

import nox

nox.options.sessions = ["tests"]


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the suite: units on the mocked comfy, engine on plain torch, integration on real ComfyUI and its frontend."""
    os.environ.setdefault("INSTALL_CHROMIUM", "1")  # tests/rigs/chromium.py, where it may
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: two processes do more than two threads
    _run(session, "-m", "pytest", *(session.posargs or ["-n", "2", "--dist", "loadfile", "tests"]))


@nox.session(venv_backend="none")
def unit(session: nox.Session) -> None:
    """Run the tests that need no ComfyUI, in under two minutes."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = session.posargs or ["-n", "2", "--dist", "loadfile", "tests", "--ignore", "tests/comfyui"]
    _run(session, "-m", "pytest", *chosen)


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Draw digits with the embedded toy model six ways in real ComfyUI; print and show what each way took."""
    _run(session, "-m", "dev.demo", *session.posargs)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure the pack, simulate machines that are not here, and write everything to bench_results.json."""
    _run(session, "-m", "bench", *session.posargs)


@nox.session(venv_backend="none")
def quality(session: nox.Session) -> None:
    """Measure picture quality against skipped work on the toy model, about an hour; writes bench/results."""
    _run(session, "-m", "bench.quality", *session.posargs)


@nox.session(venv_backend="none")
def rooms(session: nox.Session) -> None:
    """Draw the picture of the rooms in docs/how-it-works.md from the imports."""
    _run(session, "-m", "dev.rooms_picture")


@nox.session(venv_backend="none")
def train_toy(session: nox.Session) -> None:
    """Train the embedded toy model anew, about a quarter of an hour on two cores."""
    _run(session, "-m", "dev.toy.train", *session.posargs)


@nox.session(venv_backend="none")
def families(session: nox.Session) -> None:
    """Write the documentation's page of model families from their table."""
    _run(session, "-m", "dev.family_page")


@nox.session(venv_backend="none")
def describe(session: nox.Session) -> None:
    """Print the family table's row for a model class: -- comfy.ldm.x.Model ARGUMENTS --inputs INPUTS, both as JSON."""
    _run(session, "-m", "dev.describe", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    _run(session, "-m", "ruff", "check", ".")
    _run(session, "-m", "ruff", "format", "--check", ".")
    _run(session, "-m", "dev.check_types")


def _run(session: nox.Session, *arguments: str) -> None:
    host = json.loads(session.run(sys.executable, "-m", "dev.comfyui_host", silent=True, external=True))
    session.run(host["python"], *arguments, env={"COMFYUI_PATH": host["comfyui"]}, external=True)
