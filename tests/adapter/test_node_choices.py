"""What the nodes' inputs do to whole runs on the mocked ComfyUI, and which inputs are refused."""

from __future__ import annotations

import pytest
import torch
from rigs import mock_comfy
from rigs.mock_runs import STEPS, DBCacheSettings, apply, cached, conds, noise, patcher_of, run_of, sample, streamed
from rigs.toy_stacks import UNetModel


def test_the_cache_node_twice_acts_as_the_last_one():
    plain = patcher_of("in_place")
    twice = cached(cached(plain, max_continuous=1), max_continuous=3)
    assert torch.equal(sample(twice), sample(cached(plain, max_continuous=3)))
    assert len(twice.get_wrappers("outer_sample", "dit_layerwise_offload")) == 1


def test_start_and_end_percent():
    model = cached(patcher_of("in_place"), warmup_steps=0, start_percent=0.35, end_percent=0.75, max_continuous=-1)
    sample(model, ((0,),))
    outcomes = [(call["outcome"], call["reason"]) for call in run_of(model)["calls"]]
    assert [outcome for outcome, _ in outcomes] == ["miss"] * 4 + ["hit"] * 4 + ["miss"] * 2
    assert outcomes[3][1] == "before start_percent"
    assert outcomes[9][1] == "after end_percent"


def test_a_step_exactly_at_a_percent_is_told_from_the_one_before():
    """ComfyUI's noise levels are float32: a tenth is not the same number there."""
    for start in range(1, 9):
        end = start + 1
        model = cached(patcher_of("in_place"), warmup_steps=0, start_percent=start / 10, end_percent=end / 10)
        sample(model, ((0,),))
        reasons = [call["reason"] for call in run_of(model)["calls"]]
        assert [reason == "before start_percent" for reason in reasons] == [at < start for at in range(10)]
        assert [reason == "after end_percent" for reason in reasons] == [at >= end for at in range(10)]


@pytest.mark.parametrize("joined", [(0, 1), (0,)])
def test_the_last_step_is_computed_unless_told_otherwise(joined):
    for compute, last in ((True, ("miss", "last step")), (False, ("hit", "threshold is 1"))):
        model = cached(patcher_of("out_of_place"), max_continuous=-1, compute_last_step=compute)
        sample(model, (joined,))
        calls = run_of(model)["calls"]
        assert [call["outcome"] for call in calls[2:-1]] == ["hit"] * (len(calls) - 3)
        assert calls[-1]["outcome"] == last[0]
        assert calls[-1]["reason"].startswith(last[1][:9])


def test_a_preset_is_off_on_four_steps_and_says_so():
    plain = patcher_of("out_of_place")
    sigmas = torch.linspace(1, 0, 5)
    model = apply.apply_dbcache(plain, DBCacheSettings(preset="fast", calibrator="none"))
    assert torch.equal(sample(model, sigmas=sigmas), sample(plain, sigmas=sigmas))
    run = run_of(model)
    assert run["totals"]["hits"] == 0
    assert any("too few" in note for note in run["notes"])


