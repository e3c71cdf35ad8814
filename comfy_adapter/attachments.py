"""The link from the pack's nodes to the sampling run: one frozen object under one name on the model patcher.

ComfyUI hands a patcher's attachments on to its clones as they are. So nothing here is ever changed: a node attaches
a new object to the clone it puts out, and the patcher it came from keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..dbcache.rules import CacheRules
from ..pictures.run_chart import ChartRun

KEY = "dit_layerwise_offload"
NO_OFFLOAD = "DiT Layerwise Offload is not on this model"


class Report(Protocol):
    """A run's report, as the report node shows it."""

    def summary(self) -> str: ...

    def to_json(self) -> str: ...

    def chart(self) -> ChartRun: ...


class ReportBox:
    """Holds the report of the last run made with one MODEL output; shared by that output's clones."""

    def __init__(self) -> None:
        self.report: Report | None = None


@dataclass(frozen=True)
class Attachments:
    """Carried by one MODEL output; the defaults are those of a model that none of the pack's nodes put out.

    Attributes:
        report: where the report of its last run is put; each node's output has its own.
        cache: DBCache's rules for this model, ``None`` without that node.
        node_id: the DBCache node on which progress is shown.
        engine: who streams, ``layerwise`` or ``comfyui``.
        engine_reason: why.
    """

    report: ReportBox | None = None
    cache: CacheRules | None = None
    node_id: Any = None
    engine: str = "comfyui"
    engine_reason: str = NO_OFFLOAD


def attached(patcher: Any) -> Attachments:
    """Return the attachments of ``patcher``, the defaults where the pack's nodes left none."""
    found: Attachments = patcher.attachments.get(KEY, Attachments())
    return found


def attach(patcher: Any, **changes: Any) -> None:
    """Attach a new object to ``patcher``: the one it has, with ``changes`` to fields of :class:`Attachments`."""
    patcher.set_attachments(KEY, replace(attached(patcher), **changes))
