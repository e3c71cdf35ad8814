"""An engine's limits in words, for the log and the run report."""

from __future__ import annotations

from ...stack.copies import MIB
from .pinning import PinnedHostMemory


def engine_notes(lora: str, on_the_fly: bool, pins: PinnedHostMemory | None, unpacked: int) -> list[str]:
    """Return one sentence for each thing that is not as fast as it could be.

    Args:
        lora: the node's ``lora`` input.
        on_the_fly: whether LoRAs are applied at each use.
        pins: pinned host memory, ``None`` where nothing was to be pinned.
        unpacked: bytes of the streamed weights that no slot holds.
    """
    notes = []
    if on_the_fly:
        why = ", because main memory is short" if lora == "auto" else ""
        notes.append(f"LoRAs on streamed blocks are applied on the fly{why}.")
    if pins is not None and pins.pageable_bytes:
        whole = pins.pageable_bytes + pins.pinned_bytes
        notes.append(
            f"{pins.pageable_bytes / MIB:.0f} of {whole / MIB:.0f} MiB of streamed weights could not be pinned; their"
            " copies do not overlap with compute."
        )
    if unpacked:
        notes.append(
            f"{unpacked / MIB:.0f} MiB of streamed weights are of a type that can only be moved whole (GGUF): they are"
            " copied as their block runs, not ahead of it."
        )
    return [f"DiT Layerwise Offload: {note}" for note in notes]
