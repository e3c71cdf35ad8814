"""What auto chooses: edges, reasons, and that no other window is much better in the simulation."""

from __future__ import annotations

import itertools
import math

import pytest
from pack.offload.block_weights import BlockWeights
from pack.offload.devices.virtual import VirtualDevice
from pack.offload.placement import Placement, call_ms, choose_placement, explain
from pack.offload.residency import choose_streamed, slot_bytes
from pack.offload.streamer import BlockStreamer
from pack.offload.timing import BlockTiming, CallTimer
from pack.stack.outlook import Outlook
from torch import nn, uint8, zeros

from bench.policies import planned
from bench.settings import cache_settings
from bench.simulation import Scenario, simulate
from bench.trajectories import GivenPattern, capped_pattern

GB = 10**9
UNIFORM = (400_000_000,) * 20
UNEVEN = (680_000_000,) * 8 + (280_000_000,) * 16


def timing(ratio, sizes=UNIFORM, compute=10.0):
    """A bus on which an average block takes ``ratio`` times as long as it computes."""
    return BlockTiming(compute, sum(sizes) / len(sizes) / (compute * ratio))


def test_everything_fits():
    for known in (None, timing(0.1), timing(10)):
        placement = choose_placement(UNIFORM, GB, 9 * GB, timing=known)
        assert placement == Placement((), 0)
        assert placement.reason == "all 20 blocks stay on the device, nothing is streamed"


def test_no_limit_is_everything_fits():
    assert choose_placement(UNIFORM, GB, math.inf).streamed == ()


@pytest.mark.parametrize("known", [None, timing(0.1), timing(10)])
def test_nothing_fits(known):
    placement = choose_placement(UNIFORM, GB, 0, timing=known)
    assert placement == Placement(tuple(range(20)), 0)
    assert "no room for even one block" in placement.reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"budget": 500_000_000}, "room for one slot only"),
        ({"budget": 5 * GB, "prefetch": 0}, "prefetch_blocks is 0"),
        ({"budget": 8 * GB, "max_resident": 19}, "it is the only one"),
        ({"budget": 3}, "no room for even one block"),
    ],
)
def test_what_leaves_no_choice_is_the_reason(arguments, reason):
    placement = choose_placement(UNIFORM, 0, timing=timing(1), **arguments)
    assert placement.streamed
    assert placement.prefetch == 0
    assert reason in placement.reason
    # measured later, the reason stays
    assert reason in explain(UNIFORM, placement, timing(20))


def test_copies_that_hide_in_part_are_not_said_to_hide():
    """Big blocks in a row: together the copies are shorter than compute, but not where they are needed."""
    known = timing(0.7, UNEVEN)
    placement = choose_placement(UNEVEN, 0, 2.2 * GB, policy="leading", prefetch=1, timing=known)
    assert "copies hide in part" in placement.reason
    even = choose_placement(UNIFORM, 0, 2.2 * GB, policy="leading", prefetch=1, timing=timing(0.7))
    assert "copies hide behind compute" in even.reason


def test_without_a_cache_measured_times_choose_the_policy():
    known = timing(5, UNEVEN)
    chosen = choose_placement(UNEVEN, 0, 7 * GB, timing=known)
    assert chosen.policy == "leading"  # the big ones stay: small slots leave room for more
    assert choose_placement(UNEVEN, 0, 7 * GB, timing=known, policy="strided").policy == "strided"
    assert choose_placement(UNEVEN, 0, 7 * GB).policy == "strided"
    assert choose_placement(UNEVEN, 0, 7 * GB, timing=known, cached=True, front=1).policy == "cache_aware"


def test_one_block():
    assert choose_placement((GB,), 0, 2 * GB) == Placement((), 0)
    # one slot is all that one block can use
    assert choose_placement((GB,), 0, 2 * GB, max_resident=0) == Placement((0,), 0)


def test_compute_much_longer_than_copies():
    placement = choose_placement(UNIFORM, GB, 5 * GB, timing=timing(0.1))
    assert placement.prefetch == 1
    assert 20 - len(placement.streamed) == 8
    assert placement.reason == (
        "8 of 20 blocks stay (strided), 1 copied ahead: copies hide behind compute (1 ms to copy a block, 10 ms to"
        " compute one)"
    )


