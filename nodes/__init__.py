"""The pack's nodes, one file each. They import the adapter when they execute; only its plain settings come earlier."""

from __future__ import annotations

from .compare import DiTCompare
from .dbcache import DiTDBCache
from .layerwise_offload import DiTLayerwiseOffload
from .run_report import DiTRunReport
from .toy_decode import DiTToyDecode
from .toy_model import DiTToyModel

NODES = [DiTLayerwiseOffload, DiTDBCache, DiTRunReport, DiTCompare, DiTToyModel, DiTToyDecode]
