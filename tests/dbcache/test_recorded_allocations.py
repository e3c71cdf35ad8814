"""Newer ComfyUI records what is allocated in a model call and in each block of it: nothing of the cache may show there.

The recorder is a stand-in (``rigs/recorded_allocations.py``), the stack an in-place one, as the models are that
ComfyUI records.
"""

from __future__ import annotations

import pytest
from pack.dbcache.calibrators import CALIBRATORS
from rigs.gate_rig import GateRig, custom
from rigs.recorded_allocations import AllocationRecorder


def recorded_rig(recorder: AllocationRecorder, settings) -> GateRig:
    """A rig whose model and blocks have scopes, as those of ComfyUI's MiniMax-H3."""
    rig = GateRig("in_place", settings)
    rig.session.keeping = recorder.pause
    rig.model.run_blocks = recorder.around(rig.model.run_blocks)
    for index, block in enumerate(rig.blocks):
        block.register_forward_pre_hook(lambda *_, name=f"block {index}": recorder.next_block(name))
    return rig


def run(rig: GateRig, recorder: AllocationRecorder, steps: int = 8) -> list[bool]:
    with recorder:
        return [rig.call(step)[1].hit for step in range(steps)]


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize(("fn", "bn"), [(1, 0), (2, 3)])
def test_no_allocation_is_recorded_in_one_scope_and_freed_in_another(calibrator, fn, bn):
    recorder = AllocationRecorder()
    hits = run(recorded_rig(recorder, custom(fn=fn, bn=bn, calibrator=calibrator)), recorder)
    assert any(hits)
    assert not all(hits)
    assert recorder.faults == []


def test_the_stand_in_sees_a_tensor_that_is_replaced_between_blocks():
    recorder = AllocationRecorder()
    rig = recorded_rig(recorder, custom(warmup_steps=99))
    own = rig.blocks[3].forward
    rig.blocks[3].forward = lambda *args, **kwargs: own(*args, **kwargs).clone()
    run(rig, recorder, steps=1)
    assert recorder.faults == [
        "made in the call and freed in block 3",
        "made in block 3 and still there after it",
    ]


def test_the_stand_in_sees_what_is_kept_without_a_pause():
    recorder = AllocationRecorder()
    rig = recorded_rig(recorder, custom())
    rig.session.keeping = lambda: recorder.scope("the cache")
    run(rig, recorder, steps=1)
    assert recorder.faults
