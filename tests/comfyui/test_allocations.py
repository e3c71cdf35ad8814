"""Newer ComfyUI records what is allocated in a model call and in each block of it: the nodes add nothing to that.

Its recorder needs a GPU, so a stand-in with its rules takes its place, in the models of a ComfyUI that has none yet.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from rigs.real_comfy import AUDIO_VIDEO_FAMILIES, FORCED, build, sample
from rigs.recorded_allocations import AllocationRecorder


@pytest.fixture
def record(pack, monkeypatch):
    """Return what samples a model while a recorder watches: its faults, and what was sampled."""

    def run(model, family):
        recorder = AllocationRecorder()
        root = model.model.diffusion_model

        def next_block(queue, device, block, *args, **kwargs):
            recorder.next_block(None if block is None else "a block")

        stand_in = SimpleNamespace(pause_malloc_graph=recorder.pause)
        with monkeypatch.context() as patched:
            patched.setattr(pack.module("comfy_adapter.versions"), "model_prefetch", stand_in)
            patched.setattr("comfy.model_prefetch.make_prefetch_queue", lambda *_: [])
            patched.setattr("comfy.model_prefetch.prefetch_queue_pop", next_block)
            patched.setattr(root, "forward", recorder.around(root.forward))
            with recorder:
                return recorder.faults, sample(model, family)

    return run


@pytest.mark.parametrize("family", AUDIO_VIDEO_FAMILIES, ids=lambda family: family.name)
def test_the_nodes_leave_the_allocations_of_every_block_as_they_are(offload, dbcache, report, record, family):
    plain = build(family)
    faults, expected = record(plain, family)
    assert faults == []
    assert torch.equal(expected, sample(plain, family))
    for model in (
        dbcache(plain, **FORCED),
        offload(plain, resident_blocks=2),
        dbcache(offload(plain, resident_blocks=2), **FORCED),
    ):
        unrecorded = sample(model, family)
        faults, sampled = record(model, family)
        assert faults == []
        assert torch.equal(sampled, unrecorded)
    assert report(model)["totals"]["hits"] > 0
