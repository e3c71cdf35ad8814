"""A proven stack as a row of the family table: Python text to paste."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import torch

from ...stack.layout import StackLayout
from .entry import BlockList, Family

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def with_argument_names(layout: StackLayout, block: torch.nn.Module) -> StackLayout:
    """Return a proven layout with names for the arguments that the prover only knows by place, read from the
    signature of ``block``'s forward."""
    parameters = inspect.signature(block.forward).parameters.values()
    names = [one.name for one in parameters if one.kind in _BY_PLACE]

    def named(state: Any) -> Any:
        known = state.argument or state.position is None or state.position >= len(names)
        return state if known else dataclasses.replace(state, argument=names[state.position])

    return StackLayout(
        tuple(
            dataclasses.replace(
                placed, segment=dataclasses.replace(placed.segment, states=tuple(map(named, placed.segment.states)))
            )
            for placed in layout.segments
        )
    )


def table_row(family: Family, layout: StackLayout) -> str:
    """Return the table's row for ``family``, whose block lists go by ``layout``, on one line. Defaults are left out."""
    lists = tuple(
        BlockList(one.path, placed.segment) for one, placed in zip(family.lists, layout.segments, strict=True)
    )
    return f"{_source(dataclasses.replace(family, lists=lists))},"


def _source(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_source, value))}{',' if len(value) == 1 else ''})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = [
        _source(getattr(value, one.name)) if _is_required(one) else f"{one.name}={_source(getattr(value, one.name))}"
        for one in dataclasses.fields(value)
        if _is_required(one) or getattr(value, one.name) != _default(one)
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def _is_required(one: dataclasses.Field) -> bool:
    return _default(one) is dataclasses.MISSING


def _default(one: dataclasses.Field) -> Any:
    return one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
