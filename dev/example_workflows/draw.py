"""Draws the example workflows: ``workflows/*.json``, a picture beside each, and the API-format twins.

Run it against a running ComfyUI that has this pack and every node the graphs use, whose node definitions give the
order of inputs and widgets::

    python -m dev.example_workflows.draw http://127.0.0.1:8188
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from .graph import File, Graph, Node
from .graphs_h3 import h3_graphs
from .graphs_image import flux, qwen
from .graphs_toy import toy
from .graphs_video import ltx, wan
from .pictures import draw_picture

WORKFLOWS = Path(__file__).resolve().parent.parent.parent / "workflows"
PACK = "dit-layerwise-offload"
WIDGET_TYPES = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "FLOAT,INT", "COMFY_DYNAMICCOMBO_V3"}
NEWER_WIDGETS = {("CreateVideo", "bit_depth")}  # left out, and at their default, so that 0.3.75 opens the graphs too
COLUMN_GAP, ROW_GAP, GROUP_MARGIN, TITLE = 80, 70, 25, 60
WIDTH, LINE, TEXT_LINES = 320, 24, 6
NOTE_SIZE = (460, 620)
OUR_COLOURS = {"color": "#223355", "bgcolor": "#334466"}


class Drawing:
    """One graph laid out, with numbers for nodes and links."""

    def __init__(self, graph: Graph, definitions: dict[str, dict]) -> None:
        self.graph = graph
        self._definitions = definitions
        self.nodes = [node for _, column in graph.columns for node in column]
        self._numbers = {node.key: number for number, node in enumerate(self.nodes, start=1)}
        self._by_key = {node.key: node for node in self.nodes}
        self._links: list[list[Any]] = []
        self._positions, self._groups = self._lay_out()

    def workflow(self) -> dict[str, Any]:
        """Return the graph as the frontend saves it."""
        note_number = len(self.nodes) + 1
        drawn = [self._drawn(node, order) for order, node in enumerate(self.nodes)]
        for link in self._links:
            outputs = drawn[link[1] - 1]["outputs"]
            outputs[link[2]]["links"] = [*(outputs[link[2]]["links"] or []), link[0]]
        return {
            "revision": 0,
            "last_node_id": note_number,
            "last_link_id": len(self._links),
            "nodes": [*drawn, self._note(note_number)],
            "links": self._links,
            "groups": self._groups,
            "config": {},
            "extra": {"ds": {"scale": 0.6, "offset": [NOTE_SIZE[0] + 260, 260]}},
            "version": 0.4,
        }

    def prompt(self) -> dict[str, Any]:
        """Return the graph in ComfyUI's API format."""
        return {
            str(self._numbers[node.key]): {
                "inputs": {
                    **{name: value for name, value, _ in self._widgets(node)},
                    **{name: [str(self._numbers[key]), slot] for name, (key, slot) in node.links.items()},
                },
                "class_type": node.type,
                "_meta": {"title": node.title or self._definitions[node.type]["display_name"]},
            }
            for node in self.nodes
        }

    def _inputs(self, node: Node) -> list[tuple[str, Any, dict, bool]]:
        """Return (name, type, options, optional) of a node's inputs in ComfyUI's order."""
        declared = self._definitions[node.type]["input"]
        return [
            (name, "COMBO" if isinstance(spec[0], list) else spec[0], _options(spec), kind == "optional")
            for kind in ("required", "optional")
            for name, spec in declared.get(kind, {}).items()
            if (node.type, name) not in NEWER_WIDGETS
        ]

    def _widgets(self, node: Node) -> list[tuple[str, Any, dict]]:
        widgets = []
        for name, kind, options, _ in self._inputs(node):
            if kind not in WIDGET_TYPES or options.get("forceInput"):
                continue
            widgets.append((name, node.values.get(name, _default(options)), options))
        unknown = set(node.values) - {name for name, _, _ in widgets}
        if unknown:
            raise ValueError(f"{self.graph.name}: {node.type} has no widgets {sorted(unknown)}")
        return widgets

    def _size(self, node: Node) -> list[int]:
        if node.size:
            return list(node.size)
        definition = self._definitions[node.type]
        widgets = self._widgets(node)
        lines = max(len(self._inputs(node)) - len(widgets), len(definition["output"])) + len(widgets)
        lines += sum(TEXT_LINES for _, _, options in widgets if options.get("multiline"))
        lines += sum(1 for _, _, options in widgets if options.get("control_after_generate"))
        return [WIDTH + (80 if any(options.get("multiline") for _, _, options in widgets) else 0), 20 + LINE * lines]

    def _lay_out(self) -> tuple[dict[str, tuple[int, int]], list[dict]]:
        positions, groups, x = {}, [], 0
        for number, (heading, column) in enumerate(self.graph.columns, start=1):
            y = 0
            for node in column:
                positions[node.key] = (x, y)
                y += self._size(node)[1] + ROW_GAP
            width = max(self._size(node)[0] for node in column)
            bounding = [x - GROUP_MARGIN, -TITLE - GROUP_MARGIN, width + 2 * GROUP_MARGIN, y + TITLE]
            groups.append(
                {"id": number, "title": heading, "bounding": bounding, "color": "#3f789e", "font_size": 24, "flags": {}}
            )
            x += width + COLUMN_GAP
        return positions, groups

    def _drawn(self, node: Node, order: int) -> dict[str, Any]:
        widgets = {name: (value, options) for name, value, options in self._widgets(node)}
        inputs = []
        plain = [entry for entry in self._inputs(node) if entry[0] not in widgets]
        for slot, (name, kind, _, optional) in enumerate(plain):
            entry: dict[str, Any] = {"name": name, "type": kind, "link": None}
            if optional:
                entry["shape"] = 7
            if name in node.links:
                entry["link"] = self._link(node, slot, name, kind)
            inputs.append(entry)
        kinds = {name: kind for name, kind, _, _ in self._inputs(node)}
        inputs += [{"name": name, "type": kinds[name], "widget": {"name": name}, "link": None} for name in widgets]
        values: list[Any] = []
        for value, options in widgets.values():
            values.append(value)
            if options.get("control_after_generate"):
                values.append("fixed")
            if options.get("image_upload"):
                values.append("image")
        definition = self._definitions[node.type]
        ours = definition["python_module"].startswith("custom_nodes.")
        properties: dict[str, Any] = {"cnr_id": PACK if ours else "comfy-core", "Node name for S&R": node.type}
        if node.files:
            properties["models"] = [_model(file) for file in node.files]
        return {
            "id": order + 1,
            "type": node.type,
            **({"title": node.title} if node.title else {}),
            "pos": list(self._positions[node.key]),
            "size": self._size(node),
            "flags": {},
            "order": order,
            "mode": 0,
            "inputs": inputs,
            "outputs": [
                {"name": name, "type": kind, "links": None}
                for name, kind in zip(definition["output_name"], definition["output"], strict=True)
            ],
            "properties": properties,
            "widgets_values": values,
            **(OUR_COLOURS if ours else {}),
        }

    def _link(self, node: Node, slot: int, name: str, kind: str) -> int:
        key, output = node.links[name]
        source = self._definitions[self._by_key[key].type]["output"][output]
        number = len(self._links) + 1
        self._links.append(
            [number, self._numbers[key], output, self._numbers[node.key], slot, source if kind == "*" else kind]
        )
        return number

    def _note(self, number: int) -> dict[str, Any]:
        files = {file.name: file for node in self.nodes for file in node.files}
        needs = "\n".join(f"- `models/{file.folder}`: [{file.name}]({file.url})" for file in files.values())
        text = self.graph.note + (f"\n\n**Files**\n\n{needs}" if needs else "")
        return {
            "id": number,
            "type": "MarkdownNote",
            "title": "Read me",
            "pos": [-NOTE_SIZE[0] - COLUMN_GAP, -TITLE - GROUP_MARGIN + 30],
            "size": list(NOTE_SIZE),
            "flags": {},
            "order": number - 1,
            "mode": 0,
            "inputs": [],
            "outputs": [],
            "properties": {},
            "widgets_values": [text],
            "color": "#432",
            "bgcolor": "#653",
        }


def _options(spec: list[Any]) -> dict[str, Any]:
    """Return an input's options; an old-style list of choices becomes one of them."""
    options = spec[1] if len(spec) > 1 else {}
    return {**options, "options": spec[0]} if isinstance(spec[0], list) else options


def _default(options: dict[str, Any]) -> Any:
    choices = options.get("options") or [""]
    first = choices[0]["key"] if isinstance(choices[0], dict) else choices[0]
    return options.get("default", first)


def _model(file: File) -> dict[str, str]:
    return {"name": file.name, "url": file.url, "directory": file.folder}


def main() -> None:
    with urllib.request.urlopen(f"{sys.argv[1].rstrip('/')}/object_info") as answer:
        definitions = json.load(answer)
    (WORKFLOWS / "api").mkdir(parents=True, exist_ok=True)
    for graph in (toy(), *h3_graphs(), wan(), qwen(), flux(), ltx()):
        drawing = Drawing(graph, definitions)
        workflow = drawing.workflow()
        _write(WORKFLOWS / f"{graph.name}.json", workflow)
        draw_picture(workflow, WORKFLOWS / f"{graph.name}.jpg")
        if graph.api:
            _write(WORKFLOWS / "api" / f"{graph.name}.json", drawing.prompt())


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
