"""Finds a Chromium for the browser tests, or installs Debian's where the test command asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
INSTALL = "INSTALL_CHROMIUM"
INSTALL_WITHIN = 600.0  # seconds


def find_or_install() -> tuple[Path | None, str]:
    """Return (executable, "") or (None, why there is none). ``CHROMIUM_PATH`` names one.

    With ``INSTALL_CHROMIUM`` set, as ``nox -s tests`` does, a missing one is installed by apt where this process may.
    """
    named = os.environ.get("CHROMIUM_PATH")
    if named:
        return (Path(named), "") if Path(named).is_file() else (None, f"CHROMIUM_PATH is {named}, which is no file")
    found = _find()
    if found:
        return found, ""
    if not os.environ.get(INSTALL):
        return None, f"no Chromium is installed (name one in CHROMIUM_PATH, or set {INSTALL}=1 on Debian as root)"
    trouble = _apt_install()
    found = _find()
    return (found, "") if found else (None, f"no Chromium is installed, and {trouble or 'apt installed none'}")


def _find() -> Path | None:
    candidates = [shutil.which(name) for name in NAMES]
    return next((Path(path) for path in (*candidates, *ELSEWHERE) if path and Path(path).is_file()), None)


def _apt_install() -> str:
    """Install Debian's package; return what went wrong, or an empty string."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it with"
    if os.geteuid() != 0:
        return "apt-get needs root to install it"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update", "-qq"], install):
        try:
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)} did not end"
        if result.returncode != 0:
            return f"{' '.join(command)} failed: {result.stderr.strip().splitlines()[-1:]}"
    return ""
