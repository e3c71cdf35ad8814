"""The gate on toy stacks of four shapes, against the same thing done by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from pack.dbcache.calls import CallInfo
from pack.dbcache.gate import CallGate
from pack.stack.hooks import HookManager
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

each_shape = pytest.mark.parametrize("shape", SHAPES)
FORECASTING = [name for name in CALIBRATORS if name != "none"]
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


def test_threshold_decides():
    rig = GateRig("out_of_place", custom(threshold=1.0, warmup_steps=1))
    rig.call(0)
    probe = GateRig("out_of_place", custom(threshold=0.999999, warmup_steps=1))
    probe.call(0)
    diff = probe.call(1)[1].diffs["video"]
    for threshold, hit in ((diff * 0.99, False), (diff * 1.01, True)):
        rig = GateRig("out_of_place", custom(threshold=threshold, warmup_steps=1))
        rig.call(0)
        assert rig.call(1)[1].hit is hit


@pytest.mark.parametrize("warmup", [0, 1, 3, 5])
def test_warm_up_is_counted_in_steps(warmup):
    rig = GateRig("in_place", custom(warmup_steps=warmup))
    hits = []
    for step in range(8):
        hits += [rig.call(step)[1].hit for _ in range(2)]
    # two evaluations a step; the very first call has nothing to compare with
    assert hits.index(True) == max(1, 2 * warmup)
    assert all(hits[max(1, 2 * warmup) :])


@pytest.mark.parametrize("cap", [0, 1, 2, 5])
@pytest.mark.parametrize("evaluations", [1, 2])
def test_continuous_cap_counts_steps(cap, evaluations):
    rig = GateRig("in_place", custom(warmup_steps=1, max_continuous=cap))
    steps = []
    for step in range(12):
        outcomes = {rig.call(step)[1].hit for _ in range(evaluations)}
        steps.append(outcomes)
    pattern = [{False}] + [{index % (cap + 1) != cap} for index in range(11)]
    assert steps == (pattern if cap else [{False}] * 12)


def test_cap_on_all_cached_steps():
    rig = GateRig("in_place", custom(warmup_steps=1, max_cached=3))
    outcomes = [rig.call(step)[1] for step in range(8)]
    assert [outcome.hit for outcome in outcomes] == [False, True, True, True, False, False, False, False]
    assert outcomes[-1].reason == "cap: 3 cached steps in all"


def test_threshold_zero_never_hits_and_keeps_nothing():
    rig = GateRig("double_single", custom(threshold=0.0))
    for step in range(4):
        output, outcome = rig.call(step)
        assert (outcome.hit, outcome.reason) == (False, "threshold is 0")
        assert torch.equal(output, rig.plain(step))


@pytest.mark.parametrize("calibrator", FORECASTING)
@each_shape
def test_calibrators_forecast_better_than_reuse(shape, calibrator):
    """On a slow, smooth trajectory a forecast of the residual is nearer to the truth than the old residual."""

    def error(name):
        rig = GateRig(shape, custom(warmup_steps=4, max_continuous=2, calibrator=name))
        total = 0.0
        for step in range(12):
            output, outcome = rig.call(step)
            assert output.isfinite().all()
            total += float((output - rig.plain(step)).abs().mean()) if outcome.hit else 0.0
        return total

    assert error(calibrator) < 0.7 * error("none")


@pytest.mark.parametrize("calibrator", FORECASTING)
def test_calibrators_stay_finite_when_a_step_is_evaluated_twice(calibrator):
    rig = GateRig("in_place", custom(warmup_steps=2, max_continuous=1, calibrator=calibrator, calibrator_order=2))
    for step in range(10):
        for at in (step, step + 0.5):
            output, _ = rig.call(step, at=at)
            assert output.isfinite().all()


@pytest.mark.parametrize("policy", ["dynamic", "static"])
def test_step_masks(policy):
    import cache_dit.caching

    mask = cache_dit.caching.steps_mask(mask_policy="fast", total_steps=12)
    threshold = 1.0 if policy == "dynamic" else 0.0
    rig = GateRig("in_place", custom(warmup_steps=0, threshold=threshold, scm="fast", scm_policy=policy))
    outcomes = [rig.call(step)[1] for step in range(12)]
    assert [int(not outcome.hit) for outcome in outcomes] == mask
    assert rig.call(12)[1].reason == "mask: beyond the schedule"


def test_a_static_mask_cannot_hit_before_anything_was_computed():
    rig = GateRig("in_place", custom(warmup_steps=0, threshold=0.0, scm="fast", scm_policy="static"))
    cached = next(step for step in range(12) if rig.call(step)[1].hit)
    output, outcome = rig.call(cached, branch="late")
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(cached))


@each_shape
def test_branches_never_mix(shape):
    """Two very different conditions through one model, in changing order: each equals its own single run."""
    alone = {}
    for name, seed in (("a", 1), ("b", 99)):
        rig = GateRig(shape, custom(warmup_steps=2, max_continuous=2))
        alone[name] = [rig.call(step, branch=name, seed=seed)[0] for step in range(10)]
    rig = GateRig(shape, custom(warmup_steps=2, max_continuous=2))
    for step in range(10):
        order = [("a", 1), ("b", 99)]
        for name, seed in order if step % 3 else reversed(order):
            output, _ = rig.call(step, branch=name, seed=seed)
            assert torch.equal(output, alone[name][step])
    assert {branch.name for branch in rig.session._branches.values()} == {"cond", "cond #2"}


def test_a_branch_that_appears_late_starts_with_a_computed_call():
    rig = GateRig("in_place", custom(warmup_steps=1))
    for step in range(5):
        rig.call(step, branch="a")
    output, outcome = rig.call(5, branch="new", seed=9)
    assert (outcome.hit, outcome.reason) == (False, "first call of the branch")
    assert outcome.branch == "cond #2"
    assert torch.equal(output, rig.plain(5, seed=9))
    assert rig.call(6, branch="new", seed=9)[1].hit


def test_a_branch_that_was_away_comes_back():
    rig = GateRig("in_place", custom(warmup_steps=1, max_continuous=2))
    rig.call(0, branch="a")
    assert rig.call(1, branch="a")[1].hit
    for step in range(2, 7):
        rig.call(step, branch="b")
    assert [rig.call(step, branch="a")[1].hit for step in (7, 8, 9)] == [True, True, False]


def test_shape_is_part_of_the_branch():
    rig = GateRig("in_place", custom(warmup_steps=1))
    for step in range(3):
        rig.call(step)
    output, outcome = rig.call(3, x=rig.x(3)[:, :6])
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(3, x=rig.x(3)[:, :6]))
    assert rig.call(4)[1].hit


def test_settings_of_the_call_are_part_of_the_branch():
    rig = GateRig("in_place", custom(warmup_steps=1))
    rig.call(0)
    assert rig.call(1)[1].hit
    assert not rig.call(1, setting=("window", (0, 1)))[1].hit
    assert rig.call(2)[1].hit


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


def test_a_change_of_control_makes_the_next_call_a_miss():
    rig = GateRig("double_single", custom(warmup_steps=1))
    control = {"input": [torch.ones(1, 10, 16)] * 3}
    rig.call(0)
    assert rig.call(1)[1].hit
    output, outcome = _with_signature(rig, 3, control, ("input", 3))
    assert (outcome.hit, outcome.reason) == (False, "control input changed")
    assert torch.equal(output, rig.plain(3, control=control))
    assert _with_signature(rig, 4, control, ("input", 3))[1].hit
    assert rig.call(5)[1].reason == "control input changed"


def _with_signature(rig, step, control, signature):
    gate = CallGate(rig.session, CallInfo(step=step, sigma=0.5, conds=("a",), kinds=(0,), control=signature))
    with HookManager(rig.blocks, [gate]):
        output = rig.plain(step, control=control)
    return output, gate.finish()


def test_a_closed_window_computes():
    rig = GateRig("in_place", custom(warmup_steps=0))
    rig.call(0)
    output, outcome = rig.call(1, closed="before start_percent")
    assert (outcome.hit, outcome.reason) == (False, "before start_percent")
    assert torch.equal(output, rig.plain(1))
    assert rig.call(2)[1].hit


@each_shape
@pytest.mark.parametrize("fn", [1, 4])
def test_the_plan_is_announced_before_the_blocks_run(shape, fn):
    rig = GateRig(shape, custom(fn=fn, bn=2, warmup_steps=1))
    rig.call(0)
    assert rig.announced == [tuple(range(8))]
    rig.call(1)
    assert len(rig.announced) == 1
    assert [index for index in rig.announced[0] if index >= fn] == [6, 7]


@each_shape
@pytest.mark.parametrize("missing", [0, 2, 7])
def test_a_call_the_gate_cannot_follow_is_exact_and_its_branch_stops(shape, missing):
    """Blocks 0 (judged), 2 (first of the middle) and 7 (last of the middle) are needed."""
    rig = GateRig(shape, custom(fn=2, bn=0, warmup_steps=0))
    for step in range(3):
        assert rig.call(step)[1].hit == (step > 0)

    def call(step):
        gate = CallGate(rig.session, CallInfo(step=step, sigma=0.5, conds=("a",), kinds=(0,)))
        victim = rig.blocks[missing]
        with HookManager(rig.blocks, [gate]):
            hooked = vars(victim)["forward"]
            vars(victim)["forward"] = lambda *args, **kwargs: type(victim).forward(victim, *args, **kwargs)
            output = rig.plain(step)
            vars(victim)["forward"] = hooked
        return output, gate, gate.finish()

    output, gate, outcome = call(3)
    assert not outcome.hit
    assert outcome.reason.startswith("not supported: ")
    assert gate.must_recompute or torch.equal(output, rig.plain(3))
    assert len(rig.session.notes) == 1
    call(4)
    assert len(rig.session.notes) == 1
    output, outcome = rig.call(5)
    if missing:
        # the branch was known by then: it computes from now on
        assert outcome.reason.startswith("not supported: ")
    assert torch.equal(output, rig.plain(5)) or outcome.hit


def test_a_block_that_runs_twice_is_noticed():
    rig = GateRig("in_place", custom(warmup_steps=0))
    rig.call(0)
    twice = rig.blocks[4]
    gate = CallGate(rig.session, CallInfo(step=1, sigma=0.5, conds=("a",), kinds=(0,)))
    with HookManager(rig.blocks, [gate]):
        hooked = vars(twice)["forward"]
        vars(twice)["forward"] = lambda *args, **kwargs: hooked(hooked(*args, **kwargs), *args[1:], **kwargs)
        rig.plain(1)
        vars(twice)["forward"] = hooked
    outcome = gate.finish()
    assert "block 4 ran after block 4" in outcome.reason
    assert gate.must_recompute


@each_shape
@pytest.mark.parametrize("index", [0, 1, 4, 7])
def test_an_exception_leaves_a_session_that_goes_on_right(index, shape):
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=0))
    victim = rig.blocks[index]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    rig.call(0)
    vars(victim)["forward"] = fail
    with pytest.raises(KeyboardInterrupt):
        rig.call(1, branch="b")
    del vars(victim)["forward"]
    output, outcome = rig.call(1, branch="b")
    assert outcome.reason == "first call of the branch"
    assert torch.equal(output, rig.plain(1))
    assert rig.call(2, branch="b")[1].hit


@each_shape
@pytest.mark.parametrize("index", [1, 4, 7])
def test_a_computed_call_that_fails_half_way_invalidates_what_was_recorded_before(index, shape):
    """Its first blocks are newer than its middle: the two must not be combined."""
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=0))
    rig.call(0)
    assert rig.call(1)[1].hit
    victim = rig.blocks[index]

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    vars(victim)["forward"] = fail
    with pytest.raises(KeyboardInterrupt):
        rig.call(2, closed="before start_percent")
    del vars(victim)["forward"]
    output, outcome = rig.call(3)
    assert (outcome.hit, outcome.reason) == (False, "first call of the branch")
    assert torch.equal(output, rig.plain(3))


@each_shape
def test_no_tensor_outlives_the_session(shape):
    rig = GateRig(shape, custom(fn=2, bn=1, warmup_steps=1, calibrator="taylorseer"))
    before = {id(o) for o in gc.get_objects() if isinstance(o, torch.Tensor)}
    for step in range(4):
        rig.call(step)
    rig.gate = None
    gc.collect()
    kept = [weakref.ref(o) for o in gc.get_objects() if isinstance(o, torch.Tensor) and id(o) not in before]
    assert kept
    rig.session.close()
    gc.collect()
    assert [ref() for ref in kept if ref() is not None] == []


@each_shape
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_the_cache_on_the_cpu_gives_the_same(shape, calibrator):
    """On one device both ways keep the same numbers; what goes to main memory is tested with a stand-in for it."""
    rigs = [GateRig(shape, custom(cache_device=device, calibrator=calibrator)) for device in ("device", "cpu")]
    for step in range(8):
        (a, one), (b, other) = (rig.call(step) for rig in rigs)
        assert torch.equal(a, b)
        assert one == other
    assert one.hit


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if type(value).__module__.startswith("cache_dit."):
        inner = vars(value).values()
    return [tensor for one in inner for tensor in tensors_in(one)]


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes where the storage of every tensor was made: while ``inside`` is true, or not."""

    def __init__(self):
        super().__init__()
        self.inside = False
        self.made_inside, self.made_outside = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {
            x.untyped_storage().data_ptr() for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)
        }
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                made, other = (self.made_inside, self.made_outside)[:: 1 if self.inside else -1]
                made.add(tensor.untyped_storage().data_ptr())
                other.discard(tensor.untyped_storage().data_ptr())
        return result


