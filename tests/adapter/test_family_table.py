"""The family table: consistent with itself, and the documentation's page is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pack.comfy_adapter.families.find import family_of, find_stack
from pack.comfy_adapter.families.table import FAMILIES

from dev.family_page import TESTED, render

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf-8") == render(), "docs/families.md is stale: run 'nox -s families'"


def test_no_class_is_claimed_twice():
    classes = [name for family in FAMILIES for name in family.classes]
    assert len(classes) == len(set(classes))
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_entries_are_complete(family):
    assert family.since in TESTED
    assert family.wrapper in ("diffusion_model", "apply_model")
    for block_list in family.lists:
        outputs = [state.output for state in block_list.states]
        assert outputs == [None] or sorted(outputs) == list(range(len(outputs)))
        assert len({state.name for state in block_list.states}) == len(block_list.states)


def test_only_the_exact_class_is_taken():
    """A subclass may have a loop of its own."""

    class WanModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleDict({"block0": torch.nn.Linear(1, 1), "block1": torch.nn.Linear(1, 1)})

    class OtherWanModel(WanModel):
        pass

    assert family_of(WanModel()).name == "Wan"
    assert family_of(OtherWanModel()) is None
    assert len(find_stack(WanModel()).blocks) == 2
