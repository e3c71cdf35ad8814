"""Layerwise offload on real ComfyUI: bit-identical to a plain full load, always."""

from __future__ import annotations

import comfy.model_management
import pytest
import torch
from real_comfy import FAMILIES, FLUX, STEPS, WAN, blocks_of, build, cond, lora, sample, weights_at_rest, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def vars_of_blocks(patcher, family):
    return [dict(vars(block)) for block in blocks_of(patcher, family)]


@each_family
@pytest.mark.parametrize("resident", [0, 2, 5, 100])
def test_identical_for_any_number_of_residents(offload, report, family, resident):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=resident)
    assert torch.equal(sample(streamed, family), expected)
    run = report(streamed)
    assert run["engine"] == "layerwise"
    assert run["steps"] == STEPS
    assert run["totals"]["blocks_run"] == run["totals"]["calls"] * family.blocks
    assert (run["totals"]["bytes_streamed"] == 0) == (resident >= family.blocks)
    assert run["totals"]["bytes_wasted"] == 0


@each_family
@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m", "dpmpp_sde", "res_multistep", "uni_pc", "lcm"])
def test_identical_with_any_sampler(offload, family, sampler):
    plain = build(family)
    expected = sample(plain, family, sampler=sampler)
    assert torch.equal(sample(offload(plain, resident_blocks=1), family, sampler=sampler), expected)


@each_family
@pytest.mark.parametrize("prefetch", [0, 1, 2, 16])
def test_bytes_and_slots_for_any_prefetch(offload, report, family, prefetch):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=0, prefetch_blocks=prefetch)
    assert torch.equal(sample(streamed, family), expected)
    sizes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks_of(plain, family)]
    totals = report(streamed)["totals"]
    assert totals["bytes_streamed"] == totals["calls"] * sum(sizes)
    assert totals["bytes_wasted"] == 0
    slots = min(prefetch + 1, family.blocks)
    assert slots * max(sizes) <= totals["peak_slot_bytes"] <= slots * (max(sizes) + 256 * 64)


@each_family
@pytest.mark.parametrize("policy", ["auto", "leading", "strided", "cache_aware"])
def test_identical_with_any_policy(offload, report, family, policy):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain, resident_blocks=3, residency_policy=policy)
    assert torch.equal(sample(streamed, family), expected)
    assert report(streamed)["totals"]["bytes_streamed"] > 0


@each_family
def test_default_keeps_everything_where_memory_is_not_short(offload, report, family):
    plain = build(family)
    expected = sample(plain, family)
    streamed = offload(plain)
    assert torch.equal(sample(streamed, family), expected)
    assert report(streamed)["totals"]["bytes_streamed"] == 0


def test_budget_decides_how_many_blocks_stay(offload, report):
    plain = build(WAN)
    expected = sample(plain, WAN)
    block = sum(p.numel() * p.element_size() for p in blocks_of(plain, WAN)[0].parameters())
    whole = plain.model_size()
    # room for everything but three blocks, and the two slots that streaming those takes
    budget = (whole - 3 * block + 2 * (block + 256 * 40)) / 2**30
    streamed = offload(plain, vram_budget_gb=budget)
    assert torch.equal(sample(streamed, WAN), expected)
    run = report(streamed)
    assert run["totals"]["bytes_streamed"] == 3 * block * run["totals"]["calls"]
    assert streamed.loaded_size() <= budget * 2**30


@each_family
def test_originals_are_back_and_nothing_stays_on_the_blocks(offload, family):
    plain = build(family)
    weights, attributes = weights_at_rest(plain), vars_of_blocks(plain, family)
    objects = {name: id(p) for name, p in plain.model.named_parameters()}
    sample(offload(plain, resident_blocks=1), family)
    assert vars_of_blocks(plain, family) == attributes
    assert {name: id(p) for name, p in plain.model.named_parameters()} == objects
    after = plain.model.state_dict()
    assert all(torch.equal(after[name], weights[name]) for name in weights)


