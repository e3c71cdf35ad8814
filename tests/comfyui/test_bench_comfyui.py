"""The benchmark that samples a random model in ComfyUI, at a size that a CPU manages."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bench import costs
from bench.end_to_end import compare
from bench.random_model import WanShape, random_wan, wan_patcher

TINY = WanShape(64, 128, 2, 6, latent=(1, 16, 2, 8, 8), text_dim=32, text_tokens=8, dtype=torch.float32, steps=6)


@pytest.mark.parametrize("resident", [-1, 2])
def test_every_way_samples_the_same_random_model(pack, resident):
    example = dataclasses.replace(random_wan(TINY), resident_blocks=resident)
    part = compare(example, pack, rounds=1)
    rows = {row["way"]: row for row in part.rows}
    assert list(rows) == ["plain", "offload", "DBCache", "both"]
    assert rows["offload"]["max diff"] == 0.0
    assert rows["both"]["max diff"] == rows["DBCache"]["max diff"]
    assert (rows["offload"]["streamed MiB"] > 0) == (resident >= 0)
    assert (rows["offload"]["weights MiB"] < rows["plain"]["weights MiB"]) == (resident >= 0)
    assert all(row["wasted MiB"] == 0 for row in part.rows)
    samples = example.sample(example.plain, 2)
    assert samples.isfinite().all()
    assert samples.std() > 0


def test_the_full_size_is_wan_14b():
    """One block of it is built, the others are counted."""
    one = wan_patcher(dataclasses.replace(WanShape(), num_layers=1, dtype=torch.bfloat16))
    block = sum(parameter.numel() for parameter in one.model.diffusion_model.blocks[0].parameters())
    assert WanShape().num_layers * block == pytest.approx(14.05e9, rel=0.01)


def test_the_import_of_the_pack_is_measured(monkeypatch):
    monkeypatch.setattr(costs, "IMPORTS", 1)
    [row] = costs.import_time().rows
    assert 0 < row["ms"] < 60_000
