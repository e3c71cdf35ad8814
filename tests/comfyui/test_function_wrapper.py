"""ComfyUI has one place for a node that surrounds every evaluation: it stays free, and whoever is in it is called."""

from __future__ import annotations

import pytest
import torch
from rigs.real_comfy import FAMILIES, FORCED, build, differing_prompts, sample

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def surrounded(patcher, calls):
    """A clone with another node in ``model_function_wrapper``: it changes what the model answers, and counts."""
    copy = patcher.clone()

    def wrapper(apply_model, arguments):
        calls.append(tuple(arguments["cond_or_uncond"]))
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"]) * 1.01

    copy.set_model_unet_function_wrapper(wrapper)
    return copy


@each_family
@pytest.mark.parametrize("prompts", [dict, differing_prompts], ids=["joined", "split"])
def test_a_function_wrapper_before_and_after_both_nodes(offload, dbcache, report, family, prompts):
    plain = build(family)

    def both(model):
        return dbcache(offload(model, resident_blocks=1), **FORCED)

    def of_wrapper(wrap):
        calls = []
        model = wrap(calls)
        picture = sample(model, family, **prompts())
        return picture, calls, model

    expected, expected_calls, _ = of_wrapper(lambda calls: surrounded(plain, calls))
    uncached = {**FORCED, "warmup_steps": 1000}
    picture, calls, _ = of_wrapper(lambda calls: dbcache(surrounded(plain, calls), **uncached))
    assert torch.equal(picture, expected)
    assert calls == expected_calls
    before, calls_before, model_before = of_wrapper(lambda calls: both(surrounded(plain, calls)))
    after, calls_after, model_after = of_wrapper(lambda calls: surrounded(both(plain), calls))
    assert calls_before == calls_after == expected_calls
    assert torch.equal(before, after)
    assert not torch.equal(before, expected)
    assert not torch.equal(before, sample(dbcache(plain, **FORCED), family, **prompts()))
    runs = report(model_before), report(model_after)
    assert runs[0] == runs[1]
    assert len(runs[0]["calls"]) == len(expected_calls)
    assert runs[0]["totals"]["hits"] > 0
    assert runs[0]["totals"]["bytes_streamed"] > 0