@each_shape
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_everything_kept_is_made_where_it_may_be_kept(shape, calibrator, monkeypatch):
    """ComfyUI's allocation-recording compiler aborts when a tensor made inside a block's scope outlives it."""
    import contextlib

    recorder = Recorder()

    @contextlib.contextmanager
    def keeping():
        before, recorder.inside = recorder.inside, True
        try:
            yield
        finally:
            recorder.inside = before

    rig = GateRig(shape, custom(fn=1, bn=1, calibrator=calibrator))
    rig.session.keeping = keeping
    returned = []
    build = type(rig.session.route.layout.segments[0].segment).build_output
    segment = type(rig.session.route.layout.segments[0].segment)
    monkeypatch.setattr(segment, "build_output", lambda self, hidden: returned.append(hidden) or build(self, hidden))
    for step in range(5):
        with recorder:
            _, outcome = rig.call(step)
        context = next(iter(rig.session._branches.values())).context._context
        kept = list(context.buffers.values())
        if context.calibrator is not None:
            kept += tensors_in(vars(context.calibrator))
        assert kept
        for tensor in kept:
            assert tensor.untyped_storage().data_ptr() in recorder.made_inside
    assert outcome.hit
    # what stands in for the middle of a segment outlives the block that made it, or is what that block was given
    for name, value in returned[-1].items():
        if shape == "out_of_place":
            assert value.untyped_storage().data_ptr() in recorder.made_inside
        else:
            assert value is returned[-2][name]


