"""The row that is printed for a model no table describes: pasted, it is the family that was proven."""

from __future__ import annotations

import dataclasses
import logging
import runpy

import pytest
import torch
from pack.comfy_adapter.families.find import find_stack, lists_left_alone
from pack.comfy_adapter.families.row import table_row, with_argument_names
from pack.comfy_adapter.families.table import FAMILIES
from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
from rigs import mock_comfy
from rigs.mock_runs import cached, run_of, sample
from rigs.toy_stacks import SHAPES, DoubleBlock, Flux, SingleBlock, WanModel

from dev.describe import describe, tensors, warning

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


class SomeonesFlux(Flux):
    """Flux's two lists under a name that no table has."""

    doubles, singles = 0, 0

    def make_blocks(self, generator):
        self.double_blocks = torch.nn.ModuleList([DoubleBlock(generator) for _ in range(self.doubles)])
        self.single_blocks = torch.nn.ModuleList([SingleBlock(generator) for _ in range(self.singles)])


@pytest.mark.parametrize(
    ("doubles", "singles", "proven", "other"),
    [
        (4, 12, "single_blocks", "double_blocks"),
        (8, 4, "double_blocks", "single_blocks"),
        (6, 6, "double_blocks", "single_blocks"),
        (2, 8, "single_blocks", "double_blocks"),
    ],
)
def test_a_second_list_of_blocks_is_named(doubles, singles, proven, other, pasted, monkeypatch):
    monkeypatch.setattr(SomeonesFlux, "doubles", doubles)
    monkeypatch.setattr(SomeonesFlux, "singles", singles)
    base = SomeonesFlux(0, mock_comfy.wrap_diffusion_model)
    warned = warning(base)
    assert f"the blocks of {proven} only" in warned
    assert f"Those of {other} would not be streamed" in warned
    assert "conventions.py: doubles_and_singles" in warned
    model = cached(mock_comfy.ModelPatcher(mock_comfy.BaseModel(base)))
    sample(model)
    [note] = [note for note in run_of(model)["notes"] if "no table describes this model" in note]
    assert f"; the blocks in {other} stay as they are; proven on this call: " in note
    assert [one.path for one in pasted(note.split("on this call: ")[1]).lists] == [proven]


def test_a_model_with_one_list_is_printed_without_a_warning():
    assert warning(model_of(ByPlace, place)) == ""
    model = cached(mock_comfy.ModelPatcher(mock_comfy.BaseModel(SomeonesWan(0, mock_comfy.wrap_diffusion_model))))
    sample(model)
    assert not any("stay as they are" in note for note in run_of(model)["notes"])


def test_only_lists_of_blocks_count_as_left_alone():
    """Not those inside a block or around the known list, nor lists of bare layers or of one block."""

    def blocks(count):
        return torch.nn.ModuleList(ByPlace() for _ in range(count))

    root = torch.nn.Module()
    root.stages = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for stage, count in zip(root.stages, (20, 4), strict=True):
        stage.layers = blocks(count)
    root.stages[0].layers[0].experts = blocks(4)
    root.stages[1].layers[0].experts = blocks(4)
    root.embedders = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
    root.last = blocks(1)
    family = find_stack(root, families=()).family
    assert [one.path for one in family.lists] == ["stages.0.layers"]
    assert lists_left_alone(root, family) == ("stages.1.layers",)


@pytest.mark.parametrize("shape", SHAPES)
def test_known_families_lists_are_all_their_own(shape):
    model = SHAPES[shape](0, mock_comfy.wrap_diffusion_model)
    assert lists_left_alone(model, find_stack(model).family) == ()
