"""Blocks about to be skipped leave ComfyUI's prefetch queue, here a stand-in for it; all others keep their places."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from rigs import mock_comfy

mock_comfy.import_adapter("pack_on_mock")

from pack_on_mock.comfy_adapter.sampling import prefetch_queue  # noqa: E402


def blocks(count):
    return [torch.nn.Linear(1, 1) for _ in range(count)]


def with_queues(monkeypatch, queues):
    monkeypatch.setattr(prefetch_queue, "model_prefetch", SimpleNamespace(PREFETCH_QUEUES=queues))


def same(queue, expected):
    return len(queue) == len(expected) and all(a is b for a, b in zip(queue, expected, strict=True))


def test_only_waiting_entries_of_skipped_blocks_in_the_newest_queue_become_empty(monkeypatch):
    kept, skipped, under_way, elsewhere = blocks(4)
    casting = (object(), under_way)
    older = [skipped, kept]
    newest = [None, skipped, casting, None, kept, skipped, elsewhere]
    queues = [older, newest]
    with_queues(monkeypatch, queues)
    prefetch_queue.leave_out(iter([skipped, under_way]))
    assert same(newest, [None, None, casting, None, kept, None, elsewhere])
    assert casting[1] is under_way
    assert same(older, [skipped, kept])
    assert same(queues, [older, newest])


def test_several_blocks_in_one_entry_leave_together_or_not_at_all(monkeypatch):
    kept, one, other = blocks(3)
    queue = [[one, other], (one, other), [one, kept], [], (None, (one, [other]))]
    expected = [None, None, *queue[2:]]
    with_queues(monkeypatch, [queue])
    prefetch_queue.leave_out([one, other])
    assert same(queue, expected)


def test_blocks_are_told_apart_by_identity(monkeypatch):
    """Two blocks may compare equal."""

    class Alike(torch.nn.Linear):
        def __eq__(self, other):
            return isinstance(other, Alike)

        __hash__ = torch.nn.Linear.__hash__

    one, other = Alike(1, 1), Alike(1, 1)
    queue = [one, other]
    with_queues(monkeypatch, [queue])
    prefetch_queue.leave_out([other])
    assert queue[0] is one
    assert queue[1] is None


def test_nothing_happens_without_a_queue(monkeypatch):
    (block,) = blocks(1)
    for stand_in in (None, SimpleNamespace(), SimpleNamespace(PREFETCH_QUEUES=[])):
        monkeypatch.setattr(prefetch_queue, "model_prefetch", stand_in)
        prefetch_queue.leave_out([block])
