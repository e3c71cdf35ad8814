"""What a run tells its user in the log: one line at its end, why nothing was cached, and every call if asked to."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from rigs import mock_comfy
from rigs.toy_stacks import SHAPES, WIDTH

apply = mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.streaming.settings import OffloadSettings  # noqa: E402
from pack_on_mock.dbcache.rules import DBCacheSettings  # noqa: E402

STEPS = 10
SPLIT = ((0,), (1,))


@pytest.fixture
def lines(caplog):
    """Sample with DBCache, and the offload under it; returns the run's report and its lines at INFO."""
    caplog.set_level(logging.INFO)

    def run(**values):
        shape = SHAPES["in_place"](0, mock_comfy.wrap_diffusion_model)
        plain = mock_comfy.ModelPatcher(mock_comfy.BaseModel(shape))
        settings = {"preset": "custom", "fn": 1, "bn": 1, "warmup_steps": 2, "threshold": 1.0, "max_continuous": 2}
        settings["calibrator"] = "none"
        model = apply.apply_dbcache(plain, DBCacheSettings(**{**settings, **values}))
        model = apply.apply_layerwise_offload(model, OffloadSettings(resident_blocks=3))
        generator = torch.Generator().manual_seed(1)
        conds = [torch.randn(1, 3, WIDTH, generator=generator) for _ in SPLIT]
        caplog.clear()
        guider = mock_comfy.Guider(model, conds, layout=SPLIT)
        guider.sample(torch.randn(1, 10, WIDTH, generator=generator), torch.linspace(1, 0, STEPS + 1))
        of_run = [one for one in caplog.records if one.name == "dit_layerwise_offload.run"]
        assert all(one.levelno == logging.INFO for one in of_run)
        return json.loads(apply.last_run(model)[1]), [one.getMessage() for one in of_run]

    return run


def test_one_line_at_the_end_says_what_the_calls_add_up_to(lines):
    run, said = lines()
    calls = run["calls"]
    cached = {call["step"] for call in calls if call["outcome"] == "hit"}
    assert len(cached) == 5
    blocks = sum(len(call["blocks_run"]) for call in calls)
    streamed, wasted = (sum(call[name] for call in calls) / 2**20 for name in ("bytes_streamed", "bytes_wasted"))
    assert said == [
        f"BaseModel: 5 of 10 steps cached, {1 - blocks / (20 * 8):.0%} of the block work skipped,"
        f" {streamed:.1f} MiB streamed, {wasted:.1f} MiB wasted."
    ]
    totals = run["totals"]
    assert (totals["calls"], totals["hits"], totals["blocks_run"]) == (20, 10, blocks)


def test_a_threshold_that_is_never_met_names_the_nearest_difference(lines):
    run, said = lines(threshold=1e-9)
    assert run["totals"]["hits"] == 0
    nearest = min(max(call["diffs"].values()) for call in run["calls"] if call["diffs"])
    farthest = max(max(call["diffs"].values()) for call in run["calls"] if call["diffs"])
    assert f"{nearest:.3g}" != f"{farthest:.3g}"
    hint = f"DBCache: no step was cached; the smallest difference was {nearest:.3g}, above the threshold."
    assert run["notes"].count(hint) == 1
    assert said[0] == hint
    assert len(said) == 2
    assert said[1].startswith("BaseModel: 0 of 10 steps cached, 0% of the block work skipped, ")


def test_a_warm_up_longer_than_the_run_is_named(lines):
    run, said = lines(warmup_steps=100)
    assert run["totals"]["hits"] == 0
    assert said[0] == "DBCache: no step was cached; most calls: warm-up."
    assert said[0] in run["notes"]
    assert len(said) == 2


def test_without_a_reason_to_hint_there_is_none(lines):
    run, _ = lines()
    assert not any("no step was cached" in note for note in run["notes"])


def test_verbose_says_every_call(lines):
    run, said = lines(threshold=0.999, verbose=True)
    assert len(said) == len(run["calls"]) + 1
    assert {call["outcome"] for call in run["calls"]} == {"hit", "miss"}
    for line, call in zip(said, run["calls"], strict=False):
        assert line.startswith(f"step {call['step'] + 1} of 10, {call['branch']}: {call['outcome']} (")
        assert call["reason"] in line
        if call["diffs"]:
            assert f" {max(call['diffs'].values()):.4g} " in line
    compared = [line for line, call in zip(said, run["calls"], strict=False) if call["diffs"]]
    assert len(compared) == len(set(compared)) > 0


def test_the_line_names_what_was_streamed_and_wasted_in_mib():
    """In numbers that the toys' small blocks never reach."""
    from pack_on_mock.comfy_adapter.sampling.report import CallRecord, RunReport
    from pack_on_mock.stack.copies import CopyCounts

    run = RunReport("Model", "Patcher", "1", "layerwise", "", steps=4, blocks=8)
    for step, outcome, blocks, streamed, wasted in ((0, "miss", 8, 40, 0), (1, "hit", 2, 6, 3), (1, "hit", 2, 6, 1)):
        copies = CopyCounts(streamed * 2**20, {"not called": wasted * 2**20} if wasted else {})
        run.calls.append(CallRecord(step, 0.5, "cond", outcome, "", {}, list(range(blocks)), copies))
    run.copies = CopyCounts(52 * 2**20, {"not called": 3 * 2**20, "weights changed": 2**20})
    assert run.headline() == (
        "1 of 4 steps cached, 50% of the block work skipped, 52.0 MiB streamed, 4.0 MiB wasted"
        " (not called 3.0 MiB, weights changed 1.0 MiB)"
    )
    run.copies.wasted.pop("weights changed")
    run.block_ms = 250.0
    assert run.headline() == (
        "1 of 4 steps cached, 50% of the block work skipped (3.0 s of compute), 52.0 MiB streamed, 3.0 MiB wasted"
        " (not called)"
    )
    assert "50% of the block work skipped (3.0 s of compute)" in run.summary()
    assert "3.0 MiB of it for nothing (not called)" in run.summary()
    assert run.totals()["skipped_share"] == 0.5
    assert run.totals()["seconds_skipped"] == 3.0