def test_copies_longer_than_compute():
    placement = choose_placement(UNIFORM, GB, 5 * GB, timing=timing(3))
    assert placement.prefetch == 1
    assert "the bus is the limit (30 ms to copy a block, 10 ms to compute one)" in placement.reason


@pytest.mark.parametrize("known", [BlockTiming(0.0, 1e6), timing(1000)], ids=["zero compute", "hardly any"])
def test_a_block_that_stays_is_worth_more_than_overlap_where_compute_is_nothing(known):
    placement = choose_placement(UNIFORM, GB, 5 * GB, timing=known)
    assert (20 - len(placement.streamed), placement.prefetch) == (9, 0)
    assert "worth more than copying ahead" in placement.reason


def test_with_the_cache_its_blocks_stay_first():
    placement = choose_placement(UNIFORM, 0, 2 * GB, cached=True, front=1, back=2)
    assert placement.policy == "cache_aware"
    assert not {0, 18, 19} & set(placement.streamed)
    assert choose_placement(UNIFORM, 0, 2 * GB).policy == "strided"


def test_what_was_asked_for_is_kept():
    placement = choose_placement(
        UNIFORM, 0, 5 * GB, policy="leading", prefetch=3, max_resident=2, timing=timing(1000), cached=True, front=1
    )
    assert placement == Placement(tuple(range(2, 20)), 3)
    assert placement.reason.startswith("2 of 20 blocks stay (leading), 3 copied ahead")


