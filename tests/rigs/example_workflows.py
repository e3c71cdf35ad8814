"""The pack's example workflows as the tests read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = REPOSITORY / "workflows"
FILES = sorted(WORKFLOWS.glob("*.json"))
TOY = WORKFLOWS / "DiT-Toy-compare.json"
FRONTEND_ONLY = {"MarkdownNote", "Note"}  # the server does not know these


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def server_nodes(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in workflow["nodes"] if node["type"] not in FRONTEND_ONLY]


def note_text(workflow: dict[str, Any]) -> str:
    return "\n".join(node["widgets_values"][0] for node in workflow["nodes"] if node["type"] in FRONTEND_ONLY)


def model_files(workflow: dict[str, Any]) -> list[dict[str, str]]:
    return [file for node in workflow["nodes"] for file in node["properties"].get("models", [])]


def declared_inputs(definition: dict[str, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return {name: (type or list of options, options)} of a node as ``/object_info`` describes it."""
    groups = (definition["input"].get("required", {}), definition["input"].get("optional", {}))
    return {name: (spec[0], spec[1] if len(spec) > 1 else {}) for group in groups for name, spec in group.items()}


def widget_values(node: dict[str, Any], definition: dict[str, Any]) -> dict[str, Any]:
    """Return {name: value}: the frontend stores values in order, and one more after a seed and after an upload."""
    declared = declared_inputs(definition)
    left = list(node["widgets_values"])
    values = {}
    for entry in node["inputs"]:
        if "widget" not in entry:
            continue
        values[entry["name"]] = left.pop(0)
        options = declared[entry["name"]][1]
        if options.get("control_after_generate"):
            assert left.pop(0) in ("fixed", "randomize", "increment", "decrement")
        if options.get("image_upload"):
            assert left.pop(0) == "image"
    assert left == [], f"{node['type']} has more values than widgets"
    return values


def as_prompt(workflow: dict[str, Any], definitions: dict[str, dict]) -> dict[str, dict]:
    """Return the workflow in the server's API format, as the frontend would queue it."""
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in server_nodes(workflow):
        linked = {entry["name"]: sources[entry["link"]] for entry in node["inputs"] if entry["link"] is not None}
        values = widget_values(node, definitions[node["type"]])
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": {**values, **linked}}
    return prompt
