"""What the report says of an engine that had to settle for less."""

from __future__ import annotations

from types import SimpleNamespace

from rigs import mock_comfy

mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.streaming.notes import engine_notes  # noqa: E402

MIB = 2**20


def pins(pinned, pageable):
    return SimpleNamespace(pinned_bytes=pinned * MIB, pageable_bytes=pageable * MIB)


def test_nothing_to_say():
    assert engine_notes("auto", False, None, 0) == []
    assert engine_notes("bake", False, pins(5, 0), 0) == []


def test_how_much_is_pageable():
    [note] = engine_notes("auto", False, pins(2, 3), 0)
    assert "3 of 5 MiB of streamed weights could not be pinned" in note


def test_how_much_no_slot_holds():
    [note] = engine_notes("auto", False, None, 7 * MIB)
    assert "7 MiB of streamed weights are of a type that can only be moved whole" in note


def test_why_loras_are_applied_on_the_fly():
    assert "because main memory is short" in engine_notes("auto", True, None, 0)[0]
    assert "because" not in engine_notes("on_the_fly", True, None, 0)[0]