@pytest.mark.parametrize("sizes", [UNIFORM, UNEVEN], ids=["uniform", "uneven"])
@pytest.mark.parametrize("known", [None, timing(0.1), timing(30), BlockTiming(0.0, 1e6)])
def test_never_over_budget_unless_nothing_fits(sizes, known):
    for budget in range(0, 11 * GB, GB // 4):
        placement = choose_placement(sizes, GB, budget, timing=known)
        kept = sum(sizes) - sum(sizes[index] for index in placement.streamed)
        used = GB + kept + slot_bytes(sizes, placement.streamed, placement.prefetch)
        assert used <= budget or (kept == 0 and placement.prefetch == 0)


def test_placements_are_equal_whatever_the_reason():
    assert Placement((1,), 1, "strided", "asked", "one") == Placement((1,), 1, "leading", "", "other")


def simulated(sizes, streamed, prefetch, known, cached):
    scenario = Scenario(sizes, (known.compute_ms,) * len(sizes), known.bytes_per_ms, streamed, prefetch)
    settings = pattern = None
    if cached is not None:
        settings = cache_settings(1, cached, 3, 0.5, 2)
        pattern = GivenPattern(capped_pattern(9, 3, 2))
    return simulate(scenario, 9, planned, settings, pattern).ms


@pytest.mark.parametrize("sizes", [UNIFORM, UNEVEN], ids=["uniform", "uneven"])
@pytest.mark.parametrize("cached", [None, 0, 2], ids=["no cache", "F1 B0", "F1 B2"])
@pytest.mark.parametrize("ratio", [0.05, 0.9, 1.1, 2, 5, 30])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_nothing_else_is_much_better_in_the_simulation(share, ratio, cached, sizes):
    """All windows up to 4 with the most residents each leaves room for, and both policies without a cache."""
    known, budget, back = timing(ratio, sizes), share * sum(sizes), cached or 0
    chosen = choose_placement(sizes, 0, budget, cached=cached is not None, front=1, back=back, timing=known)
    times = {}
    policies = ("strided", "leading") if cached is None else ("cache_aware",)
    for window, policy in itertools.product(range(5), policies):
        streamed = choose_streamed(sizes, 0, budget, policy=policy, prefetch=window, front=1, back=back)
        if slot_bytes(sizes, streamed, window) <= budget:
            times[window, policy] = simulated(sizes, streamed, window, known, cached)
    assert simulated(sizes, chosen.streamed, chosen.prefetch, known, cached) <= 1.05 * min(times.values()), times


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("ratio", [0.1, 1, 10])
def test_the_estimate_is_what_the_simulation_takes(prefetch, ratio):
    known = timing(ratio)
    streamed = choose_streamed(UNIFORM, 0, 5 * GB, policy="strided", prefetch=prefetch)
    once, twice = (
        simulate(Scenario(UNIFORM, (10.0,) * 20, known.bytes_per_ms, streamed, prefetch), calls, planned).ms
        for calls in (4, 8)
    )
    step = (twice - once) / 4
    assert step == pytest.approx(call_ms(UNIFORM, Placement(streamed, prefetch), known), rel=0.05)


class _Block(nn.Module):
    def __init__(self, device, units, ms):
        super().__init__()
        self.device, self.ms = device, ms
        self.register_buffer("weight", zeros(units, dtype=uint8))

    def forward(self, x):
        self.device.compute(self.ms)
        return x


def engine(times, streamed, bandwidth=50.0, units=1000):
    device = VirtualDevice(bandwidth)
    blocks = [_Block(device, units, ms) for ms in times]
    weights = {index: BlockWeights(blocks[index]) for index in streamed}
    return device, blocks, BlockStreamer(weights, len(blocks), device, 1)


def run_call(blocks, streamer, ran=None):
    streamer.begin_call(Outlook(next_head=len(blocks)))
    for index in range(len(blocks)) if ran is None else ran:
        streamer.run_block(index, blocks[index].forward, (0,), {})
    streamer.end_call()


def test_the_first_full_call_is_measured_without_waiting_for_it():
    device, blocks, streamer = engine([7.0] * 5 + [70.0], range(1, 6))
    run_call(blocks, streamer)
    run_call(blocks, streamer)
    # the host ran ahead: nothing of the first call is known to have passed
    assert (streamer.timing, device.host_time) == (None, 0.0)
    device.synchronise()
    run_call(blocks, streamer)
    assert streamer.timing == BlockTiming(compute_ms=pytest.approx(7.0), bytes_per_ms=pytest.approx(50.0))


def test_a_call_that_left_blocks_out_is_not_measured():
    device, blocks, streamer = engine([7.0] * 6, range(6))
    for ran in ((0, 5), (0, 1, 2, 3, 5, 5), None, (0,)):
        assert streamer.timing is None
        run_call(blocks, streamer, ran)
        device.synchronise()
    run_call(blocks, streamer)
    assert streamer.timing.compute_ms == pytest.approx(7.0)


def test_each_run_can_be_measured_anew():
    device, blocks, streamer = engine([7.0] * 6, range(6))

    def calls(number):
        for _ in range(number):
            run_call(blocks, streamer)
            device.synchronise()

    calls(3)
    assert streamer.timing.compute_ms == pytest.approx(7.0)
    for block in blocks:
        block.ms = 9.0
    calls(3)
    assert streamer.timing.compute_ms == pytest.approx(7.0)
    streamer.time_next_call()
    run_call(blocks, streamer)
    streamer.time_next_call()  # a measurement under way is not thrown away
    assert streamer.timing.compute_ms == pytest.approx(7.0)  # until the new figures are there
    device.synchronise()
    calls(2)
    assert streamer.timing.compute_ms == pytest.approx(9.0)


@pytest.mark.parametrize("method", ["stamp", "copy_stamp", "elapsed_ms"])
def test_a_device_that_cannot_time_goes_on_without(method, monkeypatch, caplog):
    device, blocks, streamer = engine([7.0] * 6, range(6))

    def fail(*_):
        raise RuntimeError("no events")

    monkeypatch.setattr(device, method, fail)
    for _ in range(3):
        run_call(blocks, streamer)
        device.synchronise()
    assert streamer.timing is None
    assert sum("not timed" in record.getMessage() for record in caplog.records) == 1
    assert streamer.counts.wasted_bytes == 0


def test_nothing_streamed_is_nothing_measured():
    device, blocks, streamer = engine([7.0] * 3, ())
    for _ in range(3):
        run_call(blocks, streamer)
        device.synchronise()
    assert streamer.timing is None


def test_a_timer_without_blocks_has_no_result():
    device = VirtualDevice()
    timer = CallTimer(device)
    assert timer.result() is None
    for start, end in itertools.pairwise([device.stamp(), device.stamp()]):
        assert device.elapsed_ms(start, end) == 0.0
