"""The comparison of residuals: cache-dit's figure and decision, in pieces, with one number read back a call."""

from __future__ import annotations

import itertools

import cache_dit.caching
import pytest
import torch
from pack.dbcache import compare
from pack.dbcache.compare import differences
from pack.dbcache.decision import compares, judge
from pack.dbcache.rules import CacheRules, rules_for_run
from rigs.allocation_log import AllocationLog
from rigs.gate_rig import GateRig, custom
from rigs.read_backs import ReadBacks

SHAPES = [(2, 50, 16), (300, 16), (7,), (3, 1, 5, 64)]
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative error of the figure: in half precision its means and their ratio are rounded to that, as in cache-dit."""
MARGIN = {torch.float32: 1e-5, torch.float16: 1e-6, torch.bfloat16: 1e-6}
"""How near the threshold the decision is still cache-dit's, relative: sums may be taken in another order."""

each_type = pytest.mark.parametrize("dtype", ALLOWED, ids=str)


def pair(shape, dtype, moved=0.1, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kept, change = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return kept.to(dtype), (kept + moved * change).to(dtype)


def measured(kept: torch.Tensor, fresh: torch.Tensor) -> float:
    return differences({"x": fresh}, lambda state: kept)["x"]


def reference(kept: torch.Tensor, fresh: torch.Tensor) -> float:
    kept, fresh = kept.double(), fresh.double()
    return float((kept - fresh).abs().mean() / kept.abs().mean())


def asked_of_cache_dit(kept: torch.Tensor, fresh: torch.Tensor, threshold: float) -> bool:
    manager = cache_dit.caching.CachedContextManager(name="asked")
    config = cache_dit.caching.DBCacheConfig(residual_diff_threshold=threshold, max_warmup_steps=0)
    manager.set_context(manager.new_context(name="one", cache_config=config))
    manager.mark_step_begin()
    manager.set_Fn_buffer(kept, prefix="x")
    return manager.can_cache(fresh, prefix="x")


@each_type
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("at_once", [1, 5, 16, 100, 10**6])
def test_the_figure_is_that_of_a_float64_reference(shape, dtype, at_once, monkeypatch):
    monkeypatch.setattr(compare, "ELEMENTS_AT_ONCE", at_once)
    kept, fresh = pair(shape, dtype)
    assert measured(kept, fresh) == pytest.approx(reference(kept, fresh), rel=ALLOWED[dtype])


def test_strides_do_not_matter(monkeypatch):
    monkeypatch.setattr(compare, "ELEMENTS_AT_ONCE", 20)
    kept, fresh = pair((2, 30, 8), torch.float32)
    permuted = kept.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert measured(permuted, fresh) == pytest.approx(reference(kept, fresh), rel=1e-6)


@pytest.mark.parametrize("dtype", MARGIN, ids=str)
@pytest.mark.parametrize("moved", [0.01, 0.1, 0.6])
@pytest.mark.parametrize("seed", range(10))
def test_decisions_are_cache_dits_up_to_rounding(dtype, moved, seed):
    kept, fresh = pair((2, 500, 16), dtype, moved, seed)
    figure = measured(kept, fresh)
    for threshold in (0.5 * figure, figure * (1 - MARGIN[dtype]), figure * (1 + MARGIN[dtype]), 1.5 * figure):
        assert threshold < 1
        assert (figure < threshold) == asked_of_cache_dit(kept, fresh, threshold)


@pytest.mark.parametrize("dtype", MARGIN, ids=str)
@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5, 1.0])
def test_several_states_hit_where_cache_dit_says_so_of_each(dtype, threshold):
    rules = rules_for_run(CacheRules(preset="custom", threshold=threshold), 20)
    verdicts = set()
    for moves in itertools.product((0.01, 0.1, 0.9), repeat=3):
        pairs = {str(state): pair((2, 50, 16), dtype, moved, state) for state, moved in enumerate(moves)}
        kept = {state: both[0] for state, both in pairs.items()}
        figures = differences({state: both[1] for state, both in pairs.items()}, kept.get)
        verdict = judge(rules, figures if compares(rules) else {}, complete=True)
        assert verdict.hit == all(asked_of_cache_dit(*both, threshold) for both in pairs.values())
        verdicts.add(verdict.hit)
    assert verdicts == ({True} if threshold == 1.0 else {True, False})


