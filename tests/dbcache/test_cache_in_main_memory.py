"""The cache in main memory, with a stand-in for a memory that nothing is computed in."""

from __future__ import annotations

import weakref

import pytest
import torch
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

MAIN_MEMORY = torch.device("meta")  # any name that is not the toys' own device
FACTS = {torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__}


class InMainMemory(torch.Tensor):
    """A tensor that says it is elsewhere: it can be brought to the device, which is noted, and nothing else."""

    brought: list[weakref.ref]
    most: int

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function == torch.Tensor.device.__get__:
            return MAIN_MEMORY
        with torch._C.DisableTorchFunctionSubclass():
            if function in FACTS:
                return function(*args)
            assert function is torch.Tensor.to, f"{function} in main memory"
            assert args[1] != MAIN_MEMORY
            copy = args[0].as_subclass(torch.Tensor).clone()
        cls.brought.append(weakref.ref(copy))
        cls.most = max(cls.most, sum(one() is not None for one in cls.brought))
        return copy


@pytest.fixture
def main_memory(monkeypatch):
    """``cpu()`` puts a tensor there."""

    class Memory(InMainMemory):
        brought, most = [], 0

    def to_main_memory(tensor):
        assert tensor.device != MAIN_MEMORY
        return tensor.clone().as_subclass(Memory)

    monkeypatch.setattr(torch.Tensor, "cpu", to_main_memory)
    return Memory


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_one_kept_tensor_at_a_time_is_on_the_device(shape, main_memory):
    """Every stream is compared and every residual added, one after the other; nothing stays between calls."""
    near, far = (GateRig(shape, custom(cache_device=device, bn=1, threshold=0.9)) for device in ("device", "cpu"))
    hits = compared = 0
    for step in range(8):
        (expected, outcome), (output, same) = near.call(step), far.call(step)
        assert same == outcome
        assert torch.equal(output, expected)
        assert type(output) is torch.Tensor
        hits += outcome.hit
        compared += len(outcome.diffs)
        near.gate = far.gate = None
        assert not any(one() is not None for one in main_memory.brought)
    context = next(iter(far.session._branches.values())).context._context
    residuals = sum(name.endswith("Bn_residual_buffer") for name in context.buffers)
    assert all(isinstance(buffer, main_memory) for buffer in context.buffers.values())
    judged = len(context.buffers) - residuals
    assert hits == 6
    assert len(main_memory.brought) == hits * (judged + residuals)
    assert compared == hits * judged
    assert main_memory.most == 1
