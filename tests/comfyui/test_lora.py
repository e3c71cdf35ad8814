"""LoRA, weight wrappers and bypass under layerwise offload: bit-identical to a plain full load."""

from __future__ import annotations

import comfy.model_management
import comfy.sd
import pytest
import torch
from rigs.real_comfy import FAMILIES, WAN, build, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
@pytest.mark.parametrize("resident", [0, 3])
@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_lora(offload, family, place, resident):
    plain = build(family)
    one, two = lora(plain, family), lora(plain, family, seed=80)
    expected = sample(with_lora(with_lora(plain, one), two, 0.5), family)
    assert not torch.equal(expected, sample(plain, family))
    if place == "before":
        model = offload(with_lora(with_lora(plain, one), two, 0.5), resident_blocks=resident)
    elif place == "after":
        model = with_lora(with_lora(offload(plain, resident_blocks=resident), one), two, 0.5)
    else:
        model = with_lora(offload(with_lora(plain, one), resident_blocks=resident), two, 0.5)
    for _ in range(2):
        assert torch.equal(sample(model, family), expected)


@each_family
def test_lora_strength_changes_and_removal(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    streamed = offload(plain, resident_blocks=2)
    for strength in (1.0, 0.25, -0.5, 1.0):
        expected = sample(with_lora(plain, contents, strength), family)
        assert torch.equal(sample(with_lora(streamed, contents, strength), family), expected)
    assert torch.equal(sample(streamed, family), sample(plain, family))


@each_family
@pytest.mark.parametrize("place", ["before", "after"])
def test_lora_on_the_fly_equals_comfyuis_own_low_vram_and_copies_nothing(offload, pack, family, place):
    plain = build(family)
    contents = lora(plain, family)
    low_vram = with_lora(plain, contents)
    low_vram.partially_load(low_vram.load_device, 0.1)
    expected = run_loaded(low_vram, family)
    comfy.model_management.unload_all_models()
    if place == "before":
        model = offload(with_lora(plain, contents), resident_blocks=0, lora="on_the_fly")
    else:
        model = with_lora(offload(plain, resident_blocks=0, lora="on_the_fly"), contents)
    assert torch.equal(sample(model, family), expected)
    streamer = pack.module("comfy_adapter.streaming.shared_state").streaming_of(model.model).streamer
    at_rest = {tensor.data_ptr() for tensor in model.model.state_dict().values()}
    copied_from = {host.data_ptr() for one in streamer.weights.values() for host in one.host_tensors()}
    assert copied_from <= at_rest


def run_loaded(patcher, family):
    """Sample without ComfyUI loading the model anew: it stays in low-VRAM state."""
    load, comfy.model_management.load_models_gpu = comfy.model_management.load_models_gpu, lambda *_, **__: None
    try:
        return sample(patcher, family)
    finally:
        comfy.model_management.load_models_gpu = load


@each_family
def test_auto_bakes_while_memory_has_room(offload, report, pack, family, monkeypatch):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    roomy = with_lora(offload(plain, resident_blocks=0), contents)
    assert torch.equal(sample(roomy, family), expected)
    assert report(roomy)["notes"] == []
    monkeypatch.setattr(pack.module("comfy_adapter.streaming.effective_weights"), "RAM_RESERVE", 1e18)
    short = with_lora(offload(plain, resident_blocks=0), contents)
    assert torch.allclose(sample(short, family), expected, rtol=1e-4, atol=1e-5)
    assert report(short)["notes"] == [
        "DiT Layerwise Offload: LoRAs on streamed blocks are applied on the fly, because main memory is short."
    ]


@each_family
def test_lora_after_a_full_unload(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    model = with_lora(offload(plain, resident_blocks=2), contents)
    for _ in range(3):
        assert torch.equal(sample(model, family), expected)
        comfy.model_management.unload_all_models()
    assert model.loaded_size() == 0


@each_family
def test_weight_wrappers_act_on_streamed_blocks(offload, family):
    plain = build(family)
    key = f"diffusion_model.{family.lora_layers[0]}.weight"
    wrapped = plain.clone()
    wrapped.add_weight_wrapper(key, lambda weight: weight * 0.5)
    expected = sample(wrapped, family)
    assert not torch.equal(expected, sample(plain, family))
    assert torch.equal(sample(offload(wrapped, resident_blocks=0), family), expected)
    after = offload(plain, resident_blocks=0).clone()
    after.add_weight_wrapper(key, lambda weight: weight * 0.5)
    assert torch.equal(sample(after, family), expected)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family), sample(plain, family))


@each_family
def test_low_vram_state_of_an_earlier_load_does_not_leak(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(plain, family)
    # An earlier plain load under memory pressure leaves on-the-fly LoRA functions on the modules.
    pressed = with_lora(plain, contents)
    pressed.partially_load(pressed.load_device, 0.1)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family), expected)


def test_lora_on_the_fly_follows_strength_and_removal(offload):
    plain = build(WAN)
    contents = lora(plain, WAN)
    streamed = offload(plain, resident_blocks=0, lora="on_the_fly")
    for strength in (1.0, 0.25, -0.5):
        low_vram = with_lora(build(WAN), contents, strength)
        low_vram.partially_load(low_vram.load_device, 0.1)
        expected = run_loaded(low_vram, WAN)
        comfy.model_management.unload_all_models()
        assert torch.equal(sample(with_lora(streamed, contents, strength), WAN), expected)
    assert torch.equal(sample(streamed, WAN), sample(plain, WAN))


@pytest.mark.parametrize("resident", [0, 3])
def test_a_lora_that_bypasses_the_weights(offload, resident):
    """Newer versions can add a LoRA's output to a layer's instead of patching its weight."""
    if not hasattr(comfy.sd, "load_bypass_lora_for_models"):
        pytest.skip("this ComfyUI has no bypass LoRAs")

    def with_bypass(patcher):
        return comfy.sd.load_bypass_lora_for_models(patcher, None, contents, 1.0, 0.0)[0]

    plain = build(WAN)
    contents = lora(plain, WAN)
    bare = sample(plain, WAN)
    expected = sample(with_bypass(plain), WAN)
    assert not torch.equal(expected, bare)
    assert torch.equal(sample(offload(with_bypass(plain), resident_blocks=resident), WAN), expected)
    assert torch.equal(sample(with_bypass(offload(plain, resident_blocks=resident)), WAN), expected)
    assert torch.equal(sample(offload(plain, resident_blocks=resident), WAN), bare)
