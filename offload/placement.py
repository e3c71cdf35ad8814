"""Which blocks stay on the device and how far to copy ahead, where the user leaves that open; with a reason.

The rules come from the simulated runs in ``bench/`` and are checked against them:
- As many blocks stay as the budget allows: a block that stays never makes a call slower.
- One block ahead until something was measured: two slots nearly always keep the busier of bus and compute busy.
- Then the window with the shortest call, if it is worth it: none where a block more that stays saves more than overlap
  does, two or more where copies and compute take about equally long. Each block ahead costs the room of one that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .residency import choose_prefetch, choose_streamed, slot_bytes
from .timing import BlockTiming

USUAL_WINDOW = 1
WIDEST_WINDOW = 4
WORTH_IT = 0.97
WITHOUT_WINDOW = {
    "asked": "prefetch_blocks is 0, so copies and compute take turns",
    "one block": "it is the only one",
    "one slot": "the budget has room for one slot only, so copies and compute take turns",
}


@dataclass(frozen=True)
class Placement:
    """Which blocks are streamed, how far ahead they are copied, and why. Equal when that is the same.

    Attributes:
        streamed: ascending block indices.
        prefetch: blocks copied ahead of the running one.
        policy: the residency policy that chose them.
        limit: why there was no choice of ``prefetch``: ``no room`` for even one block, room for ``one slot`` only, just
            ``one block`` to stream, or none ``asked`` for.
        reason: one line for people.
    """

    streamed: tuple[int, ...] = ()
    prefetch: int = 0
    policy: str = field(default="", compare=False)
    limit: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)


def choose_placement(
    block_bytes: Sequence[int],
    other_bytes: int,
    budget: float,
    *,
    cached: bool = False,
    front: int = 0,
    back: int = 0,
    policy: str | None = None,
    prefetch: int | None = None,
    max_resident: int | None = None,
    timing: BlockTiming | None = None,
    unpacked: Sequence[int] | None = None,
) -> Placement:
    """Return the placement with which all device weights fit in ``budget``.

    Args:
        block_bytes: bytes of each block, in execution order.
        other_bytes: bytes of the model's weights outside the blocks.
        budget: device bytes for weights; infinite for no limit.
        cached: whether DBCache is on the model; ``front`` and ``back`` are then its Fn and Bn.
        policy: a residency policy, ``None`` to choose.
        prefetch: blocks to copy ahead, ``None`` to choose.
        max_resident: upper limit on resident blocks, ``None`` for none.
        timing: the figures of an earlier call, ``None`` before the first.
        unpacked: the part of each block's bytes that no slot holds, ``None`` for no part of any.
    """

    def placed(window: int, policy: str) -> Placement:
        fitting = choose_prefetch(block_bytes, other_bytes, budget, window, unpacked)
        streamed = choose_streamed(
            block_bytes,
            other_bytes,
            budget,
            policy=policy,
            prefetch=fitting,
            max_resident=max_resident,
            front=front,
            back=back,
            unpacked=unpacked,
        )
        ahead = min(fitting, len(streamed) - 1) if streamed and prefetch is None else fitting
        limit = ""
        if other_bytes + slot_bytes(block_bytes, streamed, 0, unpacked) > budget:
            limit = "no room"
        elif prefetch == 0:
            limit = "asked"
        elif fitting == 0 < window:
            limit = "one slot"
        elif len(streamed) == 1:
            limit = "one block"
        return Placement(streamed, ahead if streamed else 0, policy, limit=limit)

    usual = policy or ("cache_aware" if cached else "strided")
    chosen = placed(USUAL_WINDOW if prefetch is None else prefetch, usual)
    if timing is not None and chosen.streamed:
        windows = range(WIDEST_WINDOW + 1) if prefetch is None else (prefetch,)
        policies = (usual,) if policy or cached else (usual, "leading")
        candidates = [placed(window, one) for one in policies for window in windows]
        best = min(candidates, key=lambda one: call_ms(block_bytes, one, timing))
        if call_ms(block_bytes, best, timing) < WORTH_IT * call_ms(block_bytes, chosen, timing):
            chosen = best
    return replace(chosen, reason=explain(block_bytes, chosen, timing))


def call_ms(block_bytes: Sequence[int], placement: Placement, timing: BlockTiming) -> float:
    """Return the milliseconds of a full model call that follows another.

    Copies follow one another on the bus, each into a slot that the streamed block ``prefetch + 1`` before it has left;
    a block computes after the one before it and after its copy.
    """
    streamed, slots = set(placement.streamed), placement.prefetch + 1
    bus = compute = first_call = 0.0
    ended: list[float] = []
    for call in range(2):
        for index, size in enumerate(block_bytes):
            if index in streamed:
                slot_free = ended[-slots] if len(ended) >= slots else 0.0
                bus = max(bus, slot_free) + size / timing.bytes_per_ms
                compute = max(compute, bus)
            compute += timing.compute_ms
            if index in streamed:
                ended.append(compute)
        first_call = first_call if call else compute
    return compute - first_call


def explain(block_bytes: Sequence[int], placement: Placement, timing: BlockTiming | None) -> str:
    """Return the placement and the reason for it in one line."""
    total, streamed = len(block_bytes), placement.streamed
    if not streamed:
        return f"all {total} blocks stay on the device, nothing is streamed"
    chosen = f"{total - len(streamed)} of {total} blocks stay ({placement.policy}), {placement.prefetch} copied ahead"
    if placement.limit == "no room":
        return f"{chosen}: the budget has no room for even one block beside the other weights"
    if timing is None:
        return f"{chosen}: as many as may, no times measured"
    copies = sum(block_bytes[index] for index in streamed) / timing.bytes_per_ms
    computing, call = timing.compute_ms * total, call_ms(block_bytes, placement, timing)
    if placement.prefetch == 0:
        why = WITHOUT_WINDOW.get(placement.limit, "a block more that stays is worth more than copying ahead")
    elif call <= computing / WORTH_IT:
        why = "copies hide behind compute"
    elif call <= copies / WORTH_IT:
        why = "the bus is the limit"
    else:
        why = f"copies hide in part, {call:.3g} ms a call for {computing:.3g} ms of compute"
    return (
        f"{chosen}: {why} ({copies / len(streamed):.3g} ms to copy a block, {timing.compute_ms:.3g} ms to compute one)"
    )
