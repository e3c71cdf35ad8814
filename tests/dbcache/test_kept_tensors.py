"""Tensors of the cache: where they are made, and that they go with the session."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_shape
def test_no_tensor_outlives_the_session(shape):
    rig = GateRig(shape, custom(fn=2, bn=1, warmup_steps=1, calibrator="taylorseer"))
    before = {id(o) for o in gc.get_objects() if isinstance(o, torch.Tensor)}
    for step in range(4):
        rig.call(step)
    rig.gate = None
    gc.collect()
    kept = [weakref.ref(o) for o in gc.get_objects() if isinstance(o, torch.Tensor) and id(o) not in before]
    assert kept
    rig.session.close()
    gc.collect()
    assert [ref() for ref in kept if ref() is not None] == []


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if type(value).__module__.startswith("cache_dit."):
        inner = vars(value).values()
    return [tensor for one in inner for tensor in tensors_in(one)]


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes where the storage of every tensor was made: while ``inside`` is true, or not."""

    def __init__(self):
        super().__init__()
        self.inside = False
        self.made_inside, self.made_outside = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {
            x.untyped_storage().data_ptr() for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)
        }
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                made, other = (self.made_inside, self.made_outside)[:: 1 if self.inside else -1]
                made.add(tensor.untyped_storage().data_ptr())
                other.discard(tensor.untyped_storage().data_ptr())
        return result


@each_shape
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_everything_kept_is_made_where_it_may_be_kept(shape, calibrator, monkeypatch):
    """ComfyUI's allocation-recording compiler aborts when a tensor made inside a block's scope outlives it."""
    recorder = Recorder()

    @contextlib.contextmanager
    def keeping():
        before, recorder.inside = recorder.inside, True
        try:
            yield
        finally:
            recorder.inside = before

    rig = GateRig(shape, custom(fn=1, bn=1, calibrator=calibrator))
    rig.session.keeping = keeping
    returned = []
    build = type(rig.session.route.layout.segments[0].segment).build_output
    segment = type(rig.session.route.layout.segments[0].segment)
    monkeypatch.setattr(segment, "build_output", lambda self, hidden: returned.append(hidden) or build(self, hidden))
    for step in range(5):
        with recorder:
            _, outcome = rig.call(step)
        context = next(iter(rig.session._branches.values())).context._context
        kept = list(context.buffers.values())
        if context.calibrator is not None:
            kept += tensors_in(vars(context.calibrator))
        assert kept
        for tensor in kept:
            assert tensor.untyped_storage().data_ptr() in recorder.made_inside
    assert outcome.hit
    # what stands in for the middle of a segment outlives the block that made it, or is what that block was given
    for name, value in returned[-1].items():
        if shape == "out_of_place":
            assert value.untyped_storage().data_ptr() in recorder.made_inside
        else:
            assert value is returned[-2][name]
