"""The offload node's inputs, validated: their choices, limits and defaults, which the node's schema takes from here.

Needs neither ComfyUI nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...offload.residency import POLICIES

ENGINES = ("auto", "layerwise", "comfyui")
RESIDENCY_POLICIES = ("auto", *POLICIES)
PIN_MEMORY = ("auto", "on", "off")
LORA_MODES = ("auto", "bake", "on_the_fly")
MOST_PREFETCH = 16
AUTO = -1


@dataclass(frozen=True)
class OffloadSettings:
    """The inputs by name; ``offload/placement.py`` chooses where an input leaves it the choice.

    Attributes:
        engine: who streams. ``auto`` leaves a model under dynamic VRAM to ComfyUI and streams all others.
        resident_blocks: the most blocks that stay on the device, -1 for as many as fit.
        vram_budget_gb: GiB on the device for weights, 0 for ComfyUI's own figure.
        residency_policy: which blocks stay, ``auto`` to have it chosen.
        prefetch_blocks: blocks copied ahead of the running one, -1 to have it chosen.
        pin_memory: whether streamed weights are pinned in main memory; ``auto`` is ``on``.
        lora: how LoRAs reach streamed blocks; ``auto`` bakes as long as main memory has room.
    """

    engine: str = "auto"
    resident_blocks: int = AUTO
    vram_budget_gb: float = 0.0
    residency_policy: str = "auto"
    prefetch_blocks: int = AUTO
    pin_memory: str = "auto"
    lora: str = "auto"

    def __post_init__(self) -> None:
        _one_of("engine", self.engine, ENGINES)
        _one_of("residency_policy", self.residency_policy, RESIDENCY_POLICIES)
        _one_of("pin_memory", self.pin_memory, PIN_MEMORY)
        _one_of("lora", self.lora, LORA_MODES)
        if self.resident_blocks < AUTO:
            raise ValueError(
                f"resident_blocks is {self.resident_blocks}, but must be at least 0, or -1 for as many as fit."
            )
        if not self.vram_budget_gb >= 0:
            raise ValueError(
                f"vram_budget_gb is {self.vram_budget_gb}, but must be positive, or 0 for ComfyUI's own figure."
            )
        if self.prefetch_blocks != AUTO and not 0 <= self.prefetch_blocks <= MOST_PREFETCH:
            raise ValueError(
                f"prefetch_blocks is {self.prefetch_blocks}, but must be between 0 and {MOST_PREFETCH}, or -1 to have"
                " it chosen."
            )

    @property
    def budget_bytes(self) -> float:
        """Device bytes for weights; infinite when ComfyUI's own figure is to count."""
        return self.vram_budget_gb * 2**30 if self.vram_budget_gb > 0 else float("inf")

    @property
    def policy(self) -> str | None:
        """The residency policy asked for, ``None`` for auto."""
        return None if self.residency_policy == "auto" else self.residency_policy

    @property
    def prefetch(self) -> int | None:
        """The blocks to copy ahead that were asked for, ``None`` for auto."""
        return None if self.prefetch_blocks == AUTO else self.prefetch_blocks


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}, but must be one of {', '.join(allowed)}.")
