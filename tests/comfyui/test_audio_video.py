"""MiniMax-H3 and LTX-2: two streams, in one packed tensor or in a tuple, on the ComfyUI versions that have them."""

from __future__ import annotations

import pytest
import torch
from rigs.real_comfy import AUDIO_VIDEO_FAMILIES, FORCED, MINIMAX_H3, blocks_of, build, cond, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", AUDIO_VIDEO_FAMILIES, ids=lambda family: family.name)
STREAMS = {"minimax_h3": {"context", "audio", "video"}, "ltx_2": {"video", "audio"}}


@each_family
@pytest.mark.parametrize("resident", [0, 3])
def test_streaming_is_bit_identical(offload, report, family, resident):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=resident)
    assert torch.equal(sample(streamed, family), expected)
    assert report(streamed)["totals"]["bytes_streamed"] > 0
    assert torch.equal(sample(plain, family), expected)


@each_family
def test_lora(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    assert not torch.equal(expected, sample(plain, family))
    assert torch.equal(sample(with_lora(offload(plain, resident_blocks=1), contents), family), expected)
    assert torch.equal(sample(offload(with_lora(plain, contents), resident_blocks=1), family), expected)


@each_family
def test_recording_is_bit_identical(dbcache, family):
    plain = build(family)
    expected = sample(plain, family)
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "warmup_steps": 1000}), family), expected)
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.0}), family), expected)


@each_family
def test_both_nodes_in_either_order(offload, dbcache, report, family):
    plain = build(family)
    expected = sample(dbcache(plain, **FORCED), family)
    assert expected.isfinite().all()
    one = offload(dbcache(plain, **FORCED), resident_blocks=2)
    other = dbcache(offload(plain, resident_blocks=2), **FORCED)
    assert torch.equal(sample(one, family), expected)
    assert torch.equal(sample(other, family), expected)
    run = report(one)
    assert run == report(other)
    hits = [call for call in run["calls"] if call["outcome"] == "hit"]
    assert hits
    assert all(call["blocks_run"] == [0, family.blocks - 1] for call in hits)
    assert all(call["bytes_streamed"] == 0 for call in hits)


@each_family
def test_every_stream_is_judged(dbcache, report, family):
    model = dbcache(build(family), **{**FORCED, "residual_diff_threshold": 0.999})
    sample(model, family)
    compared = [call["diffs"] for call in report(model)["calls"] if call["diffs"]]
    assert compared
    for diffs in compared:
        assert set(diffs) == STREAMS[family.name]
        assert all(0 < diff < 1 for diff in diffs.values())


@each_family
def test_an_interrupt_leaves_a_model_that_works(offload, dbcache, family):
    plain = build(family)
    model = dbcache(offload(plain, resident_blocks=1), **FORCED)
    expected = sample(model, family)
    attributes = [dict(vars(block)) for block in blocks_of(plain, family)]

    def interrupt(step, *_):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(model, family, callback=interrupt)
    assert [dict(vars(block)) for block in blocks_of(plain, family)] == attributes
    assert torch.equal(sample(model, family), expected)


@each_family
def test_prompts_of_different_length(dbcache, offload, family):
    plain = build(family)
    prompts = {"positive": cond(2, tokens=8), "negative": cond(3, tokens=12)}
    expected = sample(plain, family, **prompts)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family, **prompts), expected)
    assert torch.equal(sample(dbcache(plain, **{**FORCED, "warmup_steps": 1000}), family, **prompts), expected)
    assert sample(dbcache(plain, **FORCED), family, **prompts).isfinite().all()


def test_a_batch_of_two_is_refused_by_core_and_leaves_a_model_that_works(offload, dbcache):
    model = dbcache(offload(build(MINIMAX_H3), resident_blocks=1), **FORCED)
    expected = sample(model, MINIMAX_H3)
    batch = tuple((2, *part[1:]) for part in MINIMAX_H3.latent)
    with pytest.raises(ValueError, match="batch size 1"):
        sample(model, MINIMAX_H3, latent=batch)
    assert torch.equal(sample(model, MINIMAX_H3), expected)
