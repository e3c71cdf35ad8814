"""The row printed for classes of ComfyUI's own agrees with the table on all but the names of the hidden states."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dev.describe import build
from dev.packages import REPOSITORY

WAN = {"dim": 64, "ffn_dim": 64, "freq_dim": 32, "text_dim": 32, "num_heads": 2, "num_layers": 4}
WAN_INPUTS = {"x": [1, 16, 1, 8, 8], "timestep": [1], "context": [1, 4, 32]}


def test_the_command_prints_wans_row(pack, tmp_path):
    command = [sys.executable, "-m", "dev.describe", "comfy.ldm.wan.model.WanModel", json.dumps(WAN)]
    command += ["--inputs", json.dumps(WAN_INPUTS)]
    done = subprocess.run(command, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, check=True)
    [row] = [line for line in done.stdout.splitlines() if line.startswith("Family(")]
    known = next(one for one in pack.module("comfy_adapter.families.table").FAMILIES if one.name == "Wan")
    [state] = known.lists[0].segment.states
    assert known.wrapper == "diffusion_model"  # the default, which a row leaves out
    assert row == (
        'Family("WanModel", ("WanModel",), (BlockList("blocks", Segment((HiddenState("hidden",'
        f' "{state.argument}", position={state.position}),))),)),'
    )


def test_sizes_that_do_not_fit_and_names_that_are_not_there_are_said():
    with pytest.raises(SystemExit, match=r"WanModel could not be built.*\n.*as JSON behind the class.*num_layers"):
        build("comfy.ldm.wan.model.WanModel", {"layers": 4})
    with pytest.raises(SystemExit, match=r"NoModel is no class of this ComfyUI.*module\.Class"):
        build("comfy.ldm.wan.model.NoModel", {})
