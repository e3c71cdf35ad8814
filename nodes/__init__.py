"""The pack's nodes, one file each. They import the adapter only when they execute."""

from __future__ import annotations

from .dbcache import DiTDBCache
from .layerwise_offload import DiTLayerwiseOffload
from .run_report import DiTRunReport

NODES = [DiTLayerwiseOffload, DiTDBCache, DiTRunReport]
