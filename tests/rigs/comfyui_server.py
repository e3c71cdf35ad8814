"""ComfyUI's real server in a process of its own, with this pack as its only custom node, driven as a client would."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
PACK = "dit-layerwise-offload"
NEVER_INSTALLED = (".git", ".venv", ".nox", "artifacts", "__pycache__", ".pytest_cache", ".ruff_cache")
READY_WITHIN, DONE_WITHIN = 300.0, 240.0  # seconds; only a hang takes that long
FINAL = {"execution_success", "execution_error", "execution_interrupted"}
TEXT_EVENT = (3).to_bytes(4, "big")  # the server's binary event for progress text


@dataclass
class Run:
    """What the server told a client about one prompt, in order."""

    prompt_id: str
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    progress_texts: list[str] = field(default_factory=list)

    @property
    def ended(self) -> str:
        return self.events[-1][0]

    def shown(self, node_id: str) -> dict[str, Any]:
        """Return what an output node showed."""
        return next(
            data["output"] for kind, data in reversed(self.events) if kind == "executed" and data["node"] == node_id
        )


def install_pack(folder: Path) -> None:
    """Copy what the registry would publish of the repository."""
    unpublished = [line.rstrip("/") for line in (REPOSITORY / ".comfyignore").read_text(encoding="utf-8").split()]

    def ignored(directory: str, names: list[str]) -> set[str]:
        top = unpublished if Path(directory) == REPOSITORY else []
        return {name for name in names if name in NEVER_INSTALLED or name in top}

    shutil.copytree(REPOSITORY, folder, ignore=ignored)


def anew(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return ``prompt`` so that the server runs every node of it: with an input that no node has, but that results kept
    of earlier prompts do not have either."""
    token = uuid.uuid4().hex
    return {number: {**node, "inputs": {**node["inputs"], "unknown": token}} for number, node in prompt.items()}


class ComfyUIServer:
    """One server on a free port, with folders of its own under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = _free_port()
        self._client = uuid.uuid4().hex
        install_pack(folder / "custom_nodes" / PACK)
        self._log = (folder / "server.log").open("w", encoding="utf-8")
        arguments = ["--cpu", "--port", str(self._port), "--base-directory", str(folder), "--disable-auto-launch"]
        arguments += ["--database-url", "sqlite:///:memory:", "--disable-metadata", "--disable-api-nodes"]
        comfyui = os.environ["COMFYUI_PATH"]
        command = [sys.executable, str(HERE / "comfyui_server_main.py"), comfyui, *arguments]
        environment = {**os.environ, "PYTHONPATH": comfyui, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def log(self) -> str:
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")

    def wait_until_ready(self) -> None:
        """Return when ``/object_info`` answers; fail with the server's log when it does not come up."""
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.get("object_info/KSampler")
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
            else:
                return
        raise RuntimeError(f"ComfyUI's server did not come up:\n{self.log()[-4000:]}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def fetch(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=60) as answer:
            return answer.read()

    def get(self, path: str) -> Any:
        return json.loads(self.fetch(path))

    def post(self, path: str, data: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(data).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def run(self, prompt: dict[str, Any], on_event: Callable[[str, dict[str, Any]], None] = lambda *_: None) -> Run:
        """Queue ``prompt`` and follow it over the websocket to its end; ``on_event`` sees every event at once."""
        return asyncio.run(asyncio.wait_for(self._follow(prompt, on_event), DONE_WITHIN))

    async def _follow(self, prompt: dict[str, Any], on_event: Callable[[str, dict[str, Any]], None]) -> Run:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{self.url}/ws?clientId={self._client}", max_msg_size=0) as socket_,
        ):
            async with session.post(f"{self.url}/prompt", json={"prompt": prompt, "client_id": self._client}) as answer:
                accepted = await answer.json()
                if answer.status != 200:
                    raise RuntimeError(f"The server refused the prompt: {json.dumps(accepted)}")
            run = Run(accepted["prompt_id"])
            async for message in socket_:
                if message.type == aiohttp.WSMsgType.BINARY:
                    if message.data.startswith(TEXT_EVENT):
                        run.progress_texts.append(message.data[8:].decode("utf-8", errors="replace"))
                    continue
                event = json.loads(message.data)
                kind, data = event["type"], event["data"]
                if data.get("prompt_id") != run.prompt_id:
                    continue
                run.events.append((kind, data))
                await asyncio.to_thread(on_event, kind, data)
                if kind in FINAL:
                    return run
        raise RuntimeError(f"The server closed the connection:\n{self.log()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
