"""LoRA on quantised weights of a type of its own, as GGUF packs have them: layers that cast for themselves, a patcher
that keeps LoRAs beside the weight. Made up here from what such packs do."""

from __future__ import annotations

import comfy.lora
import comfy.model_management
import comfy.utils
import pytest
import torch
from rigs.real_comfy import WAN, blocks_of, build, lora, sample, with_lora


class HalvedWeight(torch.Tensor):
    """A weight stored at half its value, with the patches to apply when it is used."""

    def __new__(cls, data, patches=()):
        return torch.Tensor._make_subclass(cls, data, False)

    def __init__(self, data, patches=()):
        self.patches = list(patches)

    def to(self, *_, **__):
        return HalvedWeight(self.as_subclass(torch.Tensor).clone(), self.patches)

    def detach(self):
        return self

    def clone(self, *_, **__):
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch._C._disabled_torch_function_impl(function, types, args, kwargs or {})


def casting_for_itself(linear_class):
    """Return a linear layer that knows no weight functions."""

    class Layer(linear_class):
        def forward(self, x, *_, **__):
            weight = self.weight.as_subclass(torch.Tensor) * 2
            for patches, key in self.weight.patches:
                weight = comfy.lora.calculate_weight(patches, weight.clone(), key)
            return torch.nn.functional.linear(x, weight.to(x.dtype), self.bias)

    return Layer


def halved_model():
    """Return a patcher over a tiny Wan, some of whose layers are quantised."""
    plain = build(WAN)
    for block in blocks_of(plain, WAN):
        for layer in (block.self_attn.q, block.ffn[0]):
            halved = HalvedWeight(layer.weight.data / 2)
            layer._parameters["weight"] = torch.nn.Parameter(halved, requires_grad=False)
            assert type(layer.weight) is HalvedWeight
            layer.__class__ = casting_for_itself(type(layer))

    class Patcher(type(plain)):
        def patch_weight_to_device(self, key, device_to=None, inplace_update=False):
            weight = comfy.utils.get_attr(self.model, key)
            if not isinstance(weight, HalvedWeight):
                return super().patch_weight_to_device(key, device_to, inplace_update)
            if key in self.patches:
                patched = HalvedWeight(weight.as_subclass(torch.Tensor).clone(), [(self.patches[key], key)])
                comfy.utils.set_attr_param(self.model, key, patched)
            return None

        def unpatch_model(self, device_to=None, unpatch_weights=True):
            if unpatch_weights:
                for weight in self.model.parameters():
                    if isinstance(weight, HalvedWeight):
                        weight.patches = []
            return super().unpatch_model(device_to, unpatch_weights)

        def load(self, *args, force_patch_weights=False, **kwargs):
            super().load(*args, force_patch_weights=True, **kwargs)

        def clone(self, *args, **kwargs):
            own = self.__class__
            self.__class__ = Patcher
            copy = super().clone(*args, **kwargs)
            copy.__class__, self.__class__ = Patcher, own
            return copy

    plain.__class__ = Patcher
    return plain


@pytest.mark.parametrize("mode", ["bake", "on_the_fly"])
@pytest.mark.parametrize("resident", [0, 3])
def test_lora_reaches_weights_whose_layers_cast_for_themselves(offload, report, mode, resident):
    plain = halved_model()
    contents = lora(plain, WAN)
    bare = sample(plain, WAN)
    expected = sample(with_lora(halved_model(), contents), WAN)
    assert not torch.equal(bare, expected)

    plain = halved_model()
    model = offload(plain, resident_blocks=resident, lora=mode)
    assert torch.equal(sample(model, WAN), bare)
    for _ in range(2):
        patched = sample(with_lora(model, contents), WAN)
        if mode == "bake":
            assert torch.equal(patched, expected)
        else:  # the plain layers among them are patched at use
            assert torch.allclose(patched, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(sample(model, WAN), bare)
    assert torch.equal(sample(plain, WAN), bare)
    assert report(model)["totals"]["bytes_streamed"] > 0


def opaque_bytes(block):
    return sum(one.numel() * one.element_size() for one in block.parameters() if type(one) is HalvedWeight)


def test_what_no_slot_can_hold_is_announced_and_told(offload, report, pack):
    plain = halved_model()
    blocks = blocks_of(plain, WAN)
    whole = [comfy.model_management.module_size(block) for block in blocks]
    opaque = [
        sum(p.numel() * p.element_size() for p in block.parameters() if type(p) is HalvedWeight) for block in blocks
    ]
    model = offload(plain, resident_blocks=3, prefetch_blocks=1)
    expected = sample(plain, WAN)
    assert torch.equal(sample(model, WAN), expected)

    state = model._streaming
    streamed = state.placement.streamed
    assert len(streamed) == len(blocks) - 3
    slots = state.streamer.slot_bytes
    assert slots < 2 * min(whole) - 2 * max(opaque) + 2 * 256 * 64
    residents = comfy.model_management.module_size(plain.model) - sum(whole[index] for index in streamed)
    assert model.model_size() == residents + slots + max(opaque[index] for index in streamed)
    moved = sum(opaque[index] for index in streamed) / 2**20
    assert sum(f"{moved:.0f} MiB of streamed weights are of a type" in note for note in report(model)["notes"]) == 1


def test_a_budget_counts_what_no_slot_can_hold(offload, report):
    plain = halved_model()
    blocks = blocks_of(plain, WAN)
    whole = comfy.model_management.module_size(plain.model)
    block = comfy.model_management.module_size(blocks[0])
    # what of each block is opaque is most of it: counting only the rest, every block would seem to fit
    model = offload(plain, vram_budget_gb=(whole - 2 * block) / 2**30, prefetch_blocks=1)
    assert torch.equal(sample(model, WAN), sample(plain, WAN))
    streamed = len(model._streaming.placement.streamed)
    assert 2 < streamed < len(blocks)
    assert model.model_size() <= whole - 2 * block
