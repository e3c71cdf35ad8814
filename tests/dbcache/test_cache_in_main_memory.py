"""The cache in main memory, with a stand-in for a memory that nothing is computed in."""

from __future__ import annotations

import weakref

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from pack.dbcache.main_memory import copying_device
from rigs.gate_rig import GateRig, custom
from rigs.late_device import LateDevice
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_the_cache_on_the_cpu_gives_the_same(shape, calibrator):
    """On one device both ways keep the same numbers; what goes to main memory is tested with a stand-in for it."""
    rigs = [GateRig(shape, custom(cache_device=device, calibrator=calibrator)) for device in ("device", "cpu")]
    for step in range(8):
        (a, one), (b, other) = (rig.call(step) for rig in rigs)
        assert torch.equal(a, b)
        assert one == other
    assert one.hit


@torch.no_grad()
@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_copies_that_arrive_late_give_the_same(shape, calibrator):
    """Two evaluations a step: the residuals of the second replace those of the first, but for a calibrator."""
    late = LateDevice()
    values = {"bn": 1, "threshold": 0.9, "warmup_steps": 4, "max_continuous": 2, "calibrator": calibrator}
    near = GateRig(shape, custom(**values))
    far = GateRig(shape, custom(**values, cache_device="cpu"), device_for=lambda device: late)
    hits = 0
    for step in range(10):
        for at in (step, step + 0.5):
            (expected, outcome), (output, same) = near.call(step, at=at), far.call(step, at=at)
            assert same == outcome
            assert torch.equal(output, expected)
            hits += outcome.hit
    assert hits > 6


@torch.no_grad()
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_keeping_does_not_stop_the_host(calibrator):
    late = LateDevice()
    settings = custom(warmup_steps=5, threshold=0.9, cache_device="cpu", calibrator=calibrator)
    rig = GateRig("two_streams", settings, device_for=lambda device: late)
    finished_by_then: list[int] = []
    rig.blocks[1].register_forward_pre_hook(lambda *_: finished_by_then.append(late.finished))
    for step in range(5):
        rig.call(step)
        assert late.on_their_way >= 4  # two states' residuals over the first and over the middle blocks
        assert finished_by_then[-1] == late.finished  # where the host must wait, it does so at the call's start
    assert rig.call(5)[1].hit
    assert late.waited > 0
    # without a calibrator nothing is computed in main memory
    assert (late.finished == 0) == (calibrator == "none")


def test_what_is_on_its_way_is_kept_memory():
    rigs = [
        GateRig("out_of_place", custom(calibrator="taylorseer", cache_device="cpu"), device_for=device_for)
        for device_for in (lambda device: LateDevice(), lambda device: None)
    ]
    late, plain = rigs
    for step in range(3):
        late.call(step)
        assert plain.session.kept_bytes <= late.session.kept_bytes
        plain.call(step)
    assert plain.session.kept_bytes > 0


@torch.no_grad()
def test_memory_that_cannot_be_pinned_is_copied_to_plainly_and_said_once():
    class Full(LateDevice):
        def start_copy(self, tensor):
            raise RuntimeError("cannot pin memory")

    near = GateRig("two_streams", custom())
    far = GateRig("two_streams", custom(cache_device="cpu"), device_for=lambda device: Full())
    for step in range(6):
        (expected, outcome), (output, same) = near.call(step), far.call(step)
        assert same == outcome
        assert torch.equal(output, expected)
    assert outcome.hit
    assert [note for note in far.session.notes if "could not be pinned" in note] == far.session.notes != []


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_devices_without_streams_copy_plainly(device):
    assert copying_device(torch.device(device)) is None


def test_a_torch_without_a_generic_accelerator_copies_plainly(monkeypatch):
    assert copying_device(torch.device("cuda")) is not None
    monkeypatch.delattr(torch, "accelerator")
    assert copying_device(torch.device("cuda")) is None
