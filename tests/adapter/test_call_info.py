"""What tells one series of model calls from another, and what makes a call a miss, read from ComfyUI's options."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from rigs import mock_comfy

mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.sampling.describe import call_info, scheduled_strengths  # noqa: E402

OPTIONS = {"uuids": ["a", "b"], "cond_or_uncond": [1, 0]}


def info(options=(), control=None, **values):
    return call_info({**OPTIONS, **dict(options)}, control, **{"step": 3, "sigma": 0.5, **values})


def test_a_plain_call():
    call = info(last=True, closed="before start_percent")
    assert (call.step, call.sigma, call.last, call.closed) == (3, 0.5, True, "before start_percent")
    assert (call.conds, call.kinds) == (("a", "b"), (1, 0))
    assert info() == info(last=False)


@pytest.mark.parametrize(
    "options",
    [
        {"context_window": SimpleNamespace(index_list=[0, 1])},
        {"context_window": "first"},
        {"patches_replace": {"dit": {("double_block", 3): None}}},
    ],
    ids=["window", "another pack's window", "replaced block"],
)
def test_another_setting_is_another_series(options):
    assert info(options).setting != info().setting
    assert info(options).setting == info(options).setting
    assert info(options).control == info().control


def test_an_empty_group_of_replacements_says_nothing():
    assert info({"patches_replace": {"dit": {}}}).setting == info().setting


def test_control_counts_by_shapes_and_not_by_values():
    one, other = ({"input": [torch.rand(1, 4, 2), None]} for _ in range(2))
    assert info(control=one).control == info(control=other).control != info().control
    assert info(control={"input": [torch.rand(1, 5, 2), None]}).control != info(control=one).control
    assert info(control={"output": None}).control == info(control={}).control


def test_scheduled_strengths_change_the_control_and_not_the_series():
    def model(*strengths):
        hooks = SimpleNamespace(hooks=[SimpleNamespace(strength=one) for one in strengths])
        return SimpleNamespace(current_patcher=SimpleNamespace(current_hooks=hooks))

    assert scheduled_strengths(SimpleNamespace()) == ()
    calls = [info(strengths=scheduled_strengths(model(*strengths))) for strengths in ((0.5,), (0.25,), (0.5,))]
    assert calls[0] == calls[2] != calls[1]
    assert calls[0].setting == calls[1].setting
