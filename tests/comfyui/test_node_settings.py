"""Every input of the two nodes arrives where it is used, under its own name; what they cannot work with is named."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from rigs.real_comfy import WAN, build

CACHE = {
    "Fn": ("fn", 2),
    "Bn": ("bn", 3),
    "warmup_steps": ("warmup_steps", 5),
    "residual_diff_threshold": ("threshold", 0.25),
    "max_continuous_cached_steps": ("max_continuous", 4),
    "max_cached_steps": ("max_cached", 7),
    "calibrator": ("calibrator", "sigma_taylor"),
    "calibrator_order": ("calibrator_order", 2),
    "scm": ("scm", "fast"),
    "scm_policy": ("scm_policy", "static"),
    "start_percent": ("start_percent", 0.125),
    "end_percent": ("end_percent", 0.875),
    "cache_device": ("cache_device", "cpu"),
    "verbose": ("verbose", True),
    "compute_last_step": ("compute_last_step", False),
}
OFFLOAD = {
    "engine": "layerwise",
    "resident_blocks": 3,
    "vram_budget_gb": 1.5,
    "residency_policy": "leading",
    "prefetch_blocks": 2,
    "pin_memory": "off",
    "lora": "on_the_fly",
}


def test_dbcache(pack, dbcache):
    model = dbcache(build(WAN), preset="custom", **{name: value for name, (_, value) in CACHE.items()})
    rules = pack.module("comfy_adapter.attachments").attached(model).cache
    assert rules.preset == "custom"
    assert {field: getattr(rules, field) for field, _ in CACHE.values()} == dict(CACHE.values())


def test_settings_made_without_the_node_are_the_nodes(pack):
    """A script that leaves an input out gets the cache that the node would make."""
    declared = {item.id: item for item in pack.nodes["DiTDBCache"].define_schema().inputs}
    of_node = {field: declared[name].default for name, (field, _) in {**CACHE, "preset": ("preset", "")}.items()}
    assert set(declared) == {*CACHE, "preset", "model"}
    assert of_node == vars(pack.module("dbcache.rules").DBCacheSettings())


def test_options_are_those_of_the_tables(pack):
    rules = pack.module("dbcache.rules")
    options = {item.id: getattr(item, "options", None) for item in pack.nodes["DiTDBCache"].define_schema().inputs}
    assert {name: listed for name, listed in options.items() if listed} == {
        "preset": [*rules.PRESETS, "custom"],
        "calibrator": list(pack.module("dbcache.calibrators").CALIBRATORS),
        "scm": list(rules.SCM_MASKS),
        "scm_policy": list(rules.SCM_POLICIES),
        "cache_device": list(rules.CACHE_DEVICES),
    }


def test_offload(offload):
    settings = offload(build(WAN), **OFFLOAD).layerwise_settings
    assert {name: getattr(settings, name) for name in OFFLOAD} == OFFLOAD


def test_the_offload_nodes_defaults_and_choices_are_those_of_its_settings(pack):
    settings = pack.module("comfy_adapter.streaming.settings")
    inputs = {one.id: one for one in pack.nodes["DiTLayerwiseOffload"].define_schema().inputs[1:]}
    assert {name: one.default for name, one in inputs.items()} == dataclasses.asdict(settings.OffloadSettings())
    every = {**OFFLOAD, "engine": "layerwise"}
    for name, one in inputs.items():
        for choice in getattr(one, "options", None) or ():
            assert getattr(settings.OffloadSettings(**{**every, name: choice}), name) == choice
        with pytest.raises(ValueError, match=name):
            settings.OffloadSettings(**{**every, name: one.min - 1 if hasattr(one, "min") else "none of them"})


def test_a_torch_that_is_too_old_is_named_when_the_node_executes(offload, monkeypatch):
    model = build(WAN)
    model.load_device = torch.device("cuda")
    monkeypatch.delattr(torch, "accelerator")
    with pytest.raises(RuntimeError, match=r"needs 2\.6 or newer"):
        offload(model)
