"""Budgets: ComfyUI believes that ``cpu:0`` is an accelerator with little memory and does its own accounting."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import comfy.model_management as management
import pytest
import torch
from rigs.real_comfy import FAMILIES, WAN, blocks_of, build, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
ACCELERATOR = torch.device("cpu", 0)


@pytest.fixture
def accelerator(pack, monkeypatch):
    """An accelerator with ``room`` bytes for weights beyond what ComfyUI keeps free for inference."""
    management.unload_all_models()
    card = SimpleNamespace(room=float("inf"), models=weakref.WeakSet())
    streaming = pack.module("comfy_adapter.streaming.shared_state")

    def used():
        slots = sum(
            state.streamer.slot_bytes for state in streaming._streaming_of.values() if state.streamer is not None
        )
        return slots + sum(model.model_loaded_weight_memory for model in card.models)

    def free_memory(dev=None, torch_free_too=False):
        free = 1e12
        if dev is None or dev == ACCELERATOR:
            free = card.room - used() + management.minimum_inference_memory()
        return (free, free) if torch_free_too else free

    def on_accelerator(family, seed=0):
        patcher = build(family, seed)
        patcher.load_device, patcher.offload_device = ACCELERATOR, torch.device("cpu")
        patcher.model.memory_usage_factor = 0.0
        card.models.add(patcher.model)
        return patcher

    card.patcher, card.used = on_accelerator, used

    monkeypatch.setattr(management, "is_device_cpu", lambda device: device == torch.device("cpu"))
    monkeypatch.setattr(management, "get_free_memory", free_memory)
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NORMAL_VRAM)
    monkeypatch.setattr(management, "lowvram_available", True)
    monkeypatch.setattr(management, "soft_empty_cache", lambda *_, **__: None)
    yield card
    management.unload_all_models()


def whole(patcher):
    return management.module_size(patcher.model)


@each_family
@pytest.mark.parametrize("share", [2.0, 0.9, 0.7, 0.5, 0.4])
def test_comfyuis_budget_decides_and_is_kept(offload, report, accelerator, family, share):
    expected = sample(build(family), family)
    plain = accelerator.patcher(family)
    accelerator.room = share * whole(plain) + 64 * 2**10
    model = offload(plain)
    for _ in range(2):
        assert torch.equal(sample(model, family), expected)
        assert accelerator.used() <= accelerator.room
    streamed = report(model)["totals"]["bytes_streamed"]
    assert (streamed == 0) == (share > 1)
    assert torch.equal(sample(plain, family), expected) or share < 1


@each_family
def test_smaller_budgets_stream_more(offload, report, accelerator, family):
    moved = []
    for share in (0.9, 0.7, 0.5, 0.3):
        plain = accelerator.patcher(family)
        accelerator.room = share * whole(plain) + 64 * 2**10
        model = offload(plain)
        sample(model, family)
        moved.append(report(model)["totals"]["bytes_streamed"])
        management.unload_all_models()
    assert moved == sorted(moved)
    assert moved[0] < moved[-1]


@each_family
def test_the_announced_size_is_never_exceeded(offload, accelerator, family):
    plain = accelerator.patcher(family)
    for settings in ({"resident_blocks": 0}, {"resident_blocks": 3}, {"vram_budget_gb": 0.6 * whole(plain) / 2**30}):
        model = offload(plain, **settings)
        announced = model.model_size()
        sample(model, family)
        assert model.loaded_size() <= announced == model.model_size()
        management.unload_all_models()


def test_another_model_is_not_evicted_for_what_is_streamed(offload, accelerator):
    other, plain = accelerator.patcher(WAN, seed=1), accelerator.patcher(WAN)
    size = whole(plain)
    accelerator.room = 1.7 * size
    sample(other, WAN)
    held = other.loaded_size()
    model = offload(plain, resident_blocks=0)
    sample(model, WAN)
    assert other.loaded_size() == held
    assert sample(other, WAN).isfinite().all()


def test_another_model_takes_residents_and_slots_back(offload, accelerator):
    expected = sample(build(WAN), WAN)
    plain, other = accelerator.patcher(WAN), accelerator.patcher(WAN, seed=1)
    size = whole(plain)
    accelerator.room = 1.2 * size
    model = offload(plain, resident_blocks=6)
    assert torch.equal(sample(model, WAN), expected)
    before = model.loaded_size()
    sample(other, WAN)
    assert model.loaded_size() < before
    for _ in range(2):
        assert torch.equal(sample(model, WAN), expected)
        sample(other, WAN)


def test_memory_that_gets_short_later(offload, accelerator):
    """Less room at the next run: ComfyUI moves residents out, the slots stay, the picture stays."""
    expected = sample(build(WAN), WAN)
    plain = accelerator.patcher(WAN)
    size = whole(plain)
    accelerator.room = 2 * size
    model = offload(plain, resident_blocks=6)
    assert torch.equal(sample(model, WAN), expected)
    accelerator.room = 0.5 * size
    assert torch.equal(sample(model, WAN), expected)
    assert model.loaded_size() <= 0.5 * size + 64 * 2**10


@pytest.mark.parametrize("state", ["LOW_VRAM", "NO_VRAM"])
@each_family
def test_low_vram_modes(offload, accelerator, monkeypatch, family, state):
    expected = sample(build(family), family)
    monkeypatch.setattr(management, "vram_state", getattr(management.VRAMState, state))
    plain = accelerator.patcher(family)
    accelerator.room = 0.6 * whole(plain)
    model = offload(plain)
    assert torch.equal(sample(model, family), expected)
    if state == "NO_VRAM":
        slots = model.loaded_size()
        assert slots <= 3 * max(management.module_size(block) for block in blocks_of(plain, family))


def test_high_vram_passes_the_model_through(offload, accelerator, monkeypatch, caplog):
    monkeypatch.setattr(management, "vram_state", management.VRAMState.HIGH_VRAM)
    plain = accelerator.patcher(WAN)
    with caplog.at_level("INFO"):
        passed = offload(plain, resident_blocks=0)
    assert type(passed) is type(plain)
    assert "told to keep models on the device" in caplog.text


def test_gpu_only_passes_the_model_through(offload, accelerator):
    plain = accelerator.patcher(WAN)
    plain.offload_device = ACCELERATOR
    assert type(offload(plain, resident_blocks=0)) is type(plain)


@each_family
def test_lora_under_a_budget(offload, accelerator, family):
    reference = build(family)
    contents = lora(reference, family)
    expected = sample(with_lora(reference, contents), family)
    plain = accelerator.patcher(family)
    accelerator.room = 0.6 * whole(plain)
    model = with_lora(offload(plain, resident_blocks=2), contents)
    assert torch.equal(sample(model, family), expected)
    assert torch.equal(sample(model, family), expected)


def test_a_model_that_starts_on_the_device(offload, accelerator):
    """ComfyUI creates a model on the device when it fits: streamed blocks must come to rest on the host."""
    expected = sample(build(WAN), WAN)
    plain = accelerator.patcher(WAN)
    plain.model.device = ACCELERATOR
    accelerator.room = 0.5 * whole(plain)
    assert torch.equal(sample(offload(plain), WAN), expected)


@pytest.mark.parametrize("prefetch", [1, 4, 16])
def test_the_prefetch_window_gives_way_when_the_budget_is_tiny(offload, report, accelerator, prefetch):
    expected = sample(build(WAN), WAN)
    plain = accelerator.patcher(WAN)
    blocks = [management.module_size(block) for block in blocks_of(plain, WAN)]
    accelerator.room = whole(plain) - sum(blocks) + 3.5 * max(blocks)
    model = offload(plain, prefetch_blocks=prefetch)
    assert torch.equal(sample(model, WAN), expected)
    assert accelerator.used() <= accelerator.room
    assert report(model)["totals"]["peak_slot_bytes"] <= 3.5 * max(blocks)


@each_family
def test_more_residents_asked_for_than_there_is_room(offload, accelerator, family):
    """ComfyUI places what it can of them: residents and slots together stay within its budget."""
    expected = sample(build(family), family)
    plain = accelerator.patcher(family)
    accelerator.room = 0.7 * whole(plain)
    model = offload(plain, resident_blocks=family.blocks - 2)
    for _ in range(2):
        assert torch.equal(sample(model, family), expected)
        assert accelerator.used() <= accelerator.room


@each_family
def test_less_room_than_the_plain_model_has_taken(offload, report, accelerator, family):
    """Plain first, fully loaded; then the offload with less room than that: what it frees is there for it."""
    expected = sample(build(family), family)
    plain = accelerator.patcher(family)
    accelerator.room = 2 * whole(plain)
    sample(plain, family)
    accelerator.room = 0.6 * whole(plain)
    model = offload(plain)
    assert torch.equal(sample(model, family), expected)
    assert 0 < accelerator.used() <= accelerator.room
    assert model.model.current_weight_patches_uuid == model.patches_uuid
    assert report(model)["totals"]["bytes_streamed"] > 0


def low_vram_modules(model):
    return sum(hasattr(module, "prev_comfy_cast_weights") for module in model.model.modules())


@each_family
def test_other_settings_without_an_unload_between_load_as_much_as_fresh(offload, accelerator, family):
    sizes = []
    for warm in (False, True):
        plain = accelerator.patcher(family)
        accelerator.room = 1.2 * whole(plain)
        if warm:
            sample(offload(plain, resident_blocks=1), family)
        model = offload(plain, resident_blocks=3)
        sample(model, family)
        sizes.append((model.loaded_size(), low_vram_modules(model)))
        management.unload_all_models()
    assert sizes[0] == sizes[1]
    assert sizes[0][1] == 0


@each_family
@pytest.mark.parametrize("streams", [0, 2])
def test_residents_are_loaded_whole_at_any_budget(offload, accelerator, monkeypatch, family, streams):
    """ComfyUI's loader wants room for casts besides: residents are chosen so that it demotes none of them."""
    monkeypatch.setattr(management, "NUM_STREAMS", streams)
    for share in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        plain = accelerator.patcher(family)
        accelerator.room = share * whole(plain)
        model = offload(plain)
        sample(model, family)
        streamed = len(streaming_placement(model).streamed)
        if streamed < family.blocks:
            assert low_vram_modules(model) == 0
        management.unload_all_models()


def streaming_placement(model):
    return model._streaming.placement
