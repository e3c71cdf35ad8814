"""Living with other parts of ComfyUI: dynamic VRAM, torch.compile, several GPUs."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import comfy.model_management
import comfy.model_patcher
import pytest
import torch
from rigs.real_comfy import FAMILIES, FORCED, WAN, blocks_of, build, cond, easy_cache, lora, sample, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def dynamic_model(family, loads):
    """A patcher that says it is dynamic and can be loaded again, as ComfyUI's loaders leave it on an NVIDIA card.

    The real class cannot be made without a card; cloning with ``disable_dynamic`` is its base class's own code.
    """
    if not hasattr(comfy.model_patcher.ModelPatcher, "is_dynamic"):
        pytest.skip("this ComfyUI has no dynamic VRAM")

    class Dynamic(comfy.model_patcher.ModelPatcher):
        def is_dynamic(self):
            return True

    def load(disable_dynamic=False):
        loads.append(disable_dynamic)
        return build(family)

    patcher = build(family)
    patcher.__class__ = Dynamic
    patcher.cached_patcher_init = (load, ())
    return patcher


def test_auto_leaves_a_dynamic_model_to_comfyui_and_says_so(offload, report, caplog):
    model = dynamic_model(WAN, [])
    with caplog.at_level("INFO"):
        passed = offload(model, resident_blocks=0)
    assert type(passed) is type(model)
    assert passed.patches_uuid == model.patches_uuid
    assert "its dynamic VRAM streams this model already" in caplog.text
    sample(passed, WAN)
    run = report(passed)
    assert (run["patcher"], run["engine"]) == ("Dynamic", "comfyui")
    assert run["engine_reason"] == "its dynamic VRAM streams this model already"
    assert type(offload(model, engine="comfyui")) is type(model)


def test_layerwise_converts_a_dynamic_model_once(offload, report):
    loads = []
    model = dynamic_model(WAN, loads)
    contents = lora(model, WAN)
    expected = sample(with_lora(build(WAN), contents), WAN)
    patched = with_lora(model, contents)
    streamed = [offload(patched, engine="layerwise", resident_blocks=blocks) for blocks in (0, 3, 0)]
    assert loads == [True]
    assert len({id(one.model) for one in streamed}) == 1
    for one in streamed:
        assert torch.equal(sample(one, WAN), expected)
        run = report(one)
        assert (run["patcher"], run["engine"]) == ("LayerwiseOffloadModelPatcher", "layerwise")
        assert run["engine_reason"] == "asked for; a plain copy of the dynamic VRAM model is streamed"
    copy = weakref.ref(streamed[0].model)
    del streamed, one
    gc.collect()
    assert copy() is None
    offload(patched, engine="layerwise")
    assert loads == [True, True]


def test_a_dynamic_model_without_a_loader_is_explained(offload):
    model = dynamic_model(WAN, [])
    model.cached_patcher_init = None
    with pytest.raises(ValueError, match=r"engine is 'layerwise'.*core loader.*--disable-dynamic-vram"):
        offload(model, engine="layerwise")


def test_engine_comfyui_needs_dynamic_vram(offload):
    with pytest.raises(ValueError, match=r"engine is 'comfyui'.*Set engine to 'auto' or 'layerwise'"):
        offload(build(WAN), engine="comfyui")


def block_keys(family):
    return [f"diffusion_model.{name}.{index}" for name, count in family.list_sizes.items() for index in range(count)]


def compiled_by_wrapper(patcher, family):
    """Compile block by block as ComfyUI's own helper does: swapped in around each model call."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    compiled = patcher.clone()
    set_torch_compile_wrapper(compiled, backend="eager", keys=block_keys(family))
    return compiled


def compiled_by_object_patch(patcher, family):
    """Compile block by block as older nodes do: swapped in while the model is loaded. ComfyUI's own loader then
    finds no LoRA key for such a block, so only streamed blocks can have one."""
    compiled = patcher.clone()
    for key in block_keys(family):
        compiled.add_object_patch(key, torch.compile(patcher.get_model_object(key), backend="eager"))
    return compiled


