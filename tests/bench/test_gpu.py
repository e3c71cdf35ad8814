"""The GPU part's logic, on other devices than a GPU."""

from __future__ import annotations

import time
import types
import weakref

import pytest
import torch
from pack.offload.devices.synchronous import SynchronousDevice
from pack.offload.devices.virtual import VirtualDevice
from pack.offload.placement import Placement

from bench import gpu
from bench.random_blocks import BlockShape, blocks_over, host_weights
from bench.settings import cache_settings
from bench.stepper import Stepper

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
    without = [way for way in gpu.WAYS if not way.streamed]
    assert len(part.rows) == 2 * (2 * len(gpu.WAYS) + len(without))
    assert machine.caps == [*[None] * 2, *[2] * 5, *[1] * 5] * 2 + [None]
    assert machine.pinned == 4 * 4 + 4 * 8
    for row in part.rows:
        way = next(way for way in gpu.WAYS if way.name == row["way"])
        assert row["hits"] == (4 if way.cached else 0)
        assert row["to bound"] == pytest.approx(row["step ms"] / max(row["copies ms"], row["compute ms"]))
        assert (row["stay"] < 6) == (way.streamed and row["cap GB"] == 1)
        assert (row["streamed GB"] > 0) == (row["stay"] < 6)
        assert row["peak GB"] == 12345 / 1e9
    plain = [row for row in part.rows if (row["way"], row["cap GB"]) == ("plain", None)]
    for row in part.rows:
        [reference] = [one for one in plain if one["precision"] == row["precision"]]
        assert row["to plain"] == pytest.approx(sum(row["all ms"]) / sum(reference["all ms"]))
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


@pytest.mark.parametrize("failing", ["made", "called"])
def test_nothing_of_a_way_that_did_not_fit_is_left_for_the_next(failing, monkeypatch):
    """Not even what it had moved before: the next peak would be wrong."""
    alive = weakref.WeakSet()

    class Greedy(Stepper):
        def __init__(self, blocks, *arguments):
            alive.update(blocks)
            alive.add(self)
            super().__init__(blocks, *arguments)
            if failing == "made":
                raise torch.OutOfMemoryError("full")

        def call(self, number, pattern):
            if number == 2:
                raise torch.OutOfMemoryError("full")
            super().call(number, pattern)

    class Checking(HostMachine):
        def cap(self, gigabytes):
            assert not alive
            super().cap(gigabytes)

    monkeypatch.setattr(gpu, "Stepper", Greedy)
    machine = Checking()
    part = gpu.measure(machine, SMALL, tokens=6, blocks=3, caps=(1,), steps=4)
    assert {row["note"] for row in part.rows} == {"does not fit"}
    assert len(machine.caps) == 2 * 7 + 1


def test_where_the_plain_run_does_not_fit_ratios_are_to_compute():
    row = {"step ms": 30.0, "run ms": 60.0, "all ms": [30.0, 30.0], "copies ms": 20.0, "compute ms": 25.0}
    assert gpu.compared(row, None) == gpu.compared(row, {"note": "does not fit"})
    assert gpu.compared(row, None) == {"to plain": 60 / 50, "to bound": 30 / 25, "note": "of compute"}
    assert gpu.compared(row, {"run ms": 40.0}) == {"to plain": 1.5, "to bound": 1.2, "note": ""}
    assert gpu.compared({"note": "does not fit"}, None) == {}
