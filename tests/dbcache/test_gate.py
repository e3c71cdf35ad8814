"""The gate on toy stacks of four shapes, against the same thing done by hand."""

from __future__ import annotations

import pytest
import torch
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

each_shape = pytest.mark.parametrize("shape", SHAPES)
FN_BN = [(1, 0), (1, 2), (2, 1), (3, 2), (4, 3)]


def by_hand(shape, model, x, t, context, fn, bn, kept):
    """One call without hooks: with ``kept`` residuals the middle is skipped, else they are collected into it."""
    vec = t.reshape(-1, 1, 1) + context.mean(dim=1, keepdim=True)
    mean = context.mean(dim=1, keepdim=True)
    x = model.embed(x)
    hit = bool(kept)

    def segment(name, blocks, start, total, states, step):
        middle = [i for i in range(len(blocks)) if fn <= start + i < total - bn]
        for index, block in enumerate(blocks):
            if hit and index in middle:
                if index == middle[0]:
                    states = [state + kept[name, n] for n, state in enumerate(states)]
                continue
            if middle and index == middle[0]:
                entry = [state.clone() for state in states]
            states = step(block, [state.clone() for state in states])
            if not hit and middle and index == middle[-1]:
                kept.update(
                    {(name, n): after - before for n, (after, before) in enumerate(zip(states, entry, strict=True))}
                )
        return states

    if shape == "out_of_place":
        (x,) = segment("s", model.blocks, 0, 8, [x], lambda b, s: [b(s[0], e=vec, context=mean)])
    elif shape == "in_place":
        packed = torch.cat((context[0], x[0]))
        (packed,) = segment("s", model.blocks, 0, 8, [packed], lambda b, s: [b(s[0], vec[0])])
        x = packed[context.shape[1] :].unsqueeze(0)
    elif shape == "double_single":
        img, txt = segment("d", model.double_blocks, 0, 8, [x, context.clone()], lambda b, s: list(b(s[0], s[1], vec)))
        joint = torch.cat((txt, img), dim=1)
        (joint,) = segment("s", model.single_blocks, 3, 8, [joint], lambda b, s: [b(s[0], vec)])
        x = joint[:, txt.shape[1] :]
    else:
        states = [x[:, :-4].clone(), x[:, -4:].clone()]
        states = segment(
            "s",
            model.transformer_blocks,
            0,
            8,
            states,
            lambda b, s: list(b((s[0], s[1]), a_context=mean, v_timestep=vec)),
        )
        x = torch.cat(states, dim=1)
    return model.head(x)


@each_shape
@pytest.mark.parametrize(("fn", "bn"), FN_BN)
def test_hits_equal_the_same_done_by_hand(shape, fn, bn):
    rig = GateRig(shape, custom(fn=fn, bn=bn, warmup_steps=2, max_continuous=3))
    kept = {}
    hits = 0
    for step in range(12):
        output, outcome = rig.call(step)
        if not outcome.hit:
            kept.clear()
        t = torch.full((1,), 1 - step / 12)
        expected = by_hand(shape, rig.model, rig.x(step), t, rig.context(), fn, bn, kept)
        assert torch.equal(output, expected)
        every = list(range(8))
        assert rig.ran == ([*every[:fn], *every[8 - bn :]] if outcome.hit else every)
        hits += outcome.hit
    assert hits == 8


@each_shape
@pytest.mark.parametrize(("fn", "bn"), FN_BN)
def test_recording_changes_nothing(shape, fn, bn):
    rig = GateRig(shape, custom(fn=fn, bn=bn, warmup_steps=100))
    for step in range(4):
        output, outcome = rig.call(step)
        assert not outcome.hit
        assert outcome.reason == "warm-up"
        assert torch.equal(output, rig.plain(step))


@each_shape
def test_differences_are_real_also_where_blocks_work_in_place(shape):
    rig = GateRig(shape, custom(threshold=0.5, warmup_steps=1))
    rig.call(0)
    _, outcome = rig.call(1)
    assert outcome.hit
    assert outcome.diffs
    assert all(0 < diff < 0.5 for diff in outcome.diffs.values())


@pytest.mark.parametrize("shape", ["two_streams", "in_place"])
@pytest.mark.parametrize("moving", ["audio", "video"])
def test_every_stream_is_judged_on_its_own(shape, moving):
    """A still picture with moving sound is a miss, and the other way round; also where tokens are packed."""
    audio = slice(-4, None) if shape == "two_streams" else slice(None, 4)
    video = slice(None, -4) if shape == "two_streams" else slice(4, None)
    moving = {"audio": audio, "video": video}[moving]
    rig = GateRig(shape, custom(threshold=0.05, warmup_steps=1))
    base = rig.x(0)
    rig.call(0, x=base)
    x = base.clone()
    x[:, moving] += 0.5
    _, outcome = rig.call(1, x=x, at=0)
    assert not outcome.hit
    assert set(outcome.diffs) - {"context"} == {"video", "audio"}
    assert outcome.reason.startswith("threshold: ")
    _, outcome = rig.call(2, x=x, at=0)
    assert outcome.hit


@pytest.mark.parametrize("shape", ["out_of_place", "double_single"])
def test_control_is_added_once(shape):
    rig = GateRig(shape, custom(warmup_steps=1, max_continuous=2, fn=1, bn=1))
    count = 8 if shape == "out_of_place" else 3
    tokens = torch.Generator().manual_seed(3)
    control = {"input": [torch.randn(1, 10, 16, generator=tokens) for _ in range(count)]}
    rig.speed = 0.0
    for step in range(4):
        output, outcome = rig.call(0 if step == 0 else step, control=control, at=0)
        # the input does not move, so a hit must give the computed picture up to rounding
        assert torch.allclose(output, rig.plain(0, control=control), rtol=1e-5, atol=1e-6)
    assert not outcome.hit
    assert rig.call(5, control=control, at=0)[1].hit


@each_shape
@pytest.mark.parametrize("fn", [1, 4])
def test_the_plan_is_announced_before_the_blocks_run(shape, fn):
    rig = GateRig(shape, custom(fn=fn, bn=2, warmup_steps=1))
    rig.call(0)
    assert rig.announced == [tuple(range(8))]
    rig.call(1)
    assert len(rig.announced) == 1
    assert [index for index in rig.announced[0] if index >= fn] == [6, 7]