@each_family
@pytest.mark.parametrize(
    ("compiled", "resident"), [(compiled_by_wrapper, 2), (compiled_by_object_patch, 0)], ids=["wrapper", "object patch"]
)
def test_blocks_compiled_one_by_one(offload, dbcache, report, family, compiled, resident):
    torch._dynamo.reset()
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    cached = sample(dbcache(with_lora(plain, contents), **FORCED), family)
    after = compiled(with_lora(offload(plain, resident_blocks=resident), contents), family)
    before = offload(compiled(with_lora(plain, contents), family), resident_blocks=resident)
    for model in (after, before):
        assert torch.equal(sample(model, family), expected)
        assert report(model)["totals"]["bytes_streamed"] > 0
    both = dbcache(after, **FORCED)
    assert torch.equal(sample(both, family), cached)
    assert report(both)["totals"]["hits"] > 0


@each_family
def test_after_compiled_blocks_the_plain_model_is_as_before(offload, family):
    torch._dynamo.reset()
    plain = build(family)
    contents = lora(plain, family)
    expected = sample(with_lora(plain, contents), family)
    sample(compiled_by_wrapper(with_lora(offload(plain, resident_blocks=2), contents), family), family)
    assert torch.equal(sample(with_lora(plain, contents), family), expected)
    assert not any(hasattr(block, "_orig_mod") for block in blocks_of(plain, family))


