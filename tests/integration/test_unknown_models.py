"""Models that the family table does not know: proven on their first call, computed exactly, or refused by name."""

from __future__ import annotations

import pytest
import torch
from family_rig import FORCED, HITS, ByHand, build, sample
from tiny_families import TINY_FAMILIES

BY_NAME = {family.name: family for family in TINY_FAMILIES}


@pytest.fixture
def unknown(pack, monkeypatch):
    """Empty the table, as far as finding stacks goes."""
    families = pack.module("comfy_adapter.families")
    for name in ("family_of", "find_stack"):
        function = getattr(families, name)
        monkeypatch.setattr(function, "__defaults__", ((),))
    return families


@pytest.mark.parametrize("name", ["wan21_t2v", "ltxv", "lumina2", "qwen_image", "cosmos_predict2"])
def test_a_stack_in_one_list_is_proven_and_cached(offload, dbcache, report, unknown, name):
    family = BY_NAME[name]
    plain = build(family)
    expected = sample(plain, family)
    stack = unknown.find_stack(plain.model.diffusion_model)
    assert stack.layout is None
    assert torch.equal(sample(offload(plain, resident_blocks=1), family), expected)
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "warmup_steps": 100}), family), expected)
    model = dbcache(offload(plain, resident_blocks=1), **FORCED)
    cached = sample(model, family)
    run = report(model)
    assert run["calls"][0]["reason"] == "first call: the block stack is looked at"
    assert {call["step"] for call in run["calls"] if call["outcome"] == "hit"} == set(HITS)
    for call in run["calls"]:
        assert len(call["blocks_run"]) == (2 if call["step"] in HITS else len(stack.blocks))
    assert run["totals"]["bytes_wasted"] == 0
    assert torch.equal(sample(model, family), cached)
    assert torch.equal(sample(plain, family), expected)


def test_what_is_proven_is_what_the_table_says(dbcache, pack, monkeypatch):
    family = BY_NAME["wan21_t2v"]
    plain = build(family)
    families = pack.module("comfy_adapter.families")
    known = families.find_stack(plain.model.diffusion_model)
    expected = sample(ByHand(known).on(plain), family)
    for name in ("family_of", "find_stack"):
        monkeypatch.setattr(getattr(families, name), "__defaults__", ((),))
    assert torch.equal(sample(dbcache(plain, **FORCED), family), expected)


def test_what_cannot_be_proven_is_computed_exactly(offload, dbcache, report, unknown):
    """HiDream gives each block text tokens of its own, joined to what the block before it returned."""
    family, why = BY_NAME["hidream"], "is not given what block"
    plain = build(family)
    expected = sample(plain, family)
    model = dbcache(offload(plain, resident_blocks=1), **FORCED)
    assert torch.equal(sample(model, family), expected)
    run = report(model)
    assert run["totals"]["hits"] == 0
    assert len([note for note in run["notes"] if why in note and "computed exactly" in note]) == 1
    assert all(why in call["reason"] for call in run["calls"])


def test_a_unet_is_refused_by_name(offload, dbcache):
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.SD15(
        {
            "image_size": 32,
            "in_channels": 4,
            "out_channels": 4,
            "model_channels": 32,
            "num_res_blocks": [1, 1],
            "channel_mult": [1, 1],
            "transformer_depth": [1, 1],
            "transformer_depth_output": [1, 1, 1, 1],
            "transformer_depth_middle": 1,
            "context_dim": 16,
            "num_heads": 2,
            "use_spatial_transformer": True,
            "use_linear_in_transformer": False,
            "adm_in_channels": None,
            "use_temporal_attention": False,
            "legacy": False,
        }
    )
    config.set_inference_dtype(torch.float32, None)
    patcher = comfy.model_patcher.ModelPatcher(config.get_model({}, ""), torch.device("cpu"), torch.device("cpu"))
    for node in (offload, dbcache):
        with pytest.raises(ValueError, match="model is a UNetModel, in which no stack"):
            node(patcher)


@pytest.mark.parametrize("name", ["hidream_o1", "seedvr2"])
def test_families_that_cannot_be_cached_say_why(pack, name):
    table = {cls: family for family in pack.module("comfy_adapter.family_table").FAMILIES for cls in family.classes}
    classes = {"hidream_o1": "HiDreamO1Transformer", "seedvr2": "NaDiT"}
    family = table[classes[name]]
    diffusion_model = type(classes[name], (torch.nn.Module,), {})()
    container = diffusion_model
    *parents, last = family.lists[0].path.split(".")
    for parent in parents:
        inner = torch.nn.Module()
        container.add_module(parent, inner)
        container = inner
    container.add_module(last, torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(6)))
    model = type("Model", (), {"model": type("Inner", (), {"diffusion_model": diffusion_model})(), "model_options": {}})
    with pytest.raises(ValueError, match=f"{family.name}.*{family.no_cache}.*DiT Layerwise Offload works"):
        pack.execute("DiTDBCache", model())