@each_family
def test_two_branches_of_one_model_alternate(offload, family):
    plain = build(family)
    expected = sample(plain, family)
    one, other = offload(plain, resident_blocks=1), offload(plain, resident_blocks=4, prefetch_blocks=3)
    for model in (one, plain, other, one, other, plain, one):
        assert torch.equal(sample(model, family), expected)


@each_family
def test_the_node_twice_in_a_chain_acts_as_the_last_one(offload, report, family):
    plain = build(family)
    expected = sample(plain, family)
    twice = offload(offload(plain, resident_blocks=0), resident_blocks=family.blocks - 1)
    assert type(twice).__mro__.count(type(plain)) == 1
    assert torch.equal(sample(twice, family), expected)
    totals, blocks = report(twice)["totals"], blocks_of(plain, family)
    sizes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in blocks]
    assert totals["bytes_streamed"] // totals["calls"] in sizes


@each_family
@pytest.mark.parametrize("resident", [0, 3])
@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_lora(offload, family, place, resident):
    plain = build(family)
    one, two = lora(plain, family), lora(plain, family, seed=80)
    expected = sample(with_lora(with_lora(plain, one), two, 0.5), family)
    assert not torch.equal(expected, sample(plain, family))
    if place == "before":
        model = offload(with_lora(with_lora(plain, one), two, 0.5), resident_blocks=resident)
    elif place == "after":
        model = with_lora(with_lora(offload(plain, resident_blocks=resident), one), two, 0.5)
    else:
        model = with_lora(offload(with_lora(plain, one), resident_blocks=resident), two, 0.5)
    for _ in range(2):
        assert torch.equal(sample(model, family), expected)


@each_family
def test_lora_strength_changes_and_removal(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    streamed = offload(plain, resident_blocks=2)
    for strength in (1.0, 0.25, -0.5, 1.0):
        expected = sample(with_lora(plain, contents, strength), family)
        assert torch.equal(sample(with_lora(streamed, contents, strength), family), expected)
    assert torch.equal(sample(streamed, family), sample(plain, family))


@each_family
@pytest.mark.parametrize("place", ["before", "after"])
def test_lora_on_the_fly_equals_comfyuis_own_low_vram_and_copies_nothing(offload, pack, family, place):
    plain = build(family)
    contents = lora(plain, family)
    low_vram = with_lora(plain, contents)
    low_vram.partially_load(low_vram.load_device, 0.1)
    expected = run_loaded(low_vram, family)
    comfy.model_management.unload_all_models()
    if place == "before":
        model = offload(with_lora(plain, contents), resident_blocks=0, lora="on_the_fly")
    else:
        model = with_lora(offload(plain, resident_blocks=0, lora="on_the_fly"), contents)
    assert torch.equal(sample(model, family), expected)
    streamer = pack.module("comfy_adapter.model_streaming").streaming_of(model.model).streamer
    at_rest = {tensor.data_ptr() for tensor in model.model.state_dict().values()}
    copied_from = {host.data_ptr() for one in streamer.weights.values() for host in one.host_tensors()}
    assert copied_from <= at_rest


def run_loaded(patcher, family):
    """Sample without ComfyUI loading the model anew: it stays in low-VRAM state."""
    load, comfy.model_management.load_models_gpu = comfy.model_management.load_models_gpu, lambda *_, **__: None
    try:
        return sample(patcher, family)
    finally:
        comfy.model_management.load_models_gpu = load


@each_family
def test_auto_bakes_while_memory_has_room(offload, report, pack, family, monkeypatch):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    roomy = with_lora(offload(plain, resident_blocks=0), contents)
    assert torch.equal(sample(roomy, family), expected)
    assert report(roomy)["notes"] == []
    monkeypatch.setattr(pack.module("comfy_adapter.effective_weights"), "RAM_RESERVE", 1e18)
    short = with_lora(offload(plain, resident_blocks=0), contents)
    assert torch.allclose(sample(short, family), expected, rtol=1e-4, atol=1e-5)
    assert report(short)["notes"] == [
        "DiT Layerwise Offload: LoRAs on streamed blocks are applied on the fly, because main memory is short."
    ]


@each_family
def test_lora_after_a_full_unload(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    model = with_lora(offload(plain, resident_blocks=2), contents)
    for _ in range(3):
        assert torch.equal(sample(model, family), expected)
        comfy.model_management.unload_all_models()
    assert model.loaded_size() == 0


@each_family
def test_weight_wrappers_act_on_streamed_blocks(offload, family):
    plain = build(family)
    key = f"diffusion_model.{family.lora_layers[0]}.weight"
    wrapped = plain.clone()
    wrapped.add_weight_wrapper(key, lambda weight: weight * 0.5)
    expected = sample(wrapped, family)
    assert not torch.equal(expected, sample(plain, family))
    assert torch.equal(sample(offload(wrapped, resident_blocks=0), family), expected)
    after = offload(plain, resident_blocks=0).clone()
    after.add_weight_wrapper(key, lambda weight: weight * 0.5)
    assert torch.equal(sample(after, family), expected)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family), sample(plain, family))


