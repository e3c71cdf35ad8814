"""What the nodes leave on a patcher: found on its clones, never changed on the patcher it came from."""

from __future__ import annotations

import dataclasses

import pytest
from pack_on_mock.comfy_adapter.attachments import Attachments, attach, attached
from rigs.mock_runs import DBCacheSettings, apply, cached, patcher_of, streamed


def test_a_model_of_nobodys_has_the_defaults_and_keeps_none():
    plain = patcher_of("in_place")
    assert attached(plain) == Attachments()
    assert plain.attachments == {}


def test_a_node_adds_to_a_new_object_with_a_report_of_its_own():
    plain = patcher_of("in_place")
    one = streamed(plain)
    other = apply.apply_dbcache(one, DBCacheSettings(preset="fast"), "7")
    assert attached(plain) == Attachments()
    assert (attached(one).engine, attached(one).cache) == ("layerwise", None)
    assert (attached(other).engine, attached(other).node_id) == ("layerwise", "7")
    assert attached(other).cache.preset == "fast"
    assert attached(one).report is not attached(other).report


def test_both_orders_of_the_nodes_attach_the_same():
    plain = patcher_of("in_place")
    found = [attached(model) for model in (streamed(cached(plain)), cached(streamed(plain)))]
    assert dataclasses.replace(found[0], report=None) == dataclasses.replace(found[1], report=None)


def test_clones_share_what_cannot_be_changed():
    model = cached(patcher_of("in_place"))
    copy = model.clone()
    assert attached(copy) is attached(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        attached(copy).cache = None
    attach(copy, cache=None)
    assert attached(model).cache is not None
    assert attached(copy).report is attached(model).report


def test_a_copy_answers_while_it_is_still_being_cloned():
    """Other packs' callbacks see it before it has its settings."""
    plain = patcher_of("in_place")
    model = streamed(plain, resident_blocks=2)
    seen = []

    class Telling(type(plain)):
        def clone(self):
            copy = super().clone()
            seen.append((copy.model_size(), copy.loaded_size(), copy.explained_placement()))
            return copy

    class TellingStreamed(type(model).__mro__[1], type(model).__mro__[2], Telling):
        pass

    model.__class__ = TellingStreamed
    copy = model.clone()
    assert len(seen) == 1
    assert copy.layerwise_settings == model.layerwise_settings
    assert copy.model_size() < seen[0][0]
