"""Placements on the mocked ComfyUI: what the report says of them, and what a measured call changes, and when."""

from __future__ import annotations

import json

import pytest
import torch
from pack.offload.devices.virtual import VirtualDevice
from rigs import mock_comfy
from rigs.toy_stacks import SHAPES, WIDTH

apply = mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.streaming import build  # noqa: E402
from pack_on_mock.comfy_adapter.streaming.settings import OffloadSettings  # noqa: E402
from pack_on_mock.dbcache.rules import DBCacheSettings  # noqa: E402

SIGMAS = torch.linspace(1, 0, 5)


def sample(model):
    conds = [torch.randn(1, 3, WIDTH, generator=torch.Generator().manual_seed(1))]
    guider = mock_comfy.Guider(model, conds, layout=((0,),))
    return guider.sample(torch.randn(1, 10, WIDTH, generator=torch.Generator().manual_seed(3)), SIGMAS)


def plain():
    return mock_comfy.ModelPatcher(mock_comfy.BaseModel(SHAPES["out_of_place"](0, mock_comfy.wrap_diffusion_model)))


def streamed(model, **values):
    return apply.apply_layerwise_offload(model, OffloadSettings(**values))


def placement(model):
    return json.loads(apply.last_run(model)[1])["placement"]


@pytest.fixture
def device(monkeypatch):
    """A device with streams, on which the toys compute in no time."""
    virtual = VirtualDevice()
    monkeypatch.setattr(build, "offload_device", lambda device: virtual)
    return virtual


def test_the_report_says_what_stays_and_why():
    model = streamed(plain(), resident_blocks=3)
    sample(model)
    assert placement(model) == "3 of 8 blocks stay (strided), 1 copied ahead: as many as may, no times measured"
    assert placement(model) in apply.last_run(model)[0]


def test_with_the_cache_its_blocks_stay_first():
    settings = DBCacheSettings(preset="custom", fn=1, bn=1, warmup_steps=1, threshold=1.0, calibrator="none")
    model = apply.apply_dbcache(streamed(plain(), resident_blocks=3), settings)
    sample(model)
    assert placement(model).startswith("3 of 8 blocks stay (cache_aware), 1 copied ahead")


def test_what_was_asked_for_is_reported():
    model = streamed(plain(), resident_blocks=2, residency_policy="leading", prefetch_blocks=3)
    sample(model)
    assert placement(model).startswith("2 of 8 blocks stay (leading), 3 copied ahead")


def test_a_model_that_fits_streams_nothing_and_says_so():
    model = streamed(plain())
    sample(model)
    assert placement(model) == "all 8 blocks stay on the device, nothing is streamed"
    cached = apply.apply_dbcache(plain(), DBCacheSettings(preset="fast", calibrator="none"))
    sample(cached)
    assert placement(cached) == ""


def test_a_device_without_streams_is_not_measured():
    model = streamed(plain(), resident_blocks=3)
    for _ in range(2):
        sample(model)
    assert model._streaming.timing is None


def test_a_measured_call_changes_the_next_load_and_nothing_before(device):
    base = plain()
    budget = {"vram_budget_gb": 0.6 * mock_comfy.module_size(base.model) / 2**30}
    model = streamed(base, **budget)
    expected = sample(base)
    announced = model.model_size()
    assert torch.equal(sample(model), expected)
    assert "no times measured" in placement(model)
    placed = model._streaming.placement
    assert placed.prefetch == 1

    device.synchronise()
    assert torch.equal(sample(model), expected)
    # measured now: the report says so, the placement is the one that was announced
    assert "0 ms to compute one" in placement(model)
    assert model._streaming.placement is placed
    assert model.loaded_size() <= announced == model.model_size()

    model.detach()
    assert torch.equal(sample(model), expected)
    # where compute takes no time, one slot does, and its room keeps more blocks
    again = model._streaming.placement
    assert again.prefetch == 0
    assert len(again.streamed) <= len(placed.streamed)
    assert "worth more than copying ahead" in placement(model)
    assert model.loaded_size() <= model.model_size() <= announced


def test_a_window_that_was_asked_for_stays(device):
    base = plain()
    model = streamed(base, resident_blocks=2, prefetch_blocks=2)
    for _ in range(2):
        sample(model)
        device.synchronise()
    model.detach()
    sample(model)
    assert model._streaming.placement.prefetch == 2


def test_every_run_is_measured_for_itself(device, monkeypatch):
    model = streamed(plain(), resident_blocks=2)
    measured = []
    streamer = build.BlockStreamer
    measure = streamer.time_next_call
    monkeypatch.setattr(streamer, "time_next_call", lambda self: measured.append(self) or measure(self))
    for _ in range(3):
        sample(model)
        device.synchronise()
    # the first time the engine was new, which measures of its own accord
    assert measured == [model._streaming.streamer] * 2
