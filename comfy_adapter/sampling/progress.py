"""Progress text on the DBCache node while a run goes on, where ComfyUI's server is there to show it."""

from __future__ import annotations

import sys
from typing import Any


def show_on_node(node_id: Any, text: str) -> None:
    """Show ``text`` on the node with this id. Without a server, or outside a graph, there is nothing to show on."""
    server = getattr(sys.modules.get("server"), "PromptServer", None)
    instance = getattr(server, "instance", None)
    if node_id is not None and instance is not None:
        instance.send_progress_text(text, node_id)