@each_shape
@pytest.mark.parametrize("number", range(10))
def test_running_out_of_memory_for_the_cache_switches_it_off(shape, number, monkeypatch):
    """The n-th tensor made for the cache does not fit: the run goes on, exactly, and says so once."""
    rig = GateRig(shape, custom(fn=1, bn=1, warmup_steps=1, max_continuous=1))
    count = []

    def keeping():
        count.append(1)
        if len(count) == number + 1:
            raise torch.OutOfMemoryError("no room")
        return contextlib.nullcontext()

    import contextlib

    rig.session.keeping = keeping
    off = False
    for step in range(8):
        output, outcome = rig.call(step)
        off = off or outcome.reason == "out of memory for the cache"
        if off:
            assert rig.gate.must_recompute or torch.equal(output, rig.plain(step))
            assert not outcome.hit
        if off and len(count) > number + 1:
            pytest.fail("the cache was used after it had been switched off")
    assert off
    assert sum("no room for the cache" in note for note in rig.session.notes) == 1
    assert not rig.session._branches


@each_shape
def test_blocks_captured_into_cuda_graphs_are_left_alone(shape, monkeypatch):
    rig = GateRig(shape, custom(warmup_steps=0))
    for step in range(3):
        assert rig.call(step)[1].hit == (step > 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    output, outcome = rig.call(3)
    assert outcome.reason == "not supported: blocks are captured into CUDA graphs"
    assert torch.equal(output, rig.plain(3))