@each_family
def test_low_vram_state_of_an_earlier_load_does_not_leak(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(plain, family)
    # An earlier plain load under memory pressure leaves on-the-fly LoRA functions on the modules.
    pressed = with_lora(plain, contents)
    pressed.partially_load(pressed.load_device, 0.1)
    assert torch.equal(sample(offload(plain, resident_blocks=0), family), expected)


@each_family
def test_scheduled_lora_hook(offload, family):
    """A LoRA hooked to the positive condition only: ComfyUI edits the weights at rest between calls."""
    import comfy.hooks

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
    import comfy.hooks

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
    import comfy.hooks
    import comfy.model_management

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
def test_switching_hooks_keeps_slots_and_pins(pack, offload, family, monkeypatch):
    """Without a LoRA on the model the weights stay where they are: only what is in the slots is out of date."""
    import comfy.hooks

    plain = build(family)
    hooks = comfy.hooks.create_hook_lora(lora=lora(plain, family), strength_model=1.0, strength_clip=0.0)
    positive = comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)
    expected = sample(plain, family, positive=positive)
    patcher = pack.module("comfy_adapter.patcher")
    built, forgotten = [], []
    streamer, forget = patcher.BlockStreamer, patcher.BlockStreamer.forget
    monkeypatch.setattr(patcher, "BlockStreamer", lambda *args, **kw: built.append(1) or streamer(*args, **kw))
    monkeypatch.setattr(streamer, "forget", lambda self: forgotten.append(1) or forget(self))
    assert torch.equal(sample(offload(plain, resident_blocks=2), family, positive=positive), expected)
    assert len(built) == 1
    assert len(forgotten) > STEPS  # there and back in every step


@each_family
def test_reading_weights_before_and_after_a_run(offload, family):
    plain = build(family)
    contents = lora(plain, family)
    weights = weights_at_rest(plain)
    model = with_lora(offload(plain, resident_blocks=1), contents)
    reference = with_lora(plain, contents)
    for _ in range(2):
        state = model.model_state_dict()
        for name, weight in weights.items():
            if name in model.backup:
                assert torch.equal(model.backup[name].weight, weight)
            else:
                assert torch.equal(state[name], weight)
        ours, theirs = model.get_key_patches(), reference.get_key_patches()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key][0][0], theirs[key][0][0]) for key in ours)
        sample(model, family)


@each_family
def test_reading_weights_during_a_run_and_after_an_interrupt(offload, family):
    plain = build(family)
    weights = weights_at_rest(plain)
    model = offload(plain, resident_blocks=2)
    read = []

    def callback(step, *_):
        read.append(model.model_state_dict())
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(model, family, callback=callback)
    for state in (*read, model.model_state_dict(), model.model.state_dict()):
        assert state.keys() == weights.keys()
        assert all(torch.equal(state[name], weights[name]) for name in weights)


@each_family
def test_model_merging_reads_the_true_weights(offload, comfy_nodes, family):
    from comfy_extras.nodes_model_merging import ModelMergeSimple

    one, two = build(family), build(family, seed=1)
    contents = lora(two, family)
    [merged] = ModelMergeSimple().merge(one, with_lora(two, contents), 0.7)
    expected = sample(merged, family)
    streamed_one, streamed_two = offload(one, resident_blocks=1), with_lora(offload(two, resident_blocks=1), contents)
    for _ in range(2):
        [merged] = ModelMergeSimple().merge(streamed_one, streamed_two, 0.7)
        assert torch.equal(sample(merged, family), expected)
        sample(streamed_two, family)


