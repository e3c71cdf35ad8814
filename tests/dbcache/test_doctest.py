"""The example in the room's docstring runs as it stands there."""

from __future__ import annotations

import doctest

import pack.dbcache


def test_dbcache_without_comfyui():
    results = doctest.testmod(pack.dbcache, globs={})
    assert results.attempted > 8
    assert results.failed == 0
