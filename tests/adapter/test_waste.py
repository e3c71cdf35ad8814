"""Copies for nothing have a reason, are counted over the whole run, and stand at the call that copied them."""

from __future__ import annotations

import pytest
from rigs.mock_runs import apply, cached, patcher_of, run_of, sample, streamed

from pack_on_mock.comfy_adapter.attachments import attached  # isort: skip
from pack_on_mock.comfy_adapter.streaming.shared_state import streaming_of  # isort: skip


def before_call(model, number, act):
    """Have ``act`` called with the engine before the model call of this number: ComfyUI may do much between calls."""
    base, calls = model.model.apply_model, []

    def watched(*args, **kwargs):
        calls.append(1)
        if len(calls) == number + 1:
            act(streaming_of(model.model).streamer)
        return base(*args, **kwargs)

    model.model.apply_model = watched


def check_counts(model, run):
    """The report's totals are the engine's own counters, and no call has more waste than copies."""
    copies, totals = streaming_of(model.model).copies, run["totals"]
    assert totals["bytes_streamed"] == copies.streamed > 0
    assert totals["bytes_wasted_by_reason"] == copies.wasted
    assert totals["bytes_wasted"] == sum(copies.wasted.values())
    for call in run["calls"]:
        assert 0 <= call["bytes_wasted"] <= call["bytes_streamed"]
        assert call["bytes_wasted"] == sum(call["bytes_wasted_by_reason"].values())


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda streamer: streamer.forget(), "weights changed"),
        (lambda streamer: streamer.release_slots(), "slots given back"),
    ],
    ids=["scheduled LoRA", "slots taken back"],
)
def test_waste_between_two_calls_is_in_the_report(act, reason):
    model = streamed(patcher_of("out_of_place"), resident_blocks=0)
    before_call(model, 5, act)
    sample(model)
    run = run_of(model)
    check_counts(model, run)
    assert set(run["totals"]["bytes_wasted_by_reason"]) == {reason}
    # copied by the call before, and booked there
    assert [bool(call["bytes_wasted"]) for call in run["calls"]] == [number == 4 for number in range(20)]
    assert f"of it for nothing ({reason})" in apply.last_run(model)[0]


def test_a_block_that_another_node_leaves_out_was_copied_for_nothing():
    model = streamed(patcher_of("out_of_place"), resident_blocks=0)
    blocks = model.model.diffusion_model.blocks
    blocks[6].__class__ = type("LeftOut", (type(blocks[6]),), {"__call__": lambda self, x, **_: x})
    sample(model)
    run = run_of(model)
    check_counts(model, run)
    assert set(run["totals"]["bytes_wasted_by_reason"]) == {"not called"}
    assert all(call["bytes_wasted"] > 0 for call in run["calls"])


def test_a_block_that_fails_was_copied_for_nothing():
    model = streamed(patcher_of("out_of_place"), resident_blocks=0)
    block = model.model.diffusion_model.blocks[3]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    before_call(model, 4, lambda streamer: vars(block).update(forward=fail))
    with pytest.raises(KeyboardInterrupt):
        sample(model)
    copies = streaming_of(model.model).copies
    assert set(copies.wasted) == {"block failed", "not called"}
    assert copies.wasted["block failed"] == streaming_of(model.model).streamer.weights[3].bytes_to_copy


def test_a_second_run_starts_from_nothing():
    model = cached(streamed(patcher_of("out_of_place"), resident_blocks=0))
    before_call(model, 5, lambda streamer: streamer.forget())
    sample(model)
    first = run_of(model)["totals"]
    sample(model)
    second = run_of(model)["totals"]
    assert first["bytes_wasted"] > 0 == second["bytes_wasted"]
    assert second["bytes_wasted_by_reason"] == {}
    assert first["bytes_streamed"] + second["bytes_streamed"] == streaming_of(model.model).copies.streamed


def test_a_report_is_not_changed_by_what_happens_after_its_run():
    """An interrupt in the last block leaves the next call's first block in a slot."""
    model = streamed(patcher_of("out_of_place"), resident_blocks=0)
    last = model.model.diffusion_model.blocks[7]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    before_call(model, 4, lambda streamer: vars(last).update(forward=fail))
    with pytest.raises(KeyboardInterrupt):
        sample(model)
    streaming = streaming_of(model.model)
    assert streaming.streamer.holds(0)
    before, wasted = apply.last_run(model)[1], streaming.copies.wasted_bytes
    streaming.streamer.release_slots()
    assert streaming.copies.wasted_bytes > wasted
    assert apply.last_run(model)[1] == before


def test_waste_stands_at_the_step_of_its_copy_and_no_bar_is_negative():
    from pack_on_mock.pictures.run_chart import bytes_by_step

    model = streamed(patcher_of("out_of_place"), resident_blocks=0)
    before_call(model, 6, lambda streamer: streamer.forget())  # the first call of step 3
    sample(model)
    useful, wasted = bytes_by_step(attached(model).report.report.chart())
    assert min(useful) >= 0
    assert [bool(size) for size in wasted] == [step == 2 for step in range(10)]
    assert sum(useful) + sum(wasted) == run_of(model)["totals"]["bytes_streamed"]
