"""Host and device memory: sizes told to ComfyUI, pressure, pinning, and cycles that leave nothing behind.

A machine without a GPU has one device, so these tests make ComfyUI believe that the CPU is an accelerator where
they need budgets: the patcher's accounting is the same.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import comfy.model_management
import pytest
import torch
from rigs.real_comfy import FAMILIES, WAN, blocks_of, build, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def sizes_of(patcher, family):
    return [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks_of(patcher, family)]


def streaming(pack, model):
    return pack.module("comfy_adapter.streaming.shared_state").streaming_of(model.model)


@each_family
@pytest.mark.parametrize("resident", [0, 3])
def test_sizes_told_are_residents_and_slots(offload, pack, family, resident):
    plain = build(family)
    whole = plain.model_size()
    model = offload(plain, resident_blocks=resident, residency_policy="leading")
    streamed = sum(sizes_of(plain, family)[resident:])
    placement = pack.module("comfy_adapter.streaming.shared_state").Placement(tuple(range(resident, family.blocks)), 1)
    slots = streaming(pack, model).slot_bytes(placement)
    assert model.model_size() == whole - streamed + slots
    sample(model, family)
    assert model.model_size() == whole - streamed + slots
    # weights owned by no leaf module are left on the host by the loader and are not counted as loaded
    assert model.loaded_size() <= model.model_size()
    assert streaming(pack, model).streamer.slot_bytes == slots
    comfy.model_management.unload_all_models()
    assert model.loaded_size() == 0
    assert streaming(pack, model).streamer is None


@each_family
def test_pressure_takes_idle_slots_first_and_the_next_run_is_right(offload, pack, family):
    plain = build(family)
    expected = sample(plain, family)
    model = offload(plain, resident_blocks=2)
    sample(model, family)
    slots = streaming(pack, model).streamer.slot_bytes
    resident = model.loaded_size() - slots
    assert model.partially_unload(model.offload_device, 1) == slots
    assert model.loaded_size() == resident
    assert torch.equal(sample(model, family), expected)
    freed = model.partially_unload(model.offload_device, slots + resident // 4)
    assert freed >= slots + resident // 4
    assert torch.equal(sample(model, family), expected)


def test_slots_that_a_call_has_to_make_are_made_where_comfyui_wants_them(offload, pack, monkeypatch):
    """Newer versions record what is allocated in a model call, and fail on what outlives it: here a stand-in."""
    pauses, made_in_a_pause = [], []

    @contextmanager
    def pause_malloc_graph():
        pauses.append(True)
        yield
        pauses.pop()

    monkeypatch.setattr(
        pack.module("comfy_adapter.versions"), "model_prefetch", SimpleNamespace(pause_malloc_graph=pause_malloc_graph)
    )
    plain = build(WAN)
    expected = sample(plain, WAN)
    model = offload(plain, resident_blocks=0)
    sample(model, WAN)
    device = pack.module("offload.devices.synchronous").SynchronousDevice
    make = device.empty
    monkeypatch.setattr(device, "empty", lambda self, size: made_in_a_pause.append(bool(pauses)) or make(self, size))
    slots = streaming(pack, model).streamer.slot_bytes
    freed = []

    def give_back(*_):
        if not freed:
            made_in_a_pause.clear()  # those of the load
        freed.append(model.partially_unload(model.offload_device, 1))

    assert torch.equal(sample(model, WAN, callback=give_back), expected)
    assert set(freed) == {slots}
    assert made_in_a_pause
    assert all(made_in_a_pause)


@each_family
@pytest.mark.parametrize("contents", [False, True], ids=["plain", "lora"])
def test_ten_cycles_leave_nothing_behind(offload, pack, family, contents):
    plain = build(family)
    model = offload(plain, resident_blocks=1)
    if contents:
        model = with_lora(model, lora(plain, family))

    def live_bytes():
        gc.collect()
        tensors = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in gc.get_objects()
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
        }
        return sum(tensors.values())

    first = None
    for _ in range(10):
        sample(model, family)
        comfy.model_management.unload_all_models()
        now = live_bytes()
        first = first or now
        assert now == first


def test_baking_holds_only_the_patched_weights(offload, pack):
    plain = build(WAN)
    contents = lora(plain, WAN)
    model = with_lora(offload(plain, resident_blocks=0), contents)
    sample(model, WAN)
    at_rest = {tensor.data_ptr() for tensor in model.model.state_dict().values()}
    hosts = [host for one in streaming(pack, model).streamer.weights.values() for host in one.host_tensors()]
    extra = sum(host.numel() * host.element_size() for host in hosts if host.data_ptr() not in at_rest)
    blocks = dict(model.model.named_parameters())
    patched = [key for key in model.patches if ".blocks." in key]
    assert extra == sum(blocks[key].numel() * blocks[key].element_size() for key in patched)
    comfy.model_management.unload_all_models()
    model = offload(plain, resident_blocks=0)
    sample(model, WAN)
    hosts = [host for one in streaming(pack, model).streamer.weights.values() for host in one.host_tensors()]
    assert all(host.data_ptr() in {t.data_ptr() for t in model.model.state_dict().values()} for host in hosts)


class FakePins:
    """ComfyUI's pin accounting with a limit in bytes, without CUDA."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.pinned: dict[int, int] = {}

    @property
    def total(self) -> int:
        return sum(self.pinned.values())

    def pin(self, tensor):
        size = tensor.numel() * tensor.element_size()
        if self.total + size > self.limit or not tensor.is_contiguous():
            return False
        if type(tensor).__name__ not in ("Parameter", "QuantizedTensor"):
            return False  # as 0.3.75 does
        assert tensor.data_ptr() not in self.pinned
        self.pinned[tensor.data_ptr()] = size
        return True

    def unpin(self, tensor):
        assert self.pinned.pop(tensor.data_ptr()) == tensor.numel() * tensor.element_size()
        return True


