"""The benchmarks' own arithmetic: tables, JSON, overlap, the GPU part's logic on other devices, plugging in a model."""

from __future__ import annotations

import json
import sys
import time
import types

import pytest
import torch
from doubles.virtual_device import VirtualDevice
from pack.offload.auto import Placement
from pack.offload.device import SynchronousDevice

from bench import command, costs, gpu
from bench.end_to_end import Example, compare, find_example, toy_digits
from bench.random_blocks import BlockShape, blocks_over, host_weights
from bench.settings import cache_settings
from bench.stepper import Stepper
from bench.tables import Part, write_json

SMALL = BlockShape(width=32, inner=64)
CPU = torch.device("cpu")


class HostMachine:
    """The CPU in the place of a card."""

    device = CPU

    def __init__(self):
        self.offload = SynchronousDevice(CPU)
        self.caps = []
        self.pinned = 0

    def now_ms(self):
        return time.perf_counter() * 1e3

    def cap(self, gigabytes):
        self.caps.append(gigabytes)

    def peak_bytes(self):
        return 12345

    def pin(self, tensor):
        self.pinned += 1
        return tensor.clone()


def test_a_part_shows_chosen_columns_and_rows():
    part = Part(
        "x",
        "Title",
        {"what": "{}", "s": "{:.1f}"},
        [{"what": "a", "s": 1.25, "more": 3}, {"what": "bb"}],
        notes=["why"],
    )
    assert part.text().splitlines() == ["Title", "  what    s", "  a     1.2", "  bb      -", "  - why"]
    part.shown = [1]
    assert part.text().splitlines() == ["Title", "  what  s", "  bb    -", "  - why"]
    assert Part("x", "Title", skipped="no card").text() == "Title\n  skipped: no card"


def test_the_json_holds_all_rows(tmp_path):
    part = Part("x", "Title", {"a": "{}"}, [{"a": 1}, {"a": 2, "b": [3]}], shown=[0])
    write_json(tmp_path / "r.json", [part, Part("y", "T", skipped="why")], {"torch": "2"})
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["machine"] == {"torch": "2"}
    assert content["parts"][0]["rows"] == [{"a": 1}, {"a": 2, "b": [3]}]
    assert content["parts"][1]["skipped"] == "why"


def test_parts_are_named_on_the_command_line(capsys):
    assert command.parsed(["published", "gpu"]).parts == ["published", "gpu"]
    assert command.parsed([]).parts == []
    with pytest.raises(SystemExit):
        command.parsed(["everything"])
    assert "unknown part everything" in capsys.readouterr().err


def test_without_comfyui_or_a_card_parts_are_skipped(monkeypatch):
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = command.parsed([])
    for name in ("import", "end_to_end"):
        assert command.PARTS[name](arguments).skipped == "COMFYUI_PATH is not set"
    assert command.PARTS["gpu"](arguments).skipped == "no CUDA device here"
    assert command.machine()["card"] is None


def test_costs_measure_something():
    values = {**costs.hook_costs(repeats=3), **costs.packing_costs(repeats=3)}
    assert len(values) == 6
    assert all(isinstance(value, float) for value in values.values())


def test_the_cards_description_is_read():
    fields = ("name", "driver_version", "width")
    assert gpu.parsed_card("NVIDIA X, 550.1, 16\nNVIDIA Y, 550.1, 8\n", fields) == {
        "name": "NVIDIA X",
        "driver_version": "550.1",
        "width": "16",
    }


def test_overlap():
    assert gpu.overlap(40.0, 100.0, 100.0) == 1.0
    assert gpu.overlap(40.0, 100.0, 140.0) == 0.0
    assert gpu.overlap(100.0, 40.0, 120.0) == 0.5
    assert gpu.overlap(0.0, 100.0, 100.0) is None


