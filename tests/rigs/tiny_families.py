"""Tiny random-weight models of every DiT family that ComfyUI ships, built through ComfyUI's own model classes."""

from __future__ import annotations

from rigs.tiny_image_families import IMAGE_FAMILIES
from rigs.tiny_video_families import VIDEO_FAMILIES

TINY_FAMILIES = (*IMAGE_FAMILIES, *VIDEO_FAMILIES)
