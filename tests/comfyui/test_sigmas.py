"""How the pack knows where in the schedule a call is, and that it asks the device for no more than it must."""

from __future__ import annotations

from collections import Counter

import comfy.samplers
import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from rigs import family_rig
from rigs.read_backs import ReadBacks
from rigs.real_comfy import FLUX, FORCED, WAN, build, cond, sample
from rigs.tiny_families import TINY_FAMILIES

STEPS = 6
ADAPTIVE = "dpm_adaptive"


@pytest.fixture
def rehearsal(pack):
    return pack.module("comfy_adapter.sampling.noise_levels")


def evaluated_levels(model, sample_it) -> tuple[list[float], dict]:
    """Return the noise level of each prediction that a sampler really asks for, and what the run was started with."""
    import comfy.patcher_extension

    levels, run = [], {}

    def note_evaluation(executor, x, timestep, *args, **kwargs):
        levels.append(float(timestep.flatten()[0]))
        return executor(x, timestep, *args, **kwargs)

    def note_run(executor, noise, latent_image, sampler, sigmas, *args, **kwargs):
        run.update(sampler=sampler, sigmas=sigmas)
        return executor(noise, latent_image, sampler, sigmas, *args, **kwargs)

    model, kinds = model.clone(), comfy.patcher_extension.WrappersMP
    model.add_wrapper_with_key(kinds.PREDICT_NOISE, "note", note_evaluation)
    model.add_wrapper_with_key(kinds.OUTER_SAMPLE, "note", note_run)
    sample_it(model)
    return levels, run


@pytest.mark.parametrize("name", comfy.samplers.KSampler.SAMPLERS)
def test_each_sampler_evaluates_where_its_rehearsal_foretold(rehearsal, name):
    model = build(WAN)
    levels, run = evaluated_levels(model, lambda copy: sample(copy, WAN, sampler=name, steps=STEPS))
    before = torch.get_rng_state()
    foretold = rehearsal.foretold_levels(run["sampler"], run["sigmas"], model)
    assert torch.equal(torch.get_rng_state(), before)
    if name == ADAPTIVE:
        assert foretold is None
    else:
        assert list(foretold) == levels
        assert len(levels) >= STEPS


@pytest.mark.parametrize("name", ["dpmpp_sde", "dpmpp_2s_ancestral", "heunpp2", "ddpm", "uni_pc", "seeds_2"])
def test_so_do_those_of_models_that_predict_noise(rehearsal, name):
    family = next(one for one in TINY_FAMILIES if one.name == "pixart_alpha")
    model = family_rig.build(family)
    levels, run = evaluated_levels(model, lambda copy: family_rig.sample(copy, family, sampler=name))
    assert list(rehearsal.foretold_levels(run["sampler"], run["sigmas"], model)) == levels
    assert levels[0] > 2  # no level of a flow


def test_what_cannot_be_known_is_not_foretold(rehearsal):
    """Other packs' samplers, ComfyUI's with objects as options, and a schedule without a step."""

    def sample_euler():
        pass

    def foretold(sampler, steps=2):
        return rehearsal.foretold_levels(sampler, torch.linspace(1, 0, steps + 1), model)

    model, kinds = build(WAN), comfy.samplers
    assert foretold(kinds.ksampler("euler")) == (1.0, 0.5)
    assert foretold(kinds.ksampler("euler"), steps=0) is None
    assert foretold(kinds.KSAMPLER(sample_euler)) is None
    assert foretold(kinds.ksampler("dpmpp_sde", {"r": 0.25})) != foretold(kinds.ksampler("dpmpp_sde"))
    assert foretold(kinds.ksampler("dpmpp_sde", {"noise_sampler": lambda *_: 0})) is None
    assert foretold(type("Own", (kinds.KSAMPLER,), {})(kinds.ksampler("euler").sampler_function)) is None
    assert foretold(None) is None
    # an option that it does not take: the run itself is to say so
    assert foretold(kinds.ksampler("euler", {"no_such_option": 1.0})) is None


def reads_by_call(model, family, **options) -> list[int]:
    """Return how many numbers were read back in each model call, from the outermost wrapper on."""
    import comfy.patcher_extension

    model, counts = model.clone(), []
    reads = ReadBacks()

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


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("family", [FLUX, WAN], ids=lambda family: family.name)
@pytest.mark.parametrize("split", [False, True], ids=["joined", "split"])
def test_numbers_are_read_back_for_decisions_only(dbcache, report, family, split, calibrator):
    """None in warm-up, one where a decision is due, however many states are judged, none where a cap decides."""
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
        assert count == bool(call["diffs"])
        assert count == 0 or call["step"] >= 3
    assert sum(counts) > 0


@pytest.mark.parametrize(
    "sampler", ["heun", "dpm_2", "dpmpp_2s_ancestral", "dpmpp_sde", "seeds_3", "uni_pc", "dpm_fast"]
)
def test_so_it_is_with_samplers_that_evaluate_more_than_once_a_step(dbcache, report, sampler):
    plain = build(WAN)
    own = reads_by_call(plain, WAN, sampler=sampler)[0]
    model = dbcache(plain, **{**FORCED, "residual_diff_threshold": 0.999})
    counts = [count - own for count in reads_by_call(model, WAN, sampler=sampler)]
    calls = report(model)["calls"]
    for call, count in zip(calls, counts, strict=True):
        assert count == bool(call["diffs"])
        assert count == 0 or call["step"] >= 3
    assert sum(counts) > 0


def test_an_adaptive_sampler_reads_one_number_more(dbcache, report):
    plain = build(WAN)
    own = reads_by_call(plain, WAN, sampler=ADAPTIVE)[0]
    model = dbcache(plain, **FORCED)
    counts = [count - own for count in reads_by_call(model, WAN, sampler=ADAPTIVE)]
    assert {count - len(call["diffs"]) for call, count in zip(report(model)["calls"], counts, strict=True)} == {1}
