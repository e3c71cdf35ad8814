"""What is left of a model call once it is over: nothing of its inputs, and nothing copied for it afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from rigs.mock_runs import cached, each_shape, patcher_of, sample, streamed


@pytest.fixture
def no_collector():
    """Only what nothing refers to any more is freed, at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sample_with(model, block, is_interrupted):
    """Sample, and interrupt it in ``block`` once ``is_interrupted`` says so; return whether that happened."""
    own = block.forward

    def forward(*args, **kwargs):
        if is_interrupted():
            raise KeyboardInterrupt
        return own(*args, **kwargs)

    vars(block)["forward"] = forward
    try:
        sample(model)
    except KeyboardInterrupt:
        return True
    return False


@each_shape
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_calls_inputs_are_gone_when_it_is_over(shape, interrupted, no_collector):
    """Latents, conditions and ControlNet tensors of earlier calls may fill a card long before a collector runs."""
    model = streamed(cached(patcher_of(shape)))
    base, inputs, left = model.model.apply_model, [], []
    block = model.model.diffusion_model.get_submodule(
        {"double_single": "single_blocks", "two_streams": "transformer_blocks"}.get(shape, "blocks")
    )[3]

    def watched(x, timestep, context, **kwargs):
        left.append(sum(one() is not None for one in inputs))
        x, context = x.clone(), context.clone()
        inputs.extend((weakref.ref(x), weakref.ref(context)))
        return base(x, timestep, context, **kwargs)

    model.model.apply_model = watched
    assert sample_with(model, block, lambda: interrupted and len(inputs) > 8) is interrupted
    left.append(sum(one() is not None for one in inputs))
    assert len(left) > 4
    assert not any(left)


@torch.no_grad()
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_gates_copies_are_gone_with_the_call(interrupted, no_collector, monkeypatch):
    from pack_on_mock.dbcache.gate import CallGate

    copied, kept = CallGate._copy, []

    def watched(self, hidden):
        copied(self, hidden)
        kept.extend(weakref.ref(copy) for copy in self._before.values())

    monkeypatch.setattr(CallGate, "_copy", watched)
    model = cached(patcher_of("out_of_place"))
    block = model.model.diffusion_model.blocks[3]
    assert sample_with(model, block, lambda: interrupted and len(kept) > 3) is interrupted
    assert len(kept) > 3
    assert not any(copy() is not None for copy in kept)


def test_nothing_is_copied_for_a_call_that_is_over():
    """The gate may find out only after the last block that one was left out: it is too late to bring it then."""
    model = streamed(cached(patcher_of("out_of_place"), bn=0), resident_blocks=0)
    blocks = model.model.diffusion_model.blocks
    left_out = type("LeftOut", (type(blocks[7]),), {"__call__": lambda self, x, **_: x})
    blocks[7].__class__ = left_out
    base, held = model.model.apply_model, []

    def watched(*args, **kwargs):
        output = base(*args, **kwargs)
        held.append(model._streaming.streamer.holds(7))
        return output

    model.model.apply_model = watched
    sample(model)
    assert held
    assert not any(held)
