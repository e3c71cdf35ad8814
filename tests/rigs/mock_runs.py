"""Whole sampling runs of toy models on the mocked ComfyUI: how tests make, cache, stream and sample them."""

from __future__ import annotations

import json

import pytest
import torch

from rigs import mock_comfy
from rigs.toy_stacks import SHAPES, WIDTH

apply = mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.streaming.settings import OffloadSettings  # noqa: E402
from pack_on_mock.dbcache.rules import DBCacheSettings  # noqa: E402

STEPS = 10
SIGMAS = torch.linspace(1, 0, STEPS + 1)
JOINED, SPLIT, SWAPPED = ((1, 0),), ((0,), (1,)), ((1,), (0,))

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_layout = pytest.mark.parametrize("layout", [JOINED, SPLIT, SWAPPED], ids=["joined", "split", "swapped"])


def patcher_of(shape):
    return mock_comfy.ModelPatcher(mock_comfy.BaseModel(SHAPES[shape](0, mock_comfy.wrap_diffusion_model)))


def conds(*seeds):
    return [torch.randn(1, 3, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds or (1, 2)]


def noise(seed=3, tokens=10, batch=1):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def sample(patcher, layout=SPLIT, *, seed=3, tokens=10, cond_seeds=(1, 2), batch=1, sigmas=SIGMAS):
    return mock_comfy.Guider(patcher, conds(*cond_seeds), layout=layout).sample(noise(seed, tokens, batch), sigmas)


def layout_for(shape, layout):
    if shape == "in_place" and layout == JOINED:
        pytest.skip("packed tokens have no batch dimension: the conditions are never joined")
    return layout


def cached(patcher, **values):
    defaults = {"preset": "custom", "fn": 1, "bn": 1, "warmup_steps": 2, "threshold": 1.0, "max_continuous": 2}
    defaults["calibrator"] = "none"
    return apply.apply_dbcache(patcher, DBCacheSettings(**{**defaults, **values}))


def streamed(patcher, **values):
    return apply.apply_layerwise_offload(patcher, OffloadSettings(**{"resident_blocks": 3, **values}))


def run_of(patcher):
    return json.loads(apply.last_run(patcher)[1])
