"""ControlNets that come, go and take over from each other: what a cached call reuses is of the same control input."""

from __future__ import annotations

import comfy.controlnet
import comfy.hooks
import comfy.model_management
import pytest
import torch
from comfy_extras.nodes_model_advanced import ModelSamplingFlux
from rigs.real_comfy import FLUX, FORCED, STEPS, WAN, build, cond, lora, sample
from rigs.tiny_models import noise

HITTING = {**FORCED, "warmup_steps": 1, "max_continuous_cached_steps": -1}


class Control(comfy.controlnet.ControlBase):
    """Adds fixed tensors of one shape between blocks, in its range of the run; before it others in a chain, as
    ComfyUI's own ControlNets do."""

    def __init__(self, seed, start=0.0, end=1.0, previous=None):
        super().__init__()
        self.timestep_percent_range = (start, end)
        self.additions = {
            "input": [noise(1, 16, 64, seed=seed + index) * 0.3 for index in range(3)],
            "output": [noise(1, 16, 64, seed=seed + 10 + index) * 0.3 for index in range(4)],
        }
        if previous is not None:
            self.set_previous_controlnet(previous)

    def get_control(self, x_noisy, t, cond, batched_number, transformer_options):
        previous = None
        if self.previous_controlnet is not None:
            previous = self.previous_controlnet.get_control(x_noisy, t, cond, batched_number, transformer_options)
        first, last = self.timestep_range
        if t[0] > first or t[0] < last:
            return previous
        return self.additions if previous is None else {**previous, **self.additions}


def handed_over():
    """Two ControlNets of the same shapes, one after the other at half the noise."""
    control = Control(80, start=0.5, previous=Control(60, end=0.499))
    return {"positive": cond(2, control=control), "negative": cond(3, control=control)}


def test_a_control_that_takes_over_makes_the_next_call_a_miss(dbcache, report):
    model = dbcache(build(FLUX), **HITTING)
    sample(model, FLUX, **handed_over())
    calls = report(model)["calls"]
    outcomes = [call["outcome"] for call in calls]
    changed = [index for index, call in enumerate(calls) if call["reason"] == "control input changed"]
    assert len(changed) == 1
    assert calls[changed[0] - 1]["outcome"] == "hit"
    assert outcomes == ["hit" if index not in (0, *changed) else "miss" for index in range(STEPS)]


def with_shift(model, shift):
    """Return the model with another noise schedule, by ComfyUI's own node: it reaches the model as it is loaded."""
    [patched] = ModelSamplingFlux().patch(model, shift, shift, 1024, 1024)
    return patched


@pytest.mark.parametrize("shift_first", [True, False])
@pytest.mark.parametrize("shift", [0.2, 3.0])
def test_percents_are_of_the_schedule_that_is_sampled(dbcache, report, shift, shift_first):
    """Those of the control's range and the node's own, in a first run as in a later one."""
    inputs = {**HITTING, "start_percent": 0.3, "end_percent": 0.8}
    if shift_first:
        model = dbcache(with_shift(build(FLUX), shift), **inputs)
    else:
        model = with_shift(dbcache(build(FLUX), **inputs), shift)
    to_sigma = model.get_model_object("model_sampling").percent_to_sigma
    start, end, handover = torch.tensor([to_sigma(percent) for percent in (0.3, 0.8, 0.5)]).tolist()
    for _ in range(2):
        comfy.model_management.unload_all_models()
        sample(model, FLUX, **handed_over())
        calls = report(model)["calls"]
        early = [call for call in calls if call["reason"] in ("warm-up", "before start_percent")]
        late = [call for call in calls if call["reason"] == "after end_percent"]
        assert all(call["sigma"] > start or call is calls[0] for call in early)
        assert all(call["sigma"] <= end for call in late)
        within = calls[len(early) : len(calls) - len(late)]
        assert all(end < call["sigma"] <= start for call in within)
        (changed,) = (call for call in within if call["reason"] == "control input changed")
        assert changed is next(call for call in within if call["sigma"] <= handover)
        assert all(call["outcome"] == "hit" for call in within if call is not changed)


def test_a_picture_after_the_handover_has_the_second_control(dbcache):
    """What is reused then was computed under it: the picture is nearer to the computed one than the first's is."""
    plain = build(FLUX)
    expected, cached = (sample(model, FLUX, **handed_over()) for model in (plain, dbcache(plain, **HITTING)))
    only_first = Control(60)
    first = sample(plain, FLUX, positive=cond(2, control=only_first), negative=cond(3, control=only_first))
    assert (cached - expected).abs().mean() < 0.5 * (first - expected).abs().mean()


def test_a_control_in_its_range_all_along_costs_no_miss(dbcache, report):
    model = dbcache(build(FLUX), **HITTING)
    control = Control(60, start=0.0, end=1.0, previous=Control(80))
    sample(model, FLUX, positive=cond(2, control=control), negative=cond(3, control=control))
    assert [call["outcome"] for call in report(model)["calls"]] == ["miss"] + ["hit"] * (STEPS - 1)


def test_a_scheduled_lora_that_sets_in_makes_the_next_call_a_miss(dbcache, report):
    """On middle blocks only: the first block, which judges, does not see it."""
    plain = build(WAN)
    contents = {key: value for key, value in lora(plain, WAN).items() if ".blocks.3." in key or ".blocks.6." in key}

    def scheduled(strength):
        hooks = comfy.hooks.create_hook_lora(lora=contents, strength_model=1.0, strength_clip=0.0)
        keyframes = comfy.hooks.HookKeyframeGroup()
        for value, start in ((0.0, 0.0), (strength, 0.5)):
            keyframes.add(comfy.hooks.HookKeyframe(strength=value, start_percent=start, guarantee_steps=1))
        hooks.set_keyframes_on_hooks(keyframes)
        return comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)

    hardly = 1e-6  # a change, and so a miss, too
    expected, without = (sample(plain, WAN, positive=scheduled(strength)) for strength in (1.0, hardly))
    model = dbcache(plain, **HITTING)
    cached = sample(model, WAN, positive=scheduled(1.0))
    outcomes = {
        branch: [call["outcome"] for call in report(model)["calls"] if call["branch"] == branch]
        for branch in ("cond", "uncond")
    }
    reasons = [(call["branch"], call["step"]) for call in report(model)["calls"] if "changed" in call["reason"]]
    assert [branch for branch, _ in reasons] == ["cond"]
    assert outcomes["cond"] == ["hit" if step not in (0, reasons[0][1]) else "miss" for step in range(STEPS)]
    assert outcomes["uncond"] == ["miss"] + ["hit"] * (STEPS - 1)
    # it does to a cached picture what it does to a computed one
    effect, on_cached = expected - without, cached - sample(model, WAN, positive=scheduled(hardly))
    assert (on_cached - effect).abs().mean() < 0.5 * effect.abs().mean()