@pytest.fixture
def pins(monkeypatch, pack):
    """Make streamed weights pinnable, within a limit set by the test."""
    fake = FakePins(float("inf"))
    monkeypatch.setattr(comfy.model_management, "pin_memory", fake.pin)
    monkeypatch.setattr(comfy.model_management, "unpin_memory", fake.unpin)
    building = pack.module("comfy_adapter.streaming.build")
    monkeypatch.setattr(building, "wants_pinning", lambda choice, device: choice != "off")
    return fake


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_streamed_weights_are_pinned_and_unpinned(offload, report, pins, choice):
    plain = build(WAN)
    expected = sample(plain, WAN)
    model = offload(plain, resident_blocks=3, residency_policy="leading", pin_memory=choice)
    for _ in range(2):
        assert torch.equal(sample(model, WAN), expected)
        assert pins.total == sum(sizes_of(plain, WAN)[3:])
    assert report(model)["notes"] == []
    comfy.model_management.unload_all_models()
    assert pins.total == 0


def test_pinning_can_be_off(offload, pins):
    sample(offload(build(WAN), resident_blocks=0, pin_memory="off"), WAN)
    assert pins.total == 0


def test_what_does_not_fit_stays_pageable_and_is_told(offload, report, pins):
    plain = build(WAN)
    expected = sample(plain, WAN)
    sizes = sizes_of(plain, WAN)
    pins.limit = sum(sizes) // 2
    model = offload(plain, resident_blocks=0)
    assert torch.equal(sample(model, WAN), expected)
    assert 0 < pins.total <= pins.limit
    [note] = report(model)["notes"]
    assert "could not be pinned" in note
    # a second model shares the budget: it goes on with a note, not an error
    other = offload(build(WAN, seed=1), resident_blocks=0)
    sample(other, WAN)
    assert pins.total <= pins.limit
    assert "could not be pinned" in report(other)["notes"][0]


def test_pins_go_with_the_model(offload, pins):
    model = offload(build(WAN), resident_blocks=0)
    sample(model, WAN)
    assert pins.total > 0
    del model
    gc.collect()
    assert pins.total == 0


def test_pins_and_slots_survive_the_death_of_a_transient_clone(offload, pack, pins):
    plain = build(WAN)
    model = offload(plain, resident_blocks=0)
    sample(model, WAN)
    before, slots = pins.total, streaming(pack, model).streamer.slot_bytes
    clone = model.clone()
    assert torch.equal(sample(clone, WAN), sample(model, WAN))
    clone.clone()
    del clone
    gc.collect()
    assert pins.total == before > 0
    assert streaming(pack, model).streamer.slot_bytes == slots > 0


def test_pins_go_when_a_plain_branch_takes_the_model(offload, pins):
    plain = build(WAN)
    expected = sample(plain, WAN)
    model = offload(plain, resident_blocks=0)
    hooks = dict(plain.model.diffusion_model._forward_pre_hooks)
    for _ in range(2):
        assert torch.equal(sample(model, WAN), expected)
        pinned = pins.total
        assert torch.equal(sample(model, WAN), expected)
        assert pins.total == pinned > 0
        assert torch.equal(sample(plain, WAN), expected)
        assert pins.total == 0
        assert dict(plain.model.diffusion_model._forward_pre_hooks) == hooks
    sample(model, WAN)
    assert dict(plain.model.diffusion_model._forward_pre_hooks) == hooks


def test_pins_stay_with_a_detached_patcher_until_another_runs(offload, pack, pins):
    """A detached patcher whose model nobody else calls keeps what it has, and leaves nothing on the model."""
    plain = build(WAN)
    model = offload(plain, resident_blocks=0)
    sample(model, WAN)
    engine, pinned = streaming(pack, model).engine, pins.total
    model.detach(unpatch_all=False)
    model.detach(unpatch_all=False)
    assert len(plain.model.diffusion_model._forward_pre_hooks) == 1
    sample(model, WAN)
    assert streaming(pack, model).engine is engine
    assert pins.total == pinned > 0
    model.detach(unpatch_all=False)
    del model
    gc.collect()
    assert pins.total == 0
    assert not plain.model.diffusion_model._forward_pre_hooks


def test_an_unload_during_a_call_leaves_that_call_its_memory(offload, pack, pins):
    """ComfyUI may need memory in the middle of a forward: nothing is unpinned under a copy that may be under way."""
    plain = build(WAN)
    expected = sample(plain, WAN)
    model = offload(plain, resident_blocks=0)
    seen = []

    def unload(*_):
        if not seen:
            before = pins.total
            model.unpatch_model(model.offload_device, unpatch_weights=True)
            seen.append((before, pins.total))

    handle = blocks_of(plain, WAN)[4].register_forward_pre_hook(unload)
    output = sample(model, WAN)
    handle.remove()
    assert torch.equal(output, expected)
    [(before, after)] = seen
    assert before == after > 0
    gc.collect()
    assert pins.total == 0
    assert torch.equal(sample(model, WAN), expected)
