"""How many bytes were copied to the device, and how many of them for nothing, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

NOT_CALLED = "not called"
WEIGHTS_CHANGED = "weights changed"
SLOTS_GIVEN_BACK = "slots given back"
BLOCK_FAILED = "block failed"
MIB = 2**20


@dataclass
class CopyCounts:
    """Bytes of copies, of one model call or of everything an engine did.

    Attributes:
        streamed: all that was copied.
        wasted: the part of it whose block did not run from that copy, by reason: the block was ``not called`` after
            all, its ``weights changed``, ComfyUI had the ``slots given back``, or the ``block failed``.
    """

    streamed: int = 0
    wasted: dict[str, int] = field(default_factory=dict)

    @property
    def wasted_bytes(self) -> int:
        """The bytes copied for nothing, for whatever reason."""
        return sum(self.wasted.values())

    def waste(self, size: int, reason: str) -> None:
        """Count ``size`` bytes that were copied before as copied for nothing."""
        self.wasted[reason] = self.wasted.get(reason, 0) + size

    def copy(self) -> CopyCounts:
        """Return the counts as they are now."""
        return CopyCounts(self.streamed, dict(self.wasted))

    def since(self, before: CopyCounts) -> CopyCounts:
        """Return the growth since earlier counts of the same engine."""
        grown = {reason: size - before.wasted.get(reason, 0) for reason, size in self.wasted.items()}
        return CopyCounts(self.streamed - before.streamed, {reason: size for reason, size in grown.items() if size})


def mib(size: float) -> str:
    """Return a size in bytes in MiB, for people."""
    return f"{size / MIB:.1f} MiB"
