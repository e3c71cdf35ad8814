"""Every DiT family that ComfyUI ships, as data. Facts measured on ComfyUI 0.3.75 and 0.33 with tiny models.

docs/families.md is this table, rendered; ``nox -s families`` writes it anew.
"""

from __future__ import annotations

from .audio_and_shape import AUDIO_AND_SHAPE_FAMILIES
from .entry import Family
from .image import IMAGE_FAMILIES
from .video import VIDEO_FAMILIES

FAMILIES: tuple[Family, ...] = (*IMAGE_FAMILIES, *VIDEO_FAMILIES, *AUDIO_AND_SHAPE_FAMILIES)
