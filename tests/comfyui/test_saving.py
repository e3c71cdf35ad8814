"""Reading and saving weights of a streamed model: always the true ones, LoRA applied once."""

from __future__ import annotations

import comfy.model_management
import pytest
import safetensors.torch
import torch
from rigs.real_comfy import FAMILIES, WAN, build, lora, sample, weights_at_rest, with_lora

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


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


def test_the_save_node_after_an_interrupt(offload, comfy_nodes, tmp_path):
    from comfy_extras.nodes_model_merging import ModelSave

    def saved(model, name):
        node = ModelSave()
        node.output_dir = str(tmp_path)
        with torch.inference_mode():
            node.save(model, name)
        [written] = tmp_path.glob(f"{name}_*")
        return safetensors.torch.load_file(written)

    def interrupt(step, *_):
        if step == 4:
            raise comfy.model_management.InterruptProcessingException()

    plain = build(WAN)
    contents = lora(plain, WAN)
    expected = saved(with_lora(plain, contents), "plain")
    model = with_lora(offload(plain, resident_blocks=1), contents)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(model, WAN, callback=interrupt)
    written = saved(model, "streamed")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[key], expected[key]) for key in written)
