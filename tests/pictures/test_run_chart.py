"""The run's chart: what is drawn where, in which colours, and that matplotlib's global state stays as it was."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from pack.comfy_adapter.sampling.report import CallRecord
from pack.pictures import run_chart
from pack.pictures.run_chart import ChartRun
from pack.stack.copies import CopyCounts


def call(step, branch="cond", diffs=None, ran=range(4), streamed=0, wasted=0) -> CallRecord:
    copies = CopyCounts(streamed, {"not called": wasted})
    return CallRecord(step, 1.0, branch, "miss", "", diffs or {}, list(ran), copies)


def run(calls, **values) -> ChartRun:
    defaults = {"title": "Toy", "steps": 3, "blocks": 4, "streamed": frozenset({2, 3}), "threshold": 0.12}
    return ChartRun(calls=calls, **{**defaults, **values})


def test_the_calls_of_a_step_share_its_width():
    calls = [call(0), call(1), call(1, "uncond"), call(2)]
    assert run_chart.call_edges(3, calls) == [(0, 1), (1, 1.5), (1.5, 2), (2, 3)]
    assert run_chart.call_edges(1, [call(4)]) == [(4, 5)]  # a sampler that makes more steps than it said
    assert run_chart.call_edges(3, []) == []


def test_blocks_are_skipped_resident_or_streamed():
    assert run_chart.block_kinds(run([]), call(0, ran=[0, 3])) == [1, 0, 0, 2]


def test_bytes_and_curves():
    calls = [call(0, streamed=10), call(1, streamed=6, wasted=2, diffs={"video": 0.1, "audio": 0.3}), call(1)]
    assert run_chart.bytes_by_step(run(calls)) == ([10, 4, 0], [0, 2, 0])
    assert run_chart.curves(run(calls)) == {"cond, video": ([1.25], [0.1]), "cond, audio": ([1.25], [0.3])}


def drawn_colors(image: torch.Tensor) -> set[str]:
    pixels = (image[0] * 255).round().to(torch.uint8).flatten(0, 1).unique(dim=0)
    return {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in pixels.tolist()}


def test_the_picture_shows_what_happened():
    everything = run([call(0, ran=[]), call(1, ran=[0]), call(2, ran=[2])])
    image = run_chart.draw_run(everything)
    assert image.shape == (1, 768, 1024, 3)
    assert image.dtype == torch.float32
    assert 0 <= float(image.min()) < float(image.max()) <= 1
    assert {run_chart.SKIPPED, run_chart.RESIDENT, run_chart.STREAMED} <= drawn_colors(image)
    share = {}
    for name, ran in (("none", []), ("all", range(4))):
        image = run_chart.draw_run(run([call(step, ran=ran) for step in range(3)], streamed=frozenset()))
        blue = torch.tensor([0x00, 0x72, 0xB2]) / 255
        share[name] = float(((image[0] - blue).abs().amax(dim=-1) < 1e-3).float().mean())
    assert share["all"] > 0.3
    assert share["none"] < 0.02  # only the legend


@pytest.mark.parametrize("calls", [[], [call(0)], [call(step, f"branch {step}", {"x": 0.1}) for step in range(40)]])
def test_odd_runs_can_be_drawn(calls):
    image = run_chart.draw_run(run(calls, steps=0, threshold=None))
    assert image.shape == (1, 768, 1024, 3)


def test_colours_differ_in_lightness_too():
    """So that they can be told apart without colour: by the luma of ITU-R BT.601."""

    def luma(color):
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    lumas = sorted(luma(color) for color in (run_chart.SKIPPED, run_chart.RESIDENT, run_chart.STREAMED))
    assert min(b - a for a, b in itertools.pairwise(lumas)) > 40


def test_matplotlibs_global_state_is_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    pyplot = sys.modules.pop("matplotlib.pyplot", None)
    try:
        run_chart.draw_run(run([call(0, diffs={"video": 0.1})]))
        assert "matplotlib.pyplot" not in sys.modules
    finally:
        if pyplot is not None:
            sys.modules["matplotlib.pyplot"] = pyplot
    assert dict(matplotlib.rcParams) == before


def test_a_message_and_a_missing_library(monkeypatch):
    assert float(run_chart.draw_message("No run yet.").min()) < 0.5
    assert run_chart.blank().shape == (1, 768, 1024, 3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        run_chart.draw_message("No run yet.")
