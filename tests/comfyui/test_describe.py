"""The row printed for classes of ComfyUI's own agrees with the table on all but the names of the hidden states."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from comfy.ldm.flux.model import FluxParams
from rigs.tiny_sizes import FLUX

from dev.describe import build
from dev.packages import REPOSITORY

WAN = {"dim": 64, "ffn_dim": 64, "freq_dim": 32, "text_dim": 32, "num_heads": 2, "num_layers": 4}
WAN_INPUTS = {"x": [1, 16, 1, 8, 8], "timestep": [1], "context": [1, 4, 32]}
FLUX_INPUTS = {
    "x": [1, 16, 8, 8],
    "timestep": [1],
    "context": [1, 4, FLUX["context_in_dim"]],
    "y": [1, FLUX["vec_in_dim"]],
    "guidance": [1],
}


def printed(model, arguments, inputs):
    command = [sys.executable, "-m", "dev.describe", model, json.dumps(arguments), "--inputs", json.dumps(inputs)]
    done = subprocess.run(command, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, check=True)
    [row] = [line for line in done.stdout.splitlines() if line.startswith("Family(")]
    return row, done.stdout


def test_the_command_prints_wans_row(pack):
    row, text = printed("comfy.ldm.wan.model.WanModel", WAN, WAN_INPUTS)
    assert "Warning" not in text
    known = next(one for one in pack.module("comfy_adapter.families.table").FAMILIES if one.name == "Wan")
    [state] = known.lists[0].segment.states
    assert known.wrapper == "diffusion_model"  # the default, which a row leaves out
    assert row == (
        'Family("WanModel", ("WanModel",), (BlockList("blocks", Segment((HiddenState("hidden",'
        f' "{state.argument}", position={state.position}),))),)),'
    )


@pytest.mark.parametrize(
    ("doubles", "singles", "proven", "other"),
    [(4, 12, "single_blocks", "double_blocks"), (6, 6, "double_blocks", "single_blocks")],
)
def test_the_command_warns_of_flux_second_list(doubles, singles, proven, other):
    known = {one.name for one in dataclasses.fields(FluxParams)}  # a later ComfyUI has more of them
    sizes = {name: value for name, value in FLUX.items() if name in known}
    sizes |= {"depth": doubles, "depth_single_blocks": singles}
    row, text = printed("comfy.ldm.flux.model.Flux", sizes, FLUX_INPUTS)
    assert f'(BlockList("{proven}", ' in row
    assert other not in row
    assert f"Warning: the row has the blocks of {proven} only. Those of {other} would" in text


def test_sizes_that_do_not_fit_and_names_that_are_not_there_are_said():
    with pytest.raises(SystemExit, match=r"WanModel could not be built.*\n.*as JSON behind the class.*num_layers"):
        build("comfy.ldm.wan.model.WanModel", {"layers": 4})
    with pytest.raises(SystemExit, match=r"NoModel is no class of this ComfyUI.*module\.Class"):
        build("comfy.ldm.wan.model.NoModel", {})