class Replaceable(torch.nn.Module):
    """A block that another node may replace: while ``replaced``, its own forward is run past any hook."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.replaced = False

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs) if self.replaced else super().__call__(*args, **kwargs)


@pytest.mark.parametrize("index", [0, 1, 6])
@pytest.mark.parametrize("since", [0, 7], ids=["from the start", "in mid-run"])
def test_a_call_the_gate_cannot_follow_is_exact_and_said_once(index, since):
    """Blocks 0 (judged), 1 and 6 (first and last of the middle) are those the gate cannot do without."""
    plain = patcher_of("out_of_place")
    blocks = plain.model.diffusion_model.blocks
    victim = blocks[index] = Replaceable(blocks[index])
    model = cached(streamed(plain, resident_blocks=8), bn=1, warmup_steps=2, max_continuous=-1)
    base = model.model.apply_model
    exact = []

    def watched(*args, **kwargs):
        victim.replaced = len(exact) >= since
        output = base(*args, **kwargs)
        kwargs["transformer_options"] = {}
        exact.append(torch.equal(output, base(*args, **kwargs)))
        return output

    model.model.apply_model = watched
    sample(model, ((0,),))
    run = run_of(model)
    outcomes = [call["outcome"] for call in run["calls"]]
    assert outcomes == ["miss" if step < 2 or step >= since else "hit" for step in range(STEPS)]
    assert exact == [outcome == "miss" for outcome in outcomes]
    assert all(call["reason"].startswith("not supported") for call in run["calls"][max(since, 2) :])
    assert sum("computed exactly" in note for note in run["notes"]) == 1


def test_a_model_without_a_block_stack_is_named():
    patcher = mock_comfy.ModelPatcher(mock_comfy.BaseModel(UNetModel()))
    for node in (streamed, cached):
        with pytest.raises(ValueError, match=r"model is a UNetModel.*UNet.*Remove this node"):
            node(patcher)


def test_too_large_fn_and_bn_are_named():
    with pytest.raises(ValueError, match=r"Fn is 5 and Bn is 3.*8 blocks"):
        cached(patcher_of("in_place"), fn=5, bn=3)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("engine", {"engine": "magic"}),
        ("engine", {"engine": "comfyui"}),
        ("resident_blocks", {"resident_blocks": -2}),
        ("vram_budget_gb", {"vram_budget_gb": -1.0}),
        ("vram_budget_gb", {"vram_budget_gb": float("nan")}),
        ("residency_policy", {"residency_policy": "random"}),
        ("prefetch_blocks", {"prefetch_blocks": 17}),
        ("prefetch_blocks", {"prefetch_blocks": -2}),
        ("pin_memory", {"pin_memory": "maybe"}),
        ("lora", {"lora": "never"}),
    ],
)
def test_bad_offload_settings_are_named(field, values):
    with pytest.raises(ValueError, match=field) as caught:
        streamed(patcher_of("in_place"), **values)
    assert str(next(iter(values.values()))) in str(caught.value)


def test_without_a_run_the_report_says_so():
    message = apply.last_run(streamed(patcher_of("in_place")))
    assert "No sampling run" in message[0]
    assert message[0] == message[1]
    assert "neither" in apply.last_run(patcher_of("in_place"))[0]


def test_each_output_reports_its_own_runs():
    plain = patcher_of("in_place")
    one = streamed(plain)
    other = cached(one)
    sample(other)
    assert "No sampling run" in apply.last_run(one)[0]
    sample(one)
    assert run_of(one)["totals"]["hits"] == 0
    assert run_of(other)["totals"]["hits"] > 0


def test_a_missing_cache_dit_is_one_readable_message(monkeypatch):
    from pack_on_mock.dbcache import cache_dit

    monkeypatch.setattr(cache_dit, "_installed_version", lambda: None)
    with pytest.raises(RuntimeError, match=r"needs the package cache-dit.*pip install"):
        cached(patcher_of("in_place"))
    monkeypatch.setattr(cache_dit, "_installed_version", lambda: "9.9.9")
    with pytest.raises(RuntimeError, match=r"cache-dit>=1\.5\.3,<1\.6, but 9\.9\.9 is installed"):
        cached(patcher_of("in_place"))
    plain = patcher_of("in_place")
    assert torch.equal(sample(streamed(plain)), sample(plain))


def test_a_block_that_grows_between_loads():
    plain = patcher_of("out_of_place")
    model = streamed(plain, resident_blocks=0)
    expected = sample(model)
    before = model.model_size()
    block = plain.model.diffusion_model.blocks[3]
    block.register_parameter("extra", torch.nn.Parameter(torch.zeros(4096), requires_grad=False))
    model.detach()
    assert torch.equal(sample(model), expected)
    assert model.model_size() == before + 2 * 4096 * 4
    assert run_of(model)["totals"]["peak_slot_bytes"] >= 2 * 4096 * 4


def test_a_call_outside_a_sampler_still_streams():
    """Some nodes call the model without a guider: then there is no run, but the weights must be there."""
    plain = patcher_of("out_of_place")
    model = streamed(cached(plain), resident_blocks=0)
    mock_comfy.load_models_gpu(model)
    arguments = (noise(), torch.ones(1), conds()[0])
    output = model.model.apply_model(*arguments, transformer_options={"wrappers": model.wrappers})
    assert torch.equal(output, plain.model.apply_model(*arguments))
