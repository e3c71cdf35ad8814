"""Sampling in ComfyUI for benchmarks: another model, every way in turn, under a cap."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

from bench import command, gpu_comfyui
from bench.end_to_end import Example, compare, find_example, toy_digits


def test_another_model_can_be_plugged_in():
    assert find_example("bench.end_to_end:toy_digits") is toy_digits
    for wrong in ("bench.end_to_end:nothing", "no.such.module:function", "nonsense"):
        with pytest.raises(ValueError, match="must name a function"):
            find_example(wrong)


class FakePack:
    """Stands in for the loaded pack: its nodes mark the model, the report says what the mark stands for."""

    def execute(self, node, model, **inputs):
        if node == "DiTRunReport":
            return model, json.dumps({"totals": {"hits": 3, "bytes_streamed": 2**20, "bytes_wasted": 0}})
        return (types.SimpleNamespace(mark=f"{model.mark} {node} {inputs}", loaded_size=lambda: 2**21),)


def test_every_way_is_sampled_in_every_round_and_compared_with_its_plain_one(monkeypatch):
    unloaded, sampled = [], []
    management = types.ModuleType("comfy.model_management")
    management.unload_all_models = lambda: unloaded.append(1)
    comfy = types.ModuleType("comfy")
    comfy.model_management = management
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)

    def sample(model, steps):
        sampled.append((model.mark, steps))
        return torch.zeros(2) if model.mark == "plain" else torch.ones(2)

    plain = types.SimpleNamespace(mark="plain", loaded_size=lambda: 2**22)
    part = compare(Example("x", plain, sample, 7, 2, "fast"), FakePack(), rounds=2)
    assert [row["way"] for row in part.rows] == ["plain", "offload", "DBCache", "both"]
    assert len(unloaded) == 3 * 4
    assert [steps for _, steps in sampled] == [2, 7] * 12
    assert len({mark for mark, _ in sampled}) == 4
    row = part.rows[0]
    assert (row["to plain"], row["hits"], row["weights MiB"], row["max diff"]) == (1.0, 0, 4.0, 0.0)
    row = part.rows[3]
    assert (row["hits"], row["streamed MiB"], row["weights MiB"], row["max diff"]) == (3, 1.0, 2.0, 1.0)
    assert len(row["seconds"]) == 2


def test_comfyui_is_sampled_under_every_cap(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("COMFYUI_PATH", "somewhere")

    def run(cap):
        return {
            "title": "a model",
            "notes": ["how"],
            "rows": [{"way": "plain", "median s": 8.0 / cap}, {"way": "both"}],
        }

    part = gpu_comfyui.measure_comfyui((4, 2), run)
    assert [(row["cap GB"], row["way"]) for row in part.rows] == [(4, "plain"), (4, "both"), (2, "plain"), (2, "both")]
    assert part.rows[2]["median s"] == 4.0
    monkeypatch.delenv("COMFYUI_PATH")
    assert gpu_comfyui.measure_comfyui((4,), run).skipped == "COMFYUI_PATH is not set"


def test_a_process_is_limited_to_part_of_the_card(monkeypatch):
    limits = []
    assert command.limited_to(8.0) == ["--cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(total_memory=24 * 2**30)
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limits.append)
    assert command.limited_to(0.0) == command.limited_to(99.0) == [] == limits
    option, reserved = command.limited_to(16 * 2**30 / 1e9)
    assert option == "--reserve-vram"
    assert float(reserved) == pytest.approx(8.0)
    assert limits == [pytest.approx(16 / 24)]
