"""The record of a sampling run in plain numbers: the report node's JSON and its summary."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from ...pictures.run_chart import ChartRun
from ...stack.copies import CopyCounts, mib

NO_RUN = "No sampling run has been made with this MODEL yet. Connect the sampler's output to 'after'."
NOT_OURS = "This MODEL has neither DiT Layerwise Offload nor DBCache on it. Connect the MODEL they put out."
REPORT_VERSION = 2


@dataclass
class CallRecord:
    """One model call.

    ``copies`` are the copies started during the call, also those for later calls. Those that a later call, or
    something between two calls, makes useless are counted here.
    """

    step: int
    sigma: float
    branch: str
    outcome: str
    reason: str
    diffs: dict[str, float]
    blocks_run: list[int]
    copies: CopyCounts = field(default_factory=CopyCounts)

    @property
    def bytes_streamed(self) -> int:
        return self.copies.streamed

    @property
    def bytes_wasted(self) -> int:
        return self.copies.wasted_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as the report's JSON has them."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "copies"}
        return plain | bytes_of(self.copies)


def bytes_of(copies: CopyCounts) -> dict[str, Any]:
    """Return counted copies as the report's JSON has them."""
    return {
        "bytes_streamed": copies.streamed,
        "bytes_wasted": copies.wasted_bytes,
        "bytes_wasted_by_reason": dict(copies.wasted),
    }


@dataclass
class RunReport:
    """One sampling run; sizes in bytes.

    ``notes`` are the fallbacks and hints that were logged, ``threshold`` is DBCache's, ``streamed_blocks`` are those
    whose weights the pack copies for each use, ``patcher`` is the class of ComfyUI's model patcher, ``cache_bytes``
    the most that DBCache kept between calls, ``copies`` the engine's copies from the run's start to its end,
    ``block_ms`` the milliseconds one block computes, ``None`` where that was not measured.
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
    copies: CopyCounts = field(default_factory=CopyCounts)
    peak_slot_bytes: int = 0
    cache_bytes: int = 0
    block_ms: float | None = None
    threshold: float | None = None
    streamed_blocks: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def blocks_run(self) -> int:
        return sum(len(call.blocks_run) for call in self.calls)

    @property
    def blocks_skipped(self) -> int:
        return max(0, len(self.calls) * self.blocks - self.blocks_run)

    @property
    def skipped_share(self) -> float:
        """The speed a report states: which share of the block work was skipped, 0 to 1."""
        every = self.blocks_run + self.blocks_skipped
        return self.blocks_skipped / every if every else 0.0

    @property
    def seconds_skipped(self) -> float | None:
        """The compute time of the skipped blocks, ``None`` where blocks were not timed."""
        return None if self.block_ms is None else self.blocks_skipped * self.block_ms / 1000

    def totals(self) -> dict[str, Any]:
        """Return the figures of the whole run."""
        return {
            "calls": len(self.calls),
            "hits": sum(call.outcome == "hit" for call in self.calls),
            "blocks_run": self.blocks_run,
            "blocks_skipped": self.blocks_skipped,
            "skipped_share": self.skipped_share,
            "seconds_skipped": self.seconds_skipped,
            **bytes_of(self.copies),
            "peak_slot_bytes": self.peak_slot_bytes,
            "cache_bytes": self.cache_bytes,
        }

    def cached_steps(self) -> int:
        """Return the number of sampler steps with at least one cached call."""
        return len({call.step for call in self.calls if call.outcome == "hit"})

    def headline(self) -> str:
        """Return the run in one line."""
        return (
            f"{self.cached_steps()} of {self.steps} steps cached, {self._speed()},"
            f" {mib(self.copies.streamed)} streamed, {mib(self.copies.wasted_bytes)} wasted{self._why_wasted()}"
        )

    def _speed(self) -> str:
        seconds = self.seconds_skipped
        timed = f" ({seconds:.1f} s of compute)" if seconds else ""
        return f"{self.skipped_share:.0%} of the block work skipped{timed}"

    def _why_wasted(self) -> str:
        wasted = sorted(self.copies.wasted.items(), key=lambda one: -one[1])
        if len(wasted) < 2:
            return "".join(f" ({reason})" for reason, _ in wasted)
        return f" ({', '.join(f'{reason} {mib(size)}' for reason, size in wasted)})"

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
                "calls": [call.as_dict() for call in self.calls],
                "totals": self.totals(),
                "notes": self.notes,
            }
        )

    def chart(self) -> ChartRun:
        """Return the figures of the run's chart."""
        title = f"{self.model}: {self.headline()}"
        return ChartRun(title, self.steps, self.blocks, self.calls, frozenset(self.streamed_blocks), self.threshold)

    def summary(self) -> str:
        """Return a few lines for people."""
        cache = f", cache {mib(self.cache_bytes)}" if self.cache_bytes else ""
        hits = sum(call.outcome == "hit" for call in self.calls)
        lines = [
            f"{self.model} ({self.patcher}), ComfyUI {self.comfyui}, engine {self.engine} ({self.engine_reason})",
            *([self.placement] if self.placement else []),
            f"{self.steps} steps, {len(self.calls)} model calls, {hits} of them cached{cache}",
            f"{self.blocks_run} of {self.blocks_run + self.blocks_skipped} blocks run: {self._speed()}",
            f"{mib(self.copies.streamed)} streamed, {mib(self.copies.wasted_bytes)} of it for nothing"
            f"{self._why_wasted()}, slots {mib(self.peak_slot_bytes)}",
        ]
        return "\n".join(lines + self.notes)
