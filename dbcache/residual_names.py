"""The names under which cache-dit keeps the residuals of one branch."""

from __future__ import annotations

FN_SUFFIX = "_Fn_residual"
MIDDLE_SUFFIX = "_Bn_residual"


def fn_residual(state: str) -> str:
    """Return the name of a state's residual over the first blocks."""
    return state + FN_SUFFIX


def middle_residual(start: int, state: str) -> str:
    """Return the name of a state's residual over the middle blocks of the segment that starts at block ``start``:
    states of two segments may be called alike."""
    return f"{start}_{state}{MIDDLE_SUFFIX}"


def state_of(middle: str) -> str:
    """Return the state that a name made by :func:`middle_residual` is of."""
    return middle.partition("_")[2].removesuffix(MIDDLE_SUFFIX)


def buffer_of(residual: str) -> str:
    """Return the key of a residual among the buffers of cache-dit's context."""
    return f"{residual}_buffer"
