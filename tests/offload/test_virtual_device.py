"""The virtual device's clock under the streaming engine, and the faults it is there to catch."""

from __future__ import annotations

import pytest
import torch
from pack.offload.devices.virtual import RaceError, VirtualDevice
from rigs.streaming_rig import BLOCK_BYTES, WIDTH, StreamingRig


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("bandwidth", [0.25, 1.0, 4.0], ids=["bus-bound", "balanced", "compute-bound"])
def test_virtual_step_time_is_that_of_the_slower_engine(prefetch, bandwidth):
    """Uniform blocks, ``bandwidth`` in blocks per block time: with a prefetch at most 5 % above the bound."""
    rig = StreamingRig(20, prefetch=prefetch, bandwidth=bandwidth * BLOCK_BYTES)
    rig.call()
    start = rig.device.compute_time
    for _ in range(5):
        rig.call()
    step = (rig.device.compute_time - start) / 5
    bound = max(20.0, 20 / bandwidth)
    if prefetch == 0:
        assert step == pytest.approx(20 + 20 / bandwidth)
    else:
        assert bound <= step * 1.0001
        assert step <= 1.05 * bound


@pytest.mark.parametrize("bandwidth", [0.1, 1.0, 10.0])
def test_virtual_step_time_with_blocks_of_different_size(bandwidth):
    widths = [WIDTH * (4 if index % 4 == 0 else 1) for index in range(20)]
    rig = StreamingRig(20, prefetch=2, widths=widths, bandwidth=bandwidth * BLOCK_BYTES)
    size = sum(widths) * WIDTH * 4
    rig.call()
    start = rig.device.compute_time
    for _ in range(5):
        rig.call()
    step = (rig.device.compute_time - start) / 5
    assert step <= 1.05 * max(20.0, size / (bandwidth * BLOCK_BYTES))
    assert rig.streamer.peak_slot_bytes == 3 * 4 * BLOCK_BYTES


def test_the_virtual_device_catches_a_reused_slot():
    """The double itself: a copy into a buffer that compute may still read is an error."""
    device = VirtualDevice()
    buffer, source = device.empty(16), torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(RaceError):
        device.start_copy([(buffer, source)], None)
    early = device.mark()
    device.wait(device.start_copy([(buffer, source)], early))
    for event in (None, early):
        with pytest.raises(RaceError):
            device.start_copy([(buffer, source)], event)
    device.start_copy([(buffer, source)], device.mark())


def test_the_virtual_device_poisons_what_is_not_waited_for():
    device = VirtualDevice()
    buffer = device.empty(16)
    event = device.start_copy([(buffer.view(torch.float32), torch.ones(4))], device.mark())
    assert buffer.view(torch.float32).isnan().all()
    device.wait(event)
    assert torch.equal(buffer.view(torch.float32), torch.ones(4))