@pytest.mark.parametrize(
    ("kept", "fresh", "figure"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3), float("inf")),
        (torch.zeros(2, 3), torch.zeros(2, 3), float("nan")),
        (torch.ones(2, 3), torch.full((2, 3), float("nan")), float("nan")),
        (torch.ones(2, 3), torch.ones(3, 2), float("nan")),
        (torch.ones(2, 3), torch.ones(2, 3), 0.0),
    ],
    ids=["from nothing", "nothing", "NaN", "another shape", "the same"],
)
def test_special_cases_are_decided_as_by_cache_dit(kept, fresh, figure):
    assert measured(kept, fresh) == pytest.approx(figure, nan_ok=True)
    assert (measured(kept, fresh) < 0.999) == asked_of_cache_dit(kept, fresh, 0.999)


def test_states_without_a_kept_residual_are_left_out():
    kept, fresh = pair((4, 4), torch.float32)
    found = differences({"a": fresh, "b": fresh, "c": kept}, {"a": kept, "c": kept}.get)
    assert list(found) == ["a", "c"]
    assert found["c"] == 0.0 < found["a"]


def test_several_types_are_measured_together():
    pairs = {str(dtype): pair((4, 8), dtype) for dtype in ALLOWED}
    found = differences({name: fresh for name, (_, fresh) in pairs.items()}, lambda name: pairs[name][0])
    assert found == {name: pytest.approx(reference(*both), rel=2e-2) for name, both in pairs.items()}


def test_inputs_are_not_written_to():
    kept, fresh = pair((20, 16), torch.float32)
    before = kept.clone(), fresh.clone()
    measured(kept, fresh)
    assert torch.equal(kept, before[0])
    assert torch.equal(fresh, before[1])


@pytest.mark.parametrize("states", [1, 2, 5])
def test_one_number_is_read_back_however_many_states_there_are(states):
    kept, fresh = pair((20, 16), torch.float32)
    with ReadBacks() as reads:
        found = differences({str(state): fresh for state in range(states)}, lambda state: kept)
    assert len(found) == states
    assert reads.count == 1


@pytest.mark.parametrize("shape", ["out_of_place", "double_single", "two_streams", "in_place"])
def test_a_judged_call_reads_back_once(shape):
    rig = GateRig(shape, custom(threshold=0.9, warmup_steps=2, max_continuous=2))
    reads = ReadBacks()
    for step in range(9):
        before = reads.count
        with reads:
            _, outcome = rig.call(step)
        assert reads.count - before == bool(outcome.diffs)
    assert reads.count > 3


@pytest.mark.parametrize("shape", [(2, 40, 64), (5000,), (1, 1, 4096)], ids=str)
def test_nothing_of_a_hidden_states_size_is_made(shape, monkeypatch):
    monkeypatch.setattr(compare, "ELEMENTS_AT_ONCE", 256)
    kept, fresh = pair(shape, torch.bfloat16)
    log = AllocationLog(least=2)
    with log:
        log.on = True
        measured(kept, fresh)
    assert 0 < log.largest <= 256 * kept.element_size()


def test_pieces_are_small_by_themselves():
    kept, fresh = torch.ones(3, 2**22, dtype=torch.float16), torch.zeros(3, 2**22, dtype=torch.float16)
    log = AllocationLog(least=2)
    with log:
        log.on = True
        assert measured(kept, fresh) == 1.0
    assert log.most <= 2 * compare.ELEMENTS_AT_ONCE