def test_random_blocks_are_as_big_as_h3s():
    assert gpu.H3.weights == pytest.approx(617e6, rel=0.01)
    for precision, bytes_a_weight in (("bf16", 2), ("int8", 1)):
        weights = host_weights(SMALL, precision, 2)
        blocks = blocks_over(weights, 5)
        size = sum(parameter.numel() * parameter.element_size() for parameter in blocks[0].parameters())
        assert size == SMALL.weights * bytes_a_weight
        assert blocks[0].attention_in.weight.data_ptr() == blocks[2].attention_in.weight.data_ptr()
        assert blocks[0].attention_in.weight.data_ptr() != blocks[1].attention_in.weight.data_ptr()
        hidden = gpu.random_hidden(6, 32)
        output = blocks[0](hidden)
        assert output.shape == hidden.shape
        assert output.isfinite().all()
        assert not torch.equal(output, hidden)
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        host_weights(SMALL, "fp8", 1)


def test_every_way_is_measured_at_every_cap():
    machine = HostMachine()
    part = gpu.measure(machine, SMALL, tokens=6, blocks=6, caps=(2, 1), steps=9, reserve_gb=1.0)
    assert len(part.rows) == 2 * 2 * len(gpu.WAYS)
    assert machine.caps == [*[2] * 5, *[1] * 5, *[2] * 5, *[1] * 5, None]
    assert machine.pinned == 4 * 4 + 4 * 8
    for row in part.rows:
        way = next(way for way in gpu.WAYS if way.name == row["way"])
        assert row["hits"] == (4 if way.cached else 0)
        assert (row["stay"] < 6) == (way.streamed and row["cap GB"] == 1)
        assert (row["streamed GB"] > 0) == (row["stay"] < 6)
        assert row["peak GB"] == 12345 / 1e9
    assert "streamed, pageable" in part.text()


def test_a_way_that_does_not_fit_is_said_so(monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(gpu, "run_way", full)
    part = gpu.measure(HostMachine(), SMALL, tokens=6, blocks=2, caps=(1,), steps=2)
    assert {row["note"] for row in part.rows} == {"does not fit"}


def stepper(placement, cache=None, calls=9, stack=None):
    stack = stack or blocks_over(host_weights(SMALL, "bf16", 2), 6)
    hidden = gpu.random_hidden(6, 32)
    return Stepper(stack, placement, SynchronousDevice(CPU), CPU, hidden, cache, calls)


@pytest.mark.parametrize("streamed", [(), (1, 3, 5), tuple(range(6))])
def test_streamed_steps_compute_what_plain_ones_do(streamed):
    plain, other = stepper(Placement()), stepper(Placement(streamed, 1))
    for number in range(3):
        plain.call(number, [False] * 9)
        other.call(number, [False] * 9)
        assert torch.equal(plain.output, other.output)


def test_the_cache_takes_the_pattern_it_is_offered():
    cache = cache_settings(1, 0, 0, 0.5, -1, compute_last_step=False)
    pattern = [False, False, True, True, False, True, False, False, True]
    run = stepper(Placement((1, 2, 3, 4, 5), 1), cache)
    for number in range(9):
        run.call(number, pattern)
    assert run.hits == pattern


class Timed(torch.nn.Module):
    """Ten milliseconds of the virtual device."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x):
        self.device.compute(10.0)
        return x * self.weight


@pytest.mark.parametrize("copy_ms", [5.0, 10.0, 40.0])
def test_the_overlap_measured_on_the_virtual_device(copy_ms):
    device = VirtualDevice(16 / copy_ms)

    def now():
        device.host_time = max(device.host_time, device.compute_time, device.bus_time)
        return device.host_time

    machine = types.SimpleNamespace(device=CPU, offload=device, now_ms=now)
    way = gpu.Way("streamed", streamed=True, cached=False)
    row = gpu.run_way(machine, [Timed(device) for _ in range(20)], torch.ones(8, dtype=torch.bfloat16), 0.0, 4, way)
    assert row["stay"] == 0
    assert row["copies ms"] == pytest.approx(20 * copy_ms)
    assert row["compute ms"] == pytest.approx(200.0)
    assert row["GB a step"] == pytest.approx(20 * 256 / 1e9)
    # the budget leaves one slot: nothing overlaps
    assert row["overlap"] == pytest.approx(0.0, abs=0.01)
    row = gpu.run_way(machine, [Timed(device) for _ in range(20)], torch.ones(8, dtype=torch.bfloat16), 600.0, 4, way)
    assert row["overlap"] == pytest.approx(1.0, abs=0.05)


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
