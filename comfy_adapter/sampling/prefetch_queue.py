"""ComfyUI's own prefetching under dynamic VRAM: blocks about to be skipped are taken out of its queue.

Some models walk a queue of their blocks and have each one's weights cast just before it runs. Blocks that the
cache is going to skip would be cast for nothing. Entries keep their places: only those of skipped blocks become
empty, and only those that are not under way yet (those are tuples with more in them than modules).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...stack.call import Listener
from ..versions import model_prefetch


def leaving_out(blocks: Sequence[torch.nn.Module]) -> Listener:
    """Return a listener for the cache's announcement of the blocks that will run: it empties the entries of all other
    ``blocks`` in the queue of the model call in progress, if ComfyUI has one."""

    def listener(to_run: Sequence[int], ran: Sequence[int]) -> None:
        coming = {*to_run, *ran}
        leave_out(block for index, block in enumerate(blocks) if index not in coming)

    return listener


def leave_out(skipped: Iterable[torch.nn.Module]) -> None:
    """Empty the entries of ``skipped`` in the queue of the model call in progress, if ComfyUI has one."""
    queues = getattr(model_prefetch, "PREFETCH_QUEUES", None)
    if not queues:
        return
    queue, left_out = queues[-1], {id(block) for block in skipped}
    for position, entry in enumerate(queue):
        # newer versions queue several modules in one entry
        modules = entry if isinstance(entry, list | tuple) else (entry,)
        if modules and all(isinstance(one, torch.nn.Module) and id(one) in left_out for one in modules):
            queue[position] = None
