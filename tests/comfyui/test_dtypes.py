"""Weights of every kind: manual cast and ComfyUI's quantised tensors, with and without LoRA, bit-identical."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import comfy.model_management
import comfy.quant_ops
import comfy.sd
import pytest
import torch
from rigs import real_comfy, tiny_sizes
from rigs.real_comfy import FAMILIES, WAN, blocks_of, build, lora, sample, with_lora
from rigs.tiny_models import config_of

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
LAYOUTS = [
    "TensorCoreFP8Layout",
    "TensorCoreFP8E4M3Layout",
    "TensorCoreFP8E5M2Layout",
    "TensorWiseINT8Layout",
    "TensorCoreNVFP4Layout",
    "TensorCoreMXFP8Layout",
]


def stored_as(family, dtype):
    """The family with weights stored in ``dtype`` and computed in float32."""

    def config():
        made = family.config()
        made.set_inference_dtype(dtype, torch.float32)
        return made

    return dataclasses.replace(family, config=config)


@each_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_manual_cast(offload, report, family, dtype):
    family = stored_as(family, dtype)
    plain = build(family)
    assert blocks_of(plain, family)[0].state_dict()[_a_weight(plain, family)].dtype == dtype
    contents = lora(plain, family)
    expected, with_patch = sample(plain, family), sample(with_lora(plain, contents), family)
    model = offload(plain, resident_blocks=2)
    assert torch.equal(sample(model, family), expected)
    # storage, not compute, dtype travels
    sizes = sum(p.numel() * p.element_size() for block in blocks_of(plain, family) for p in block.parameters())
    totals = report(model)["totals"]
    assert totals["bytes_streamed"] < totals["calls"] * sizes
    assert torch.equal(sample(with_lora(model, contents), family), with_patch)
    assert torch.equal(sample(offload(with_lora(plain, contents), resident_blocks=0), family), with_patch)


def _a_weight(patcher, family):
    return next(name for name, p in blocks_of(patcher, family)[0].named_parameters() if p.dim() > 1)


def quantised(layout):
    """A Wan whose blocks have some weights in a quantised layout; skips what this ComfyUI or machine lacks."""
    plain = build(WAN)
    make = comfy.quant_ops.QuantizedTensor.from_float
    try:
        for block in blocks_of(plain, WAN):
            for linear in (block.ffn[0], block.self_attn.q):
                scale = {} if layout != "TensorCoreFP8Layout" else {"scale": torch.tensor(0.01)}
                tensor = make(linear.weight.data, layout, **scale)
                linear.weight = torch.nn.Parameter(tensor, requires_grad=False)
    except (KeyError, ImportError) as error:
        pytest.skip(f"this ComfyUI has no {layout}: {error!r}")
    return plain


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_tensors(offload, pack, layout):
    plain = quantised(layout)
    expected = sample(plain, WAN)
    model = offload(plain, resident_blocks=2)
    assert torch.equal(sample(model, WAN), expected)
    streamer = pack.module("comfy_adapter.streaming.shared_state").streaming_of(model.model).streamer
    weights = next(iter(streamer.weights.values()))
    assert weights.packs_fully
    as_float = sum(p.numel() * 4 for p in blocks_of(plain, WAN)[0].parameters())
    assert weights.bytes_to_copy < as_float
    assert torch.equal(sample(plain, WAN), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_tensors_with_lora(offload, layout):
    plain = quantised(layout)
    if not hasattr(comfy.quant_ops, "TensorCoreFP8E4M3Layout"):
        pytest.skip("this ComfyUI cannot patch quantised weights on the CPU")
    contents = lora(plain, WAN)
    expected = sample(with_lora(plain, contents), WAN)
    assert torch.equal(sample(with_lora(offload(plain, resident_blocks=2), contents), WAN), expected)
    assert torch.equal(sample(offload(with_lora(plain, contents), resident_blocks=0), WAN), expected)


QUANTISED_WAN = dataclasses.replace(
    WAN,
    config=partial(
        config_of,
        "WAN21_T2V",
        {
            **tiny_sizes.WAN,
            "dim": 128,
            "ffn_dim": 256,
            "num_heads": 1,
            "num_layers": 6,
            "text_dim": 4096,
            "freq_dim": 256,
        },
    ),
    list_sizes={"blocks": 6},
    lora_layers=("blocks.0.self_attn.q", "blocks.3.ffn.0", "head.head"),
)
FORMATS = [("int8_tensorwise", "TensorWiseINT8Layout"), ("float8_e4m3fn", "TensorCoreFP8E4M3Layout")]


def checkpoint(quantisation, layout):
    """A checkpoint's contents as quantised models are distributed: inner tensors and a format for each layer."""
    if not hasattr(comfy.quant_ops, layout):
        pytest.skip(f"this ComfyUI has no {layout}")
    contents = {}
    for name, weight in build(QUANTISED_WAN).model.diffusion_model.state_dict().items():
        if not name.startswith("blocks.") or not name.endswith((".self_attn.q.weight", ".ffn.0.weight")):
            contents[name] = weight
            continue
        contents |= comfy.quant_ops.QuantizedTensor.from_float(weight, layout).state_dict(name)
        described = json.dumps({"format": quantisation}).encode()
        contents[f"{name.removesuffix('weight')}comfy_quant"] = torch.tensor(list(described), dtype=torch.uint8)
    return contents


@pytest.mark.parametrize(("quantisation", "layout"), FORMATS)
def test_a_quantised_checkpoint_by_comfyuis_own_loader(offload, monkeypatch, quantisation, layout):
    """Sampled and saved, with LoRA, as after a plain full load."""
    monkeypatch.setattr(real_comfy, "TEXT_WIDTH", 4096)
    plain = comfy.sd.load_diffusion_model_state_dict(checkpoint(quantisation, layout))
    assert type(blocks_of(plain, QUANTISED_WAN)[0].self_attn.q.weight).__name__ == "QuantizedTensor"
    contents = lora(build(QUANTISED_WAN), QUANTISED_WAN)
    reference = with_lora(plain, contents)
    expected, expected_file = sample(reference, QUANTISED_WAN), saved(reference)
    for settings in ({}, {"lora": "on_the_fly"}):
        model = with_lora(offload(plain, resident_blocks=2, **settings), contents)
        if not settings:
            assert torch.equal(sample(model, QUANTISED_WAN), expected)
        file = saved(model)
        assert file.keys() == expected_file.keys()
        assert all(torch.equal(file[name], expected_file[name]) for name in file)
    assert torch.equal(sample(offload(plain, resident_blocks=0), QUANTISED_WAN), sample(plain, QUANTISED_WAN))


def saved(model):
    """What ModelSave would write."""
    comfy.model_management.unload_all_models()
    with torch.inference_mode():
        comfy.model_management.load_models_gpu([model])
        return {name: tensor.to("cpu") for name, tensor in model.state_dict_for_saving().items()}
