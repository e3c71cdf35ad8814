"""Which ControlNets of a run act at a noise level."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from rigs import mock_comfy

mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.sampling.control_ranges import ControlRanges, patches_acting  # noqa: E402


def control(start, end, previous=None):
    return SimpleNamespace(timestep_percent_range=(start, end), previous_controlnet=previous)


def falling(percent):
    return 1.0 - percent


def test_every_control_of_every_condition_and_chain_is_found():
    chain = control(0.5, 1.0, previous=control(0.0, 0.5, previous=control(0.25, 0.75)))
    conds = {"positive": [{"control": chain}, {}], "negative": [{"control": control(0.0, 0.1)}], "middle": []}
    ranges = ControlRanges(conds, falling)
    assert ranges.acting(0.95) == (False, True, False, True)
    assert ranges.acting(0.6) == (False, True, True, False)
    assert ranges.acting(0.4) == (True, False, True, False)
    assert ranges.acting(0.1) == (True, False, False, False)


def test_both_ends_belong_to_the_range_as_comfyui_rounds_them():
    """ComfyUI compares its float32 noise level with the range's end; a tenth is not the same number in both."""
    for percent in (0.9, 0.7, 0.3):
        level = torch.tensor(falling(percent), dtype=torch.float32)
        for start, end in ((percent, 1.0), (0.0, percent)):
            (acting,) = ControlRanges({"positive": [{"control": control(start, end)}]}, falling).acting(level.item())
            assert acting is not bool(level > falling(start) or level < falling(end))
            assert acting


def test_there_are_none_where_conditions_are_not_as_comfyuis():
    other = SimpleNamespace()
    for conds in (None, [], [torch.zeros(1)], {"positive": None}, {"positive": [torch.zeros(1)]}):
        assert ControlRanges(conds, falling).acting(0.5) == ()
    assert ControlRanges({"positive": [{"control": other}]}, falling).acting(0.5) == ()
    assert ControlRanges().acting(0.5) == ()


def test_patches_with_a_range_are_found_others_are_not():
    early, late = SimpleNamespace(sigma_start=1.0, sigma_end=0.5), SimpleNamespace(sigma_start=0.4, sigma_end=0.0)
    options = {"patches": {"double_block": [early, len], "post_input": [late]}}
    assert patches_acting(options, 0.7) == (True, False)
    assert patches_acting(options, 0.45) == (False, False)
    assert patches_acting(options, 0.4) == (False, True)
    assert patches_acting({}, 0.4) == patches_acting({"patches": {}}, 0.4) == ()


def test_patches_that_replace_blocks_have_the_range_of_what_they_hold():
    """As MiniMax-H3's ControlNet does it: its patches on single blocks share it, and chain to what they replaced."""
    early, late = SimpleNamespace(sigma_start=1.0, sigma_end=0.5), SimpleNamespace(sigma_start=0.6, sigma_end=0.0)
    first = SimpleNamespace(control_patch=early, block_index=3, previous=None)
    second = SimpleNamespace(control_patch=late, block_index=3, previous=first)
    options = {"patches_replace": {"dit": {("double_block", 3): second, ("double_block", 5): len}}}
    assert patches_acting(options, 0.7) == (False, True)
    assert patches_acting(options, 0.55) == (True, True)
    assert patches_acting(options, 0.3) == (True, False)
    assert patches_acting({"patches_replace": {"attn1": {}}}, 0.3) == ()


def test_a_range_of_tensors_counts_as_one_of_numbers():
    patch = SimpleNamespace(sigma_start=torch.tensor(1.0), sigma_end=torch.tensor(0.5))
    options = {"patches": {"double_block": [patch]}}
    assert patches_acting(options, 0.7) == (True,)
    assert patches_acting(options, 0.4) == (False,)


def test_other_attributes_of_those_names_are_no_range():
    odd = SimpleNamespace(sigma_start="early", sigma_end=None, previous=SimpleNamespace(sigma_start=1.0))
    assert patches_acting({"patches": {"double_block": [odd]}}, 0.5) == ()
