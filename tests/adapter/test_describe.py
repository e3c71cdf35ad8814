"""The row that is printed for a model no table describes: pasted, it is the family that was proven."""

from __future__ import annotations

import dataclasses
import logging
import runpy

import pytest
import torch
from pack.comfy_adapter.families.find import find_stack
from pack.comfy_adapter.families.row import table_row, with_argument_names
from pack.comfy_adapter.families.table import FAMILIES
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from rigs import mock_comfy
from rigs.mock_runs import cached, run_of, sample
from rigs.toy_stacks import WanModel

from dev.describe import describe, tensors

WIDTH = 4
PREAMBLE = """\
from pack.comfy_adapter.families.entry import About, BlockList, Family
from pack.stack.layout import HiddenState, PackedStates, Segment
"""


@pytest.fixture
def pasted(tmp_path):
    """Read rows as Python would in the table's file."""

    def read(row):
        file = tmp_path / "rows.py"
        file.write_text(f"{PREAMBLE}ROWS = (\n    {row}\n)\n", encoding="utf-8")
        [family] = runpy.run_path(str(file))["ROWS"]
        return family

    return read


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_row_of_the_table_comes_back_as_it_was(family, pasted):
    layout = StackLayout(tuple(PlacedSegment(one.segment, at, at + 1) for at, one in enumerate(family.lists)))
    assert pasted(table_row(family, layout)) == family


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)


class ByPlace(Block):
    def forward(self, tokens, temb=None):
        return self.linear(tokens)


class TwoStates(Block):
    def forward(self, temb, *, img, txt):
        return self.linear(txt), self.linear(img)


class Pair(Block):
    def forward(self, both, temb=None):
        return self.linear(both[0]), self.linear(both[1])


class Anything(Block):
    def forward(self, *args):
        return self.linear(args[0])


def place(blocks, x):
    for block in blocks:
        x = block(x, temb=1)
    return x


def keyword(blocks, x):
    txt = x + 1
    for block in blocks:
        txt, x = block(1, img=x, txt=txt)
    return x


def pair(blocks, x):
    both = (x, x + 1)
    for block in blocks:
        both = block(both)
    return both[0]


CASES = {
    "by place": (ByPlace, place, (HiddenState("hidden", "tokens", position=0),)),
    "keywords": (
        TwoStates,
        keyword,
        (HiddenState("state 0", "txt", output=0), HiddenState("state 1", "img", output=1)),
    ),
    "a pair": (
        Pair,
        pair,
        (
            HiddenState("state 0", "both", position=0, item=0, output=0),
            HiddenState("state 1", "both", position=0, item=1, output=1),
        ),
    ),
}


def model_of(block_class, loop, wrapped=False):
    """A model of a class that no table has, which runs its blocks as ``loop`` does."""

    class SomeDiT(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Module()
            self.inner.layers = torch.nn.ModuleList(block_class() for _ in range(4))

        def forward(self, x, timesteps, **kwargs):
            if not wrapped:
                return loop(self.inner.layers, x)
            [wrapper] = kwargs["transformer_options"]["wrappers"]["diffusion_model"].values()
            return wrapper[0](lambda: loop(self.inner.layers, x))

    return SomeDiT()


INPUTS = {"x": [1, 3, WIDTH], "timesteps": [1]}


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare forward", "wrapped forward"])
@pytest.mark.parametrize("case", CASES)
def test_the_row_is_what_was_proven(case, wrapped, pasted):
    block_class, loop, states = CASES[case]
    model = model_of(block_class, loop, wrapped)
    family = pasted(describe(model, tensors(INPUTS)))
    assert (family.name, family.classes) == ("SomeDiT", ("SomeDiT",))
    assert family.wrapper == ("diffusion_model" if wrapped else "apply_model")
    assert [(one.path, one.segment) for one in family.lists] == [("inner.layers", Segment(states))]
    known = find_stack(model, families=(family,))
    assert known.family is family
    assert known.layout == StackLayout((PlacedSegment(Segment(states), 0, 4),))
    assert all(a is b for a, b in zip(known.blocks, find_stack(model).blocks, strict=True))


def test_a_place_without_a_name_stays_without():
    layout = StackLayout((PlacedSegment(Segment((HiddenState("hidden", "", position=0),)), 0, 4),))
    assert with_argument_names(layout, Anything()) == layout
    [named] = with_argument_names(layout, ByPlace()).segments
    assert named == dataclasses.replace(
        layout.segments[0], segment=Segment((HiddenState("hidden", "tokens", position=0),))
    )


def test_inputs_are_shapes_or_the_thing_itself():
    given = tensors({"x": [2, 3], "mask": {"shape": [1, 8], "dtype": "int64"}, "cfg": 3.5, "options": {"a": 1}})
    assert (given["x"].shape, given["mask"].shape, given["mask"].dtype) == ((2, 3), (1, 8), torch.int64)
    assert (given["cfg"], given["options"]) == (3.5, {"a": 1})


def test_missing_inputs_are_named_with_an_example():
    with pytest.raises(SystemExit, match=r"forward also takes timesteps\. Give shapes as in --inputs '\{"):
        describe(model_of(ByPlace, place), tensors({"x": [1, 3, WIDTH]}))


def test_inputs_that_do_not_fit_are_said_with_an_example():
    with pytest.raises(SystemExit, match=r"forward failed: RuntimeError: .*\n.*--inputs"):
        describe(model_of(ByPlace, place), tensors({**INPUTS, "x": [1, 3, WIDTH + 1]}))


def test_a_stack_that_cannot_be_proven_says_why():
    def added(blocks, x):
        for block in blocks:
            x = block(x) + 1
        return x

    with pytest.raises(SystemExit, match=r"SomeDiT cannot be described.*block 1 is not given what block 0 returned"):
        describe(model_of(ByPlace, added), tensors(INPUTS))


class SomeonesWan(WanModel):
    """Wan's calling convention under a name that no table has."""


def test_the_first_call_of_an_unknown_model_says_its_row_once(pasted, caplog):
    model = cached(mock_comfy.ModelPatcher(mock_comfy.BaseModel(SomeonesWan(0, mock_comfy.wrap_diffusion_model))))
    with caplog.at_level(logging.INFO):
        sample(model)
    run = run_of(model)
    assert run["totals"]["hits"] > 0
    [note] = [note for note in run["notes"] if "no table describes this model" in note]
    assert [record.levelname for record in caplog.records if record.getMessage() == note] == ["INFO"]
    family = pasted(note.split("on this call: ")[1])
    [state] = next(one for one in FAMILIES if one.name == "Wan").lists[0].segment.states
    assert family.classes == ("SomeonesWan",)
    assert family.lists[0].segment == Segment((dataclasses.replace(state, name="hidden"),))
