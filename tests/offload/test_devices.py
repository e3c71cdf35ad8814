"""The accelerator device without an accelerator: the order in which it talks to streams, and the choice of device."""

from __future__ import annotations

import types

import pytest
import torch
from pack.offload import devices

CUDA = torch.device("cuda", 0)


class FakeStream:
    """Logs what is asked of it."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_event(self, event):
        self.log.append((self.name, "waits for", event))

    def record_event(self):
        event = f"event {len(self.log)} of {self.name}"
        self.log.append((self.name, "records", event))
        return types.SimpleNamespace(name=event, synchronize=lambda: self.log.append(("host", "waits for", event)))


class Destination:
    """Logs copies into it and the stream they are made on."""

    def __init__(self, log, current):
        self.log, self.current = log, current

    def copy_(self, source, non_blocking):
        assert non_blocking
        if isinstance(source, Exception):
            raise source
        self.log.append((self.current[0].name, "copies", source))


@pytest.fixture
def rig(monkeypatch):
    log = []
    compute, copy = FakeStream("compute", log), FakeStream("copy", log)
    current = [compute]
    monkeypatch.setattr(devices.torch, "Stream", lambda device: copy)
    index = [1]

    def set_stream(stream):
        current[0], index[0] = stream, 0

    fake = types.SimpleNamespace(
        current_stream=lambda device: current[0],
        set_stream=set_stream,
        current_device_index=lambda: index[0],
        set_device_index=lambda number: index.__setitem__(0, number),
    )
    monkeypatch.setattr(devices.torch, "accelerator", fake)
    return types.SimpleNamespace(
        device=devices.AcceleratorDevice(CUDA),
        log=log,
        current=current,
        index=index,
        compute=compute,
        to=Destination(log, current),
    )


def test_a_copy_waits_for_the_slots_last_use_and_runs_on_the_side_stream(rig):
    event = rig.device.start_copy([(rig.to, "a"), (rig.to, "b")], "done")
    assert rig.log == [
        ("copy", "waits for", "done"),
        ("copy", "copies", "a"),
        ("copy", "copies", "b"),
        ("copy", "records", event.name),
    ]
    assert rig.current == [rig.compute]
    assert rig.index == [1], "the current device is another one than the model's, and stays so"


def test_the_first_copy_into_a_slot_waits_for_nothing(rig):
    rig.device.start_copy([(rig.to, "a")], None)
    assert rig.log[0] == ("copy", "copies", "a")


def test_compute_waits_for_the_copy_and_marks_its_own_progress(rig):
    rig.device.wait("ready")
    rig.device.mark()
    assert [entry[:2] for entry in rig.log] == [("compute", "waits for"), ("compute", "records")]


def test_an_error_in_a_copy_puts_the_compute_stream_back(rig):
    with pytest.raises(RuntimeError, match="broken"):
        rig.device.start_copy([(rig.to, RuntimeError("broken"))], None)
    assert rig.current == [rig.compute]


def test_finishing_blocks_the_host(rig):
    event = rig.device.start_copy([(rig.to, "a")], None)
    rig.device.finish(event)
    assert rig.log[-1] == ("host", "waits for", event.name)


def test_streams_are_used_where_there_are_any(monkeypatch):
    monkeypatch.setattr(devices.torch, "Stream", lambda device: None)
    for kind, expected in (
        ("cpu", devices.SynchronousDevice),
        ("mps", devices.SynchronousDevice),
        ("privateuseone", devices.SynchronousDevice),
        ("cuda", devices.AcceleratorDevice),
        ("xpu", devices.AcceleratorDevice),
    ):
        assert type(devices.offload_device(torch.device(kind))) is expected


def test_a_torch_without_the_generic_interface_is_named(monkeypatch):
    monkeypatch.delattr(devices.torch, "accelerator")
    for use in (devices.check_torch, devices.offload_device):
        with pytest.raises(RuntimeError, match=rf"torch is {torch.__version__.split('+')[0]}.* cuda needs 2\.6"):
            use(CUDA)
        use(torch.device("cpu"))


def test_buffers_are_no_inference_tensors():
    with torch.inference_mode():
        buffer = devices.SynchronousDevice(torch.device("cpu")).empty(16)
    assert not buffer.is_inference()


class TimedEvent:
    """An event with a time; passed once its stream has got there."""

    def __init__(self, device, enable_timing):
        assert enable_timing
        self.time, self.passed = None, False

    def query(self):
        return self.passed

    def elapsed_time(self, end):
        return end.time - self.time


def test_stamps_are_timed_events_of_the_two_streams(rig, monkeypatch):
    monkeypatch.setattr(devices.torch, "Event", TimedEvent)
    clock = iter((10.0, 12.5, 30.0, 90.0))
    recorded = []

    def record(stream):
        def record_event(event):
            event.time = next(clock)
            recorded.append(stream.name)
            return event

        return record_event

    copy = rig.device._copy_stream
    for stream in (rig.compute, copy):
        stream.record_event = record(stream)
    start, end = rig.device.stamp(), rig.device.stamp()
    copy_start, copy_end = rig.device.copy_stamp(), rig.device.copy_stamp()
    assert recorded == ["compute", "compute", "copy", "copy"]
    assert rig.device.elapsed_ms(start, end) is None
    end.passed = copy_end.passed = True
    assert rig.device.elapsed_ms(start, end) == 2.5
    assert rig.device.elapsed_ms(copy_start, copy_end) == 60.0


def test_only_a_device_with_streams_overlaps():
    assert devices.AcceleratorDevice.overlaps
    assert not devices.SynchronousDevice.overlaps
