"""The English texts of the nodes, taken from their schemas: ``locales/en/nodeDefs.json`` is made of these.

Run ``python -m dev.node_texts`` with ``COMFYUI_PATH`` set after changing a name or a tooltip, then translate what
changed in ``locales/zh/nodeDefs.json``. A test fails while a file is stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .packages import REPOSITORY

ENGLISH = REPOSITORY / "locales" / "en" / "nodeDefs.json"


def english_texts(nodes: Iterable[Any]) -> dict[str, dict]:
    """Return the texts of ComfyUI's node classes, in the form of a ``nodeDefs.json``: by node, input and output."""
    return {info["name"]: _texts_of(info) for info in (node.GET_NODE_INFO_V1() for node in nodes)}


def _texts_of(info: dict[str, Any]) -> dict[str, Any]:
    declared = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": {name: {"name": name, "tooltip": options["tooltip"]} for name, (_, options) in declared.items()},
        "outputs": {
            str(index): {"name": name, "tooltip": tooltip}
            for index, (name, tooltip) in enumerate(zip(info["output_name"], info["output_tooltips"], strict=True))
        },
    }


def as_json(texts: dict[str, dict]) -> str:
    """Return the texts as the file holds them."""
    return json.dumps(texts, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    from .comfyui import LoadedPack, start_comfyui

    start_comfyui("--cpu")
    ENGLISH.write_text(as_json(english_texts(LoadedPack().nodes.values())), encoding="utf-8", newline="\n")
    print(f"{ENGLISH} written.")
