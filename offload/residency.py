"""Which blocks of a stack stay on the device, and how many of them a budget allows.

Pure functions over block indices and byte counts, so that every decision can be tested without a model.
The policies follow SGLang's ``layerwise_offload.py`` (pull request 35858), where residency is a function of
(number of blocks, residents, policy).
"""

from __future__ import annotations

from collections.abc import Sequence

POLICIES = ("leading", "strided", "cache_aware")


def strided_positions(count: int, total: int) -> tuple[int, ...]:
    """Spread ``count`` positions evenly over ``range(total)``: position k is ``round(k * total / count)``.

    Halves round up (integer arithmetic, so the result never depends on floating point). The positions are
    strictly increasing because ``total / count >= 1``.
    """
    if count == 0:
        return ()
    return tuple((2 * k * total + count) // (2 * count) for k in range(count))


def streamed_blocks(policy: str, total: int, resident: int, *, front: int = 0, back: int = 0) -> tuple[int, ...]:
    """Return the ascending indices of the blocks that are streamed when ``resident`` of ``total`` stay.

    Args:
        policy: ``leading`` keeps blocks ``0 .. resident-1``; ``strided`` spreads the streamed blocks evenly;
            ``cache_aware`` keeps the first ``front`` and last ``back`` blocks first (the ones DBCache always
            runs, so that a cached call moves no bytes) and spreads the streamed blocks over the rest.
        total: number of blocks in the stack.
        resident: number of blocks that stay, clamped to ``0 .. total``.
        front: DBCache's Fn, used by ``cache_aware`` only.
        back: DBCache's Bn, used by ``cache_aware`` only.

    Raises:
        ValueError: ``policy`` is none of :data:`POLICIES`.
    """
    resident = max(0, min(resident, total))
    if policy == "leading":
        return tuple(range(resident, total))
    if policy == "strided":
        return strided_positions(total - resident, total)
    if policy == "cache_aware":
        favoured = _favoured_order(total, front, back)
        if resident <= len(favoured):
            kept = set(favoured[:resident])
            return tuple(index for index in range(total) if index not in kept)
        middle = [index for index in range(total) if index not in set(favoured)]
        return tuple(middle[position] for position in strided_positions(total - resident, len(middle)))
    raise ValueError(f"residency_policy is {policy!r}, but must be one of {', '.join(POLICIES)}.")


def _favoured_order(total: int, front: int, back: int) -> list[int]:
    """Indices of the first ``front`` and last ``back`` blocks without repeats, front first."""
    head = list(range(min(front, total)))
    tail = [index for index in range(max(0, total - back), total) if index >= len(head)]
    return head + tail


def slot_bytes(
    block_bytes: Sequence[int], streamed: Sequence[int], prefetch: int, unpacked: Sequence[int] | None = None
) -> int:
    """Device bytes needed to stream ``streamed``: ``min(prefetch + 1, streamed)`` slots of the largest block's size.

    ``unpacked`` is the part of each block's bytes that fits in no slot and is moved as the block runs (see
    ``BlockWeights.unpacked_bytes``): it is there once, for one block at a time.
    """
    if not streamed:
        return 0
    beside = unpacked or (0,) * len(block_bytes)
    largest = max(block_bytes[index] - beside[index] for index in streamed)
    return min(prefetch + 1, len(streamed)) * largest + max(beside[index] for index in streamed)


def choose_prefetch(
    block_bytes: Sequence[int],
    other_bytes: int,
    budget: float,
    prefetch: int,
    unpacked: Sequence[int] | None = None,
) -> int:
    """Return the prefetch window that fits in ``budget`` when every block is streamed, at most ``prefetch``.

    Residents give way before the window does; a window of 0 (one slot) is the least, whatever the budget.
    """
    every = range(len(block_bytes))
    fits = (p for p in range(prefetch, 0, -1) if other_bytes + slot_bytes(block_bytes, every, p, unpacked) <= budget)
    return next(fits, 0)


def choose_streamed(
    block_bytes: Sequence[int],
    other_bytes: int,
    budget: float,
    *,
    policy: str,
    prefetch: int,
    max_resident: int | None = None,
    front: int = 0,
    back: int = 0,
    unpacked: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the blocks to stream so that all device weights fit in ``budget``, keeping as many as possible.

    Device weights are ``other_bytes`` (everything outside the blocks), the resident blocks and the slots.
    When even streaming every block does not fit, every block is streamed: the remainder is for ComfyUI's own
    loader to place, it owns the weights outside the blocks.

    Args:
        block_bytes: bytes of each block, in execution order.
        other_bytes: bytes of the model's weights outside the blocks.
        budget: device bytes for weights; ``float("inf")`` for no limit.
        policy: one of :data:`POLICIES`.
        prefetch: blocks copied ahead of the running one.
        max_resident: upper limit on resident blocks, ``None`` for none.
        front, back: see :func:`streamed_blocks`.
        unpacked: see :func:`slot_bytes`.
    """
    total = len(block_bytes)
    most = total if max_resident is None else max(0, min(max_resident, total))
    for resident in range(most, 0, -1):
        streamed = streamed_blocks(policy, total, resident, front=front, back=back)
        kept = sum(block_bytes) - sum(block_bytes[index] for index in streamed)
        if other_bytes + kept + slot_bytes(block_bytes, streamed, prefetch, unpacked) <= budget:
            return streamed
    return streamed_blocks(policy, total, 0, front=front, back=back)
