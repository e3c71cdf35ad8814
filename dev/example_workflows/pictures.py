"""Draws a workflow as the small picture that ComfyUI's template browser shows for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDTH, LOWEST, HIGHEST, MARGIN, OVERSAMPLING = 640, 260, 420, 16, 2
BACKGROUND, NODE, OURS, EDGE, GROUP, NOTE = "#202024", "#45454d", "#2f6fb5", "#8a8a94", "#2a2a31", "#6b5836"
WHITE, LINK_WIDTH = "#f2f2f2", 2
LINK_COLOURS = {
    "MODEL": "#b39ddb",
    "CONDITIONING": "#ffa931",
    "LATENT": "#ff9cf9",
    "IMAGE": "#64b5f6",
    "CLIP": "#ffd500",
}


def draw_picture(workflow: dict[str, Any], path: Path) -> None:
    """Save the picture of a workflow in the frontend's format as JPEG."""
    nodes = workflow["nodes"]
    left = min(node["pos"][0] for node in nodes)
    top = min(min(node["pos"][1] for node in nodes), *(group["bounding"][1] for group in workflow["groups"])) - 20
    right = max(node["pos"][0] + node["size"][0] for node in nodes)
    bottom = max(node["pos"][1] + node["size"][1] for node in nodes)
    shown_height = min(HIGHEST, max(LOWEST, round(WIDTH * (bottom - top) / (right - left)) + MARGIN))
    width, height = WIDTH * OVERSAMPLING, shown_height * OVERSAMPLING
    margin = MARGIN * OVERSAMPLING
    scale = min((width - 2 * margin) / (right - left), (height - 2 * margin) / (bottom - top))
    x0, y0 = (width - (right - left) * scale) / 2, (height - (bottom - top) * scale) / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return x0 + (x - left) * scale, y0 + (y - top) * scale

    image = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(image)
    for group in workflow["groups"]:
        x, y, w, h = group["bounding"]
        draw.rounded_rectangle((*at(x, y), *at(x + w, y + h)), 6, fill=GROUP)
    by_number = {node["id"]: node for node in nodes}
    for _, source, output, target, slot, kind in workflow["links"]:
        _curve(draw, at(*_socket(by_number[source], output, True)), at(*_socket(by_number[target], slot, False)), kind)
    font = ImageFont.load_default(max(9, int(30 * scale)))
    for node in nodes:
        x, y = node["pos"]
        w, h = node["size"]
        colour = OURS if node["type"].startswith("DiT") else NOTE if node["type"] == "MarkdownNote" else NODE
        draw.rounded_rectangle((*at(x, y - 30), *at(x + w, y + h)), 5, fill=colour, outline=EDGE)
        _title(draw, at(x + 12, y - 26), node.get("title") or node["type"], font, w * scale * 0.92)
    image.resize((WIDTH, shown_height), Image.Resampling.LANCZOS).save(path, quality=88)


def _socket(node: dict[str, Any], slot: int, output: bool) -> tuple[float, float]:
    return node["pos"][0] + (node["size"][0] if output else 0), node["pos"][1] + 14 + 20 * slot


def _curve(draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
    reach = max(30.0, abs(end[0] - start[0]) / 2)
    points = []
    for step in range(25):
        t = step / 24
        a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
        x = a * start[0] + b * (start[0] + reach) + c * (end[0] - reach) + d * end[0]
        points.append((x, (a + b) * start[1] + (c + d) * end[1]))
    draw.line(points, fill=LINK_COLOURS.get(kind, "#9e9e9e"), width=LINK_WIDTH, joint="curve")


def _title(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, font: ImageFont.ImageFont, width: float
) -> None:
    while len(text) > 3 and draw.textlength(text, font=font) > width:
        text = text[:-1]
    draw.text(at, text, fill=WHITE, font=font)
