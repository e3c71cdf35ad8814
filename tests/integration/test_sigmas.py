"""How the pack knows where in the schedule a call is, and that it asks the device for no more than it must."""

from __future__ import annotations

from collections import Counter

import comfy.k_diffusion.sampling
import comfy.samplers
import pytest
import torch
from real_comfy import FLUX, WAN, build, cond, sample
from test_dbcache import FORCED
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def reading(pack):
    return pack.module("comfy_adapter.sigma_reading")


def test_samplers_that_evaluate_once_a_step_do(reading):
    """Each of the table, sampled by ComfyUI: once at every entry of the schedule but the last, in order."""
    import comfy.patcher_extension

    steps, found = 6, 0
    model = build(WAN)
    evaluated, schedule = [], []

    def note_evaluation(executor, x, timestep, *args, **kwargs):
        evaluated.append(float(timestep.flatten()[0]))
        return executor(x, timestep, *args, **kwargs)

    def note_schedule(executor, noise, latent_image, sampler, sigmas, *args, **kwargs):
        schedule.extend(sigmas[:-1].tolist())
        return executor(noise, latent_image, sampler, sigmas, *args, **kwargs)

    kinds = comfy.patcher_extension.WrappersMP
    model.add_wrapper_with_key(kinds.PREDICT_NOISE, "note", note_evaluation)
    model.add_wrapper_with_key(kinds.OUTER_SAMPLE, "note", note_schedule)
    for name in reading.ONE_EVALUATION_A_STEP:
        if name not in comfy.samplers.KSampler.SAMPLERS:
            continue
        evaluated.clear()
        schedule.clear()
        sample(model, WAN, sampler=name, steps=steps)
        # samplers that need a finite signal-to-noise ratio begin a hair below the top of the schedule
        assert evaluated == pytest.approx(schedule, abs=2e-3), name
        assert len(schedule) == steps
        found += 1
    assert found >= 15


def test_a_function_of_the_same_name_is_not_trusted(reading):
    def sample_euler():
        pass

    assert reading.evaluates_once_a_step(comfy.samplers.ksampler("euler"))
    assert not reading.evaluates_once_a_step(comfy.samplers.ksampler("heun"))
    assert not reading.evaluates_once_a_step(comfy.samplers.KSAMPLER(sample_euler))
    assert not reading.evaluates_once_a_step(None)


class Reads(TorchDispatchMode):
    """Counts the numbers that are read back from tensors, which on a GPU waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
        return function(*args, **(kwargs or {}))


def reads_by_call(model, family, **options) -> list[int]:
    """Return how many numbers were read back in each model call, from the outermost wrapper on."""
    import comfy.patcher_extension

    model, counts = model.clone(), []
    reads = Reads()

    def count(executor, *args, **kwargs):
        before = reads.count
        with reads:
            output = executor(*args, **kwargs)
        counts.append(reads.count - before)
        return output

    kind = comfy.patcher_extension.WrappersMP.APPLY_MODEL  # around the DIFFUSION_MODEL wrappers
    model.add_wrapper_with_key(kind, "reads", count)
    sample(model, family, **options)
    return counts


@pytest.mark.parametrize("calibrator", ["none", "taylorseer", "secant", "sigma_taylor"])
@pytest.mark.parametrize("family", [FLUX, WAN], ids=lambda family: family.name)
@pytest.mark.parametrize("split", [False, True], ids=["joined", "split"])
def test_numbers_are_read_back_for_decisions_only(dbcache, report, family, split, calibrator):
    """None in warm-up, one a judged stream where a decision is due, none where a cap has decided already."""
    prompts = {"positive": cond(2, tokens=8), "negative": cond(3, tokens=12)} if split else {}
    plain = build(family)
    base = Counter(reads_by_call(plain, family, **prompts))
    assert len(base) == 1  # what the model itself reads is the same in every call
    own = next(iter(base))
    model = dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.999, "calibrator": calibrator})
    counts = [count - own for count in reads_by_call(model, family, **prompts)]
    calls = report(model)["calls"]
    assert len(calls) == len(counts) == (24 if split else 12)
    for call, count in zip(calls, counts, strict=True):
        assert count == len(call["diffs"])
        assert count == 0 or call["step"] >= 3
    assert sum(counts) > 0


def test_other_samplers_read_one_number_more(dbcache, report):
    plain = build(WAN)
    own = reads_by_call(plain, WAN, sampler="heun")[0]
    model = dbcache(plain, **FORCED)
    counts = [count - own for count in reads_by_call(model, WAN, sampler="heun")]
    assert [count - len(call["diffs"]) for call, count in zip(report(model)["calls"], counts, strict=True)] == [1] * 23