@each_family
def test_saving_writes_the_patched_weights(offload, report, family):
    plain = build(family)
    contents = lora(plain, family)

    def saved(model):
        comfy.model_management.unload_all_models()
        if hasattr(model, "model_state_dict_for_saving"):
            comfy.model_management.load_models_gpu([model])
            state = model.model_state_dict_for_saving()
        else:
            comfy.model_management.load_models_gpu([model], force_patch_weights=True)
            state = model.model.state_dict_for_saving(None, None, None)
        return {name: tensor.to("cpu").clone() for name, tensor in state.items()}

    with torch.inference_mode():
        expected = saved(with_lora(plain, contents))
        model = with_lora(offload(plain, resident_blocks=1), contents)
        before_run = saved(model)
    picture = sample(model, family)
    with torch.inference_mode():
        after_run = saved(model)
    for state in (before_run, after_run):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert torch.equal(sample(model, family), picture)
    assert report(model)["totals"]["bytes_streamed"] > 0
    assert torch.equal(picture, sample(with_lora(plain, contents), family))


@each_family
@pytest.mark.parametrize("kind", ["interrupt", "error", "out of memory"])
def test_exceptions_pass_and_leave_nothing(offload, family, kind):
    exception = {
        "interrupt": comfy.model_management.InterruptProcessingException(),
        "error": RuntimeError("broken block"),
        "out of memory": torch.OutOfMemoryError("no memory"),
    }[kind]
    plain = build(family)
    expected = sample(plain, family)
    weights, attributes = weights_at_rest(plain), vars_of_blocks(plain, family)
    model = offload(plain, resident_blocks=2)
    sample(model, family)
    for index in range(family.blocks):
        victim = blocks_of(plain, family)[index]
        calls = []

        def broken(*args, victim=victim, calls=calls, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                raise exception
            return type(victim).forward(victim, *args, **kwargs)

        vars(victim)["forward"] = broken
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            sample(model, family)
        assert caught.value is exception
        assert vars(victim)["forward"] is broken
        del vars(victim)["forward"]
        assert vars_of_blocks(plain, family) == attributes
        state = plain.model.state_dict()
        assert all(torch.equal(state[name], weights[name]) for name in weights)
        assert torch.equal(sample(model, family), expected)


def test_models_that_stay_on_the_device_pass_unchanged(offload, pack, monkeypatch):
    plain = build(FLUX)
    versions = pack.module("comfy_adapter.versions")
    monkeypatch.setattr(versions.comfy.model_management, "is_device_cpu", lambda device: False)
    passed = offload(plain, resident_blocks=0)
    assert type(passed) is type(plain)
    assert passed.patches_uuid == plain.patches_uuid


def test_a_patcher_that_resets_its_class_when_cloned(offload, report):
    """GGUF-style: a patcher subclass whose clone sets the class of the copy."""
    plain = build(WAN)

    class Resetting(type(plain)):
        def clone(self, *args, **kwargs):
            copy = super().clone(*args, **kwargs)
            copy.__class__ = Resetting
            return copy

    expected = sample(plain, WAN)
    plain.__class__ = Resetting
    model = offload(plain, resident_blocks=0).clone().clone()
    assert isinstance(model, Resetting)
    assert torch.equal(sample(model, WAN), expected)
    assert report(model)["totals"]["bytes_streamed"] > 0


def test_a_dropped_model_leaves_no_state(offload, pack):
    import gc
    import weakref

    model = offload(build(WAN), resident_blocks=0)
    sample(model, WAN)
    root = weakref.ref(model.model.diffusion_model)
    streaming = pack.module("comfy_adapter.model_streaming")
    assert root() in streaming._streaming_of
    del model
    gc.collect()
    assert root() is None
    assert not any(key is None for key in streaming._streaming_of)