@each_family
def test_a_wholly_compiled_model_is_right(offload, dbcache, report, family, caplog):
    """Nothing of it is compiled while the hooks are on, but every picture is right, and it is said once."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    torch._dynamo.reset()
    plain = build(family)
    expected = sample(dbcache(plain, **FORCED), family)
    model = dbcache(offload(plain, resident_blocks=2), **FORCED)
    set_torch_compile_wrapper(model, backend="eager")
    with caplog.at_level("WARNING"):
        assert torch.allclose(sample(model, family), expected, rtol=1e-5, atol=1e-6)
    said = "compiled as a whole"
    assert sum(said in note for note in report(model)["notes"]) == 1
    assert sum(said in record.getMessage() for record in caplog.records) == 1


def test_kept_tensors_are_made_where_comfyui_wants_them(pack, dbcache, monkeypatch):
    """In newer versions inside ``comfy.model_prefetch.pause_malloc_graph``, here a stand-in that counts."""
    entered = []

    @contextlib.contextmanager
    def pause_malloc_graph():
        entered.append(True)
        yield

    plain = build(WAN)
    expected = sample(dbcache(plain, **FORCED), WAN)
    monkeypatch.setattr(
        pack.module("comfy_adapter.versions"), "model_prefetch", SimpleNamespace(pause_malloc_graph=pause_malloc_graph)
    )
    assert torch.equal(sample(dbcache(plain, **FORCED), WAN), expected)
    assert entered


def test_several_gpus_are_refused(offload):
    model = offload(build(WAN), resident_blocks=0)
    with pytest.raises(ValueError, match="one GPU"):
        model.deepclone_multigpu()


@pytest.mark.parametrize("name", ["EasyCache", "LazyCache"])
def test_caches_that_skip_whole_steps(dbcache, offload, report, name):
    plain = build(WAN)
    with pytest.raises(ValueError, match=f"model has {name} on it.*Remove one of the two"):
        dbcache(easy_cache(plain, name), **FORCED)
    after = easy_cache(dbcache(plain, **FORCED), name)
    assert sample(after, WAN).isfinite().all()
    assert sum(name in note for note in report(after)["notes"]) == 1
    # the offload alone goes well with either
    streamed = easy_cache(offload(plain, resident_blocks=1), name)
    assert torch.equal(sample(streamed, WAN), sample(easy_cache(plain, name), WAN))


def test_skipped_blocks_leave_comfyuis_prefetch_queue(pack, dbcache, report, monkeypatch):
    """On the real queue functions: a call that hits empties the entries of the blocks it will skip, no others."""
    versions = pack.module("comfy_adapter.versions")
    if not hasattr(versions.model_prefetch, "make_prefetch_queue"):
        pytest.skip("this ComfyUI prefetches no blocks")
    prefetch = versions.model_prefetch
    monkeypatch.setattr(comfy.model_management, "is_device_cpu", lambda device: False)
    monkeypatch.setattr(comfy.model_management, "device_supports_non_blocking", lambda device: True)
    monkeypatch.setattr(comfy.model_management, "NUM_STREAMS", 2)
    plain = build(WAN)
    blocks = blocks_of(plain, WAN)
    model = dbcache(plain, **FORCED)
    queues = []

    def cast_modules(modules, *args, **kwargs):
        return (None, False) if kwargs.get("return_faulted") else None

    monkeypatch.setattr(comfy.ops, "cast_modules_with_vbar", cast_modules)
    monkeypatch.setattr(comfy.model_management, "sync_stream", lambda *_: None)
    monkeypatch.setattr(comfy.model_management, "ensure_pin_registerable", lambda *_: None)
    calls = []

    def start(*_):
        calls.append([])
        queues.append(prefetch.make_prefetch_queue(list(blocks), torch.device("cpu"), {"prefetch_dynamic_vbars": True}))

    def before(module, *_):
        queue = queues[-1]
        entry = queue[1]
        prefetch.prefetch_queue_pop(queue, torch.device("cpu"), module)
        calls[-1].append(entry)

    # as the loops of ComfyUI's prefetching models do: a queue for each call, a pop before each block
    root = plain.model.diffusion_model
    handles = [root.register_forward_pre_hook(start)]
    handles += [block.register_forward_pre_hook(before) for block in blocks]
    sample(model, WAN)
    for handle in handles:
        handle.remove()
    prefetch.cleanup_prefetch_queues()
    outcomes = [call["outcome"] for call in report(model)["calls"]]
    assert "hit" in outcomes
    for outcome, entries in zip(outcomes, calls, strict=True):
        expected = [block if outcome == "miss" or index in (0, 7) else None for index, block in enumerate(blocks)]
        assert [entry is block for entry, block in zip(entries, blocks, strict=True)] == [
            b is not None for b in expected
        ]
        assert all(entry is None for entry, wanted in zip(entries, expected, strict=True) if wanted is None)


def test_a_hook_makes_comfyui_swap_a_dynamic_model_and_the_cache_goes_with_it(dbcache, report):
    """Hooks do not work on a dynamic model, so the sampler takes its other copy, loaded without dynamic VRAM."""
    import comfy.hooks

    loads = []
    model = dynamic_model(WAN, loads)
    if not hasattr(comfy.model_patcher.ModelPatcherDynamic, "get_non_dynamic_delegate"):
        pytest.skip("this ComfyUI does not swap models for hooks")
    type(model).get_non_dynamic_delegate = comfy.model_patcher.ModelPatcherDynamic.get_non_dynamic_delegate
    plain = build(WAN)
    contents = lora(plain, WAN)

    def conditions():
        hooks = comfy.hooks.create_hook_lora(lora=contents, strength_model=1.0, strength_clip=0.0)
        return {"positive": comfy.hooks.set_hooks_for_conditioning(cond(2), hooks)}

    expected = sample(dbcache(plain, **FORCED), WAN, **conditions())
    cached = dbcache(model, **FORCED)
    cached.non_dynamic_delegate_model = None
    assert torch.equal(sample(cached, WAN, **conditions()), expected)
    assert loads == [True]
    run = report(cached)
    assert run["totals"]["hits"] > 0
    assert run["totals"]["blocks_skipped"] == run["totals"]["hits"] * 6
    assert not torch.equal(expected, sample(plain, WAN, **conditions()))
    assert torch.equal(sample(cached, WAN, **conditions()), expected)
    assert loads == [True]
