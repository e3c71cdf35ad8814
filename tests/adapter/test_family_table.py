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
    assert family.about.since in TESTED
    assert family.wrapper in ("diffusion_model", "apply_model")
    for block_list in family.lists:
        outputs = [state.output for state in block_list.segment.states]
        assert outputs == [None] or sorted(outputs) == list(range(len(outputs)))
        assert len({state.name for state in block_list.segment.states}) == len(block_list.segment.states)


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


class WithoutForward(torch.nn.Module):
    """A block that its model drives by other methods."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def attend(self, x):
        return self.linear(x)


class WithForward(WithoutForward):
    def forward(self, x):
        return self.attend(x)


def model_of(name, path, blocks):
    """A model of a class called ``name`` with its blocks in one list."""
    model = type(name, (torch.nn.Module,), {})()
    setattr(model, path, torch.nn.ModuleList(blocks))
    return model


@pytest.mark.parametrize(("name", "path"), [("SomebodysDiT", "layers"), ("WanModel", "blocks")], ids=["guess", "table"])
@pytest.mark.parametrize("at", [0, 3])
def test_blocks_driven_by_other_methods_are_refused_by_name(name, path, at):
    assert len(find_stack(model_of(name, path, [WithForward() for _ in range(4)])).blocks) == 4
    blocks = [WithForward() for _ in range(4)] if name == "WanModel" else [WithoutForward() for _ in range(4)]
    blocks[at] = WithoutForward()
    with pytest.raises(ValueError, match=rf"model is a {name} .*WithoutForward.*other methods.*Remove this node"):
        find_stack(model_of(name, path, blocks))


def test_a_compiled_block_is_judged_by_the_block_inside():
    """torch.compile's wrapper has a forward of its own."""
    fine, driven = ([torch.compile(made()) for _ in range(4)] for made in (WithForward, WithoutForward))
    assert len(find_stack(model_of("WanModel", "blocks", fine)).blocks) == 4
    with pytest.raises(ValueError, match="WithoutForward"):
        find_stack(model_of("WanModel", "blocks", driven))


def test_a_forward_that_another_pack_put_on_a_block_counts():
    blocks = [WithoutForward() for _ in range(4)]
    for block in blocks:
        block.forward = block.attend
    assert len(find_stack(model_of("SomebodysDiT", "layers", blocks)).blocks) == 4
