"""Models that the family table does not know: proven on their first call, computed exactly, or refused by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from rigs import real_comfy
from rigs.family_rig import FORCED, HITS, ByHand, build, sample
from rigs.tiny_families import TINY_FAMILIES
from rigs.tiny_family import TinyFamily
from rigs.tiny_rarer_families import RARER_FAMILIES
from rigs.tiny_sizes import VIDEO_LATENT, WAN

BY_NAME = {family.name: family for family in TINY_FAMILIES}


@pytest.fixture
def unknown(pack, monkeypatch):
    """Empty the table, as far as finding stacks goes."""
    families = pack.module("comfy_adapter.families.find")
    for name in ("family_of", "find_stack"):
        function = getattr(families, name)
        monkeypatch.setattr(function, "__defaults__", ((),))
    return families


@pytest.fixture
def computed_exactly(offload, dbcache, report):
    """Sample a family with both nodes, which must skip no block and change no bit; returns the run's report."""

    def sampled(family):
        plain = build(family)
        expected = sample(plain, family)
        model = dbcache(offload(plain, resident_blocks=1), **FORCED)
        assert torch.equal(sample(model, family), expected)
        run = report(model)
        assert run["totals"]["hits"] == 0
        return run

    return sampled


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
    [note] = [note for note in run["notes"] if "no table describes this model" in note]
    assert (
        f'Family("{stack.family.name}", ("{stack.family.name}",), (BlockList("{stack.family.lists[0].path}", ' in note
    )
    assert torch.equal(sample(model, family), cached)
    assert torch.equal(sample(plain, family), expected)


def test_what_is_proven_is_what_the_table_says(dbcache, unknown):
    family = BY_NAME["wan21_t2v"]
    plain = build(family)
    known = unknown.find_stack(plain.model.diffusion_model, unknown.FAMILIES)
    assert known.layout is not None
    expected = sample(ByHand(known).on(plain), family)
    assert torch.equal(sample(dbcache(plain, **FORCED), family), expected)


def test_what_cannot_be_proven_is_computed_exactly(computed_exactly, unknown):
    """HiDream gives each block text tokens of its own, joined to what the block before it returned."""
    family, why = BY_NAME["hidream"], "is not given what block"
    mostly_single = {"num_layers": 1, "num_single_layers": 9, "llama_layers": [0] * 10}
    run = computed_exactly(dataclasses.replace(family, unet={**family.unet, **mostly_single}))
    assert len([note for note in run["notes"] if why in note and "computed exactly" in note]) == 1
    assert all(why in call["reason"] for call in run["calls"])


def test_a_unet_is_refused_by_name(offload, dbcache, unet):
    for node in (offload, dbcache):
        with pytest.raises(ValueError, match=r"model is a UNetModel, .*every part of a UNet takes"):
            node(unet)


def test_blocks_that_are_never_called_as_modules_are_refused_by_name(offload, dbcache):
    """Wan Animate 2 looks like Wan, but nothing can be put around its blocks: streamed weights would never arrive."""
    patcher = build(
        TinyFamily("wan_animate2", "WAN_Animate2", {**WAN, "model_type": "animate2", "in_dim": 36}, VIDEO_LATENT)
    )
    for node in (offload, dbcache):
        with pytest.raises(ValueError, match=r"model is a WanAnimate2Model, .*three methods of each block"):
            node(patcher)


@pytest.mark.parametrize("name", ["hidream_o1", "seedvr2", "wan21_causal"])
def test_families_that_cannot_be_cached_say_why(dbcache, name):
    family = next(one for one in RARER_FAMILIES if one.name == name)
    with pytest.raises(ValueError, match=r"which DBCache cannot skip blocks of: .*DiT Layerwise Offload works"):
        dbcache(build(family))


def test_long_music_is_computed_exactly(computed_exactly):
    """MiniMax Music 3 runs its stack once a window within one call."""
    music = next(one for one in RARER_FAMILIES if one.name == "minimax_music3")
    run = computed_exactly(dataclasses.replace(music, latent=(1, 128, 700)))
    assert all("ran after block" in call["reason"] for call in run["calls"])
    assert sum("Calls of this kind are computed exactly" in note for note in run["notes"]) == 1
    assert all(call["blocks_run"] == [*range(6)] * 2 for call in run["calls"][1:])


def test_a_cache_that_skips_whole_steps_is_warned_of_before_the_stack_is_known(unknown, dbcache, report):
    model = real_comfy.easy_cache(dbcache(real_comfy.build(real_comfy.WAN), **FORCED), "LazyCache")
    real_comfy.sample(model, real_comfy.WAN)
    assert sum("skips whole steps" in note for note in report(model)["notes"]) == 1
