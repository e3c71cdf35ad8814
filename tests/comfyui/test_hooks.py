"""LoRAs scheduled by hooks: ComfyUI edits the weights at rest between model calls."""

from __future__ import annotations

import comfy.hooks
import comfy.model_management
import pytest
import torch
from rigs.real_comfy import FAMILIES, STEPS, build, cond, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_scheduled_lora_hook(offload, family):
    """A LoRA hooked to the positive condition only: ComfyUI edits the weights at rest between calls."""
    plain = build(family)
    contents = lora(plain, family)

    def conditions():
        hooks = comfy.hooks.create_hook_lora(lora=contents, strength_model=1.0, strength_clip=0.0)
        return comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)

    expected = sample(plain, family, positive=conditions())
    assert not torch.equal(expected, sample(plain, family))
    streamed = offload(plain, resident_blocks=2)
    assert torch.equal(sample(streamed, family, positive=conditions()), expected)
    assert torch.equal(sample(streamed, family), sample(plain, family))


@each_family
@pytest.mark.parametrize("loras", ["bake", "on_the_fly"])
def test_a_scheduled_hook_on_a_model_with_a_lora(offload, family, loras):
    """What is baked comes from weights that ComfyUI edits for the hook, and has to follow them there and back."""
    plain = with_lora(build(family), lora(build(family), family))
    other = lora(plain, family, seed=80)

    def conditions():
        hooks = comfy.hooks.create_hook_lora(lora=other, strength_model=1.0, strength_clip=0.0)
        return {
            name: comfy.hooks.set_hooks_for_conditioning(cond(seed), hooks)
            for name, seed in (("positive", 2), ("negative", 3))
        }

    reference = with_lora(build(family), lora(build(family), family))
    if loras == "on_the_fly":
        reference.partially_load(reference.load_device, 0.1)
    hooked, bare = sample(reference, family, **conditions()), sample(reference, family)
    streamed = offload(plain, resident_blocks=2, lora=loras)
    for _ in range(2):
        # ComfyUI adds the hook's patch to the weight with the LoRA in it, we the LoRA to the weight with the hook's
        assert torch.allclose(sample(streamed, family, **conditions()), hooked, atol=1e-4)
        after = sample(streamed, family)
        assert torch.equal(after, bare) if loras == "bake" else torch.allclose(after, bare, atol=1e-4)
    assert not torch.allclose(hooked, bare, atol=1e-3)


@each_family
def test_an_interrupted_hooked_run_leaves_no_hooked_weights(offload, family):
    """The head of the next call is prefetched already when the run ends early, with weights edited for the hook."""
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=0)
    hooks = comfy.hooks.create_hook_lora(lora=contents, strength_model=1.0, strength_clip=0.0)
    positive, negative = (comfy.hooks.set_hooks_for_conditioning(cond(seed), hooks) for seed in (2, 3))

    def interrupt(step, *_):
        if step == 4:
            raise comfy.model_management.InterruptProcessingException()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(streamed, family, positive=positive, negative=negative, callback=interrupt)
    assert torch.equal(sample(streamed, family), expected)


@each_family
@pytest.mark.parametrize("loras", [None, "bake", "on_the_fly"])
def test_copies_that_a_scheduled_lora_makes_useless_are_in_the_report(pack, offload, report, family, loras):
    """They are dropped between two model calls, when ComfyUI edits the weights."""
    plain = build(family)
    hooks = comfy.hooks.create_hook_lora(lora=lora(plain, family, seed=80), strength_model=1.0, strength_clip=0.0)
    positive = comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)
    if loras is not None:
        plain = with_lora(plain, lora(plain, family))
    model = offload(plain, resident_blocks=0, lora=loras or "auto")
    engines = pack.module("comfy_adapter.streaming.shared_state").streaming_of(model.model)
    ends = []
    sample(model, family, positive=positive, callback=lambda step, *_: ends.append(engines.copies.copy()))
    run = report(model)
    wasted = run["totals"]["bytes_wasted_by_reason"]
    assert set(wasted) == {"weights changed"}
    assert run["totals"]["bytes_streamed"] == engines.copies.streamed
    assert (
        ends[-1].wasted["weights changed"]
        <= wasted["weights changed"]
        == sum(call["bytes_wasted"] for call in run["calls"])
    )


@each_family
def test_switching_hooks_keeps_slots_and_pins(pack, offload, family, monkeypatch):
    """Without a LoRA on the model the weights stay where they are: only what is in the slots is out of date."""
    plain = build(family)
    hooks = comfy.hooks.create_hook_lora(lora=lora(plain, family), strength_model=1.0, strength_clip=0.0)
    positive = comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)
    expected = sample(plain, family, positive=positive)
    building = pack.module("comfy_adapter.streaming.build")
    built, forgotten = [], []
    streamer, forget = building.BlockStreamer, building.BlockStreamer.forget
    monkeypatch.setattr(building, "BlockStreamer", lambda *args, **kw: built.append(1) or streamer(*args, **kw))
    monkeypatch.setattr(streamer, "forget", lambda self: forgotten.append(1) or forget(self))
    assert torch.equal(sample(offload(plain, resident_blocks=2), family, positive=positive), expected)
    assert len(built) == 1
    assert len(forgotten) > STEPS  # there and back in every step


@each_family
@pytest.mark.parametrize("mode", ["MaxSpeed", "MinVram"])
@pytest.mark.parametrize("resident", [0, 2])
def test_a_hook_whose_strength_changes_in_mid_run(offload, family, mode, resident):
    plain = build(family)
    contents = lora(plain, family)

    def conditions():
        hooks = comfy.hooks.create_hook_lora(lora=contents, strength_model=1.0, strength_clip=0.0)
        keyframes = comfy.hooks.HookKeyframeGroup()
        for strength, start in ((0.3, 0.0), (1.0, 0.4), (0.0, 0.7)):
            keyframes.add(comfy.hooks.HookKeyframe(strength=strength, start_percent=start, guarantee_steps=1))
        hooks.set_keyframes_on_hooks(keyframes)
        return comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)

    plain.set_hook_mode(comfy.hooks.EnumHookMode[mode])
    bare = sample(plain, family)
    expected = sample(plain, family, positive=conditions())
    assert not torch.equal(expected, bare)
    streamed = offload(plain, resident_blocks=resident)
    for _ in range(2):
        assert torch.equal(sample(streamed, family, positive=conditions()), expected)
    assert torch.equal(sample(streamed, family), bare)
