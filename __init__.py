"""DiT Layerwise Offload: stream a diffusion transformer's blocks, skip the ones a step does not need."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .nodes import NODES

WEB_DIRECTORY = "web"  # where ComfyUI's frontend looks for the help pages, as docs/<node>.md


class DiTLayerwiseOffloadExtension(ComfyExtension):
    """Hands the pack's nodes to ComfyUI."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES


async def comfy_entrypoint() -> DiTLayerwiseOffloadExtension:
    """ComfyUI's entry point for V3 node packs."""
    return DiTLayerwiseOffloadExtension()
