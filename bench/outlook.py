"""What the engine is told when a model call begins, as the nodes tell it in ComfyUI."""

from __future__ import annotations

from typing import Any

from pack.dbcache.session import DBCacheSession
from pack.offload.schedule import head_plan


def outlook(session: DBCacheSession | None, blocks: int, call: int, calls: int) -> dict[str, Any]:
    """Return the arguments of ``BlockStreamer.begin_call``.

    Args:
        session: the cache, ``None`` to run without.
        blocks: in the stack.
        call: number of the call, from 0, one a sampler step.
        calls: in the run.
    """
    last = call + 1 == calls
    if session is None:
        return {"plan": None, "next_head": None if last else blocks, "always": None, "computed_later": False}
    return {
        "plan": head_plan(session.head, blocks),
        "next_head": None if last else session.head,
        "always": session.always,
        "computed_later": session.computes_after(call),
    }


def why_closed(session: DBCacheSession, call: int, calls: int) -> str:
    """Return why a call may not hit, whatever its residual: the last step is computed where the settings say so."""
    return "last step" if session.settings.compute_last_step and call + 1 == calls else ""
