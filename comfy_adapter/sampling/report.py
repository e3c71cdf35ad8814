"""What a sampling run did, as plain numbers: the report node's JSON and its summary."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

from ...pictures.run_chart import ChartRun

NO_RUN = "No sampling run has been made with this MODEL yet. Connect the sampler's output to 'after'."
NOT_OURS = "This MODEL has neither DiT Layerwise Offload nor DBCache on it. Connect the MODEL they put out."
REPORT_VERSION = 1


@dataclass
class CallRecord:
    """One model call. ``bytes_streamed`` counts copies started during the call, also those for later ones."""

    step: int
    sigma: float
    branch: str
    outcome: str
    reason: str
    diffs: dict[str, float]
    blocks_run: list[int]
    bytes_streamed: int
    bytes_wasted: int


@dataclass
class RunReport:
    """One sampling run; sizes in bytes.

    ``notes`` are the fallbacks and hints that were logged, ``threshold`` is DBCache's, ``streamed_blocks`` are those
    whose weights the pack copies for each use, ``patcher`` is the class of ComfyUI's model patcher, ``cache_bytes``
    the most that DBCache kept between calls.
    """

    model: str
    patcher: str
    comfyui: str
    engine: str
    engine_reason: str
    steps: int
    blocks: int
    placement: str = ""
    calls: list[CallRecord] = field(default_factory=list)
    peak_slot_bytes: int = 0
    cache_bytes: int = 0
    threshold: float | None = None
    streamed_blocks: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def totals(self) -> dict[str, int]:
        """Return the sums over all calls."""
        blocks_run = sum(len(call.blocks_run) for call in self.calls)
        return {
            "calls": len(self.calls),
            "hits": sum(call.outcome == "hit" for call in self.calls),
            "blocks_run": blocks_run,
            "blocks_skipped": max(0, len(self.calls) * self.blocks - blocks_run),
            "bytes_streamed": sum(call.bytes_streamed for call in self.calls),
            "bytes_wasted": sum(call.bytes_wasted for call in self.calls),
            "peak_slot_bytes": self.peak_slot_bytes,
            "cache_bytes": self.cache_bytes,
        }

    def cached_steps(self) -> int:
        """Return the number of sampler steps with at least one cached call."""
        return len({call.step for call in self.calls if call.outcome == "hit"})

    def headline(self) -> str:
        """Return the run in one line."""
        totals = self.totals()
        every = totals["blocks_run"] + totals["blocks_skipped"]
        fewer = every / totals["blocks_run"] if totals["blocks_run"] else 1.0
        return (
            f"{self.cached_steps()} of {self.steps} steps cached, {fewer:.2f}x fewer blocks,"
            f" {mib(totals['bytes_streamed'])} streamed, {mib(totals['bytes_wasted'])} wasted"
        )

    def why_nothing_hit(self) -> str:
        """Return a hint on the commonest reason, or an empty string when calls were cached."""
        if not self.calls or any(call.outcome == "hit" for call in self.calls):
            return ""
        nearest = min((max(call.diffs.values()) for call in self.calls if call.diffs), default=None)
        if nearest is not None:
            return f"DBCache: no step was cached; the smallest difference was {nearest:.3g}, above the threshold."
        reasons = Counter(call.reason for call in self.calls)
        return f"DBCache: no step was cached; most calls: {reasons.most_common(1)[0][0]}."

    def to_json(self) -> str:
        """Return the report as JSON, see the README's "Run report"."""
        return json.dumps(
            {
                "version": REPORT_VERSION,
                "model": self.model,
                "patcher": self.patcher,
                "comfyui": self.comfyui,
                "engine": self.engine,
                "engine_reason": self.engine_reason,
                "placement": self.placement,
                "steps": self.steps,
                "threshold": self.threshold,
                "streamed_blocks": self.streamed_blocks,
                "calls": [asdict(call) for call in self.calls],
                "totals": self.totals(),
                "notes": self.notes,
            }
        )

    def chart(self) -> ChartRun:
        """Return what the run's chart shows."""
        title = f"{self.model}: {self.headline()}"
        return ChartRun(title, self.steps, self.blocks, self.calls, frozenset(self.streamed_blocks), self.threshold)

    def summary(self) -> str:
        """Return a few lines for people."""
        totals = self.totals()
        every = totals["blocks_run"] + totals["blocks_skipped"]
        fewer = every / totals["blocks_run"] if totals["blocks_run"] else 1.0
        cache = f", cache {mib(self.cache_bytes)}" if self.cache_bytes else ""
        lines = [
            f"{self.model} ({self.patcher}), ComfyUI {self.comfyui}, engine {self.engine} ({self.engine_reason})",
            *([self.placement] if self.placement else []),
            f"{self.steps} steps, {totals['calls']} model calls, {totals['hits']} of them cached{cache}",
            f"{totals['blocks_run']} of {every} blocks run ({fewer:.2f}x fewer)",
            f"{mib(totals['bytes_streamed'])} streamed, {mib(totals['bytes_wasted'])} of it for nothing,"
            f" slots {mib(totals['peak_slot_bytes'])}",
        ]
        return "\n".join(lines + self.notes)


class ReportBox:
    """Holds the report of the last run made with one MODEL output; shared by that output's clones."""

    def __init__(self) -> None:
        self.report: RunReport | None = None


def mib(size: int) -> str:
    """Return a size in bytes as MiB."""
    return f"{size / 2**20:.1f} MiB"
