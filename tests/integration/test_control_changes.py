"""ControlNets that come, go and take over from each other: what a cached call reuses is of the same control input."""

from __future__ import annotations

import comfy.controlnet
from real_comfy import FLUX, STEPS, build, cond, sample
from test_dbcache import FORCED
from tiny_models import noise

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
