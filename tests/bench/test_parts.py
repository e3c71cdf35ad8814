"""The parts' tables: every row has its columns, and one figure of each is worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from bench import costs, published, scenarios


def well_formed(part):
    """Whether every row that is shown has all columns, and every number is finite."""
    shown = part.rows if part.shown is None else [part.rows[index] for index in part.shown]
    for row in shown:
        assert part.columns.keys() <= row.keys()
    for row in part.rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    return len(shown) > 0 and len(part.text().splitlines()) == 2 + len(shown) + len(part.notes)


def test_published_rows():
    part = scenarios.published_rows()
    assert well_formed(part)
    plain = part.rows[0]
    assert (plain["hits"], plain["wasted GB"], plain["limit"]) == (0, 0.0, "compute")
    assert plain["streamed GB"] == pytest.approx(50 * 61.7 / 2, rel=0.01)
    for row in part.rows:
        assert row["off"] == pytest.approx(row["simulated s"] / row["published s"] - 1)
        assert abs(row["off"]) <= 0.1
        assert row["bound s"] <= row["simulated s"]


def test_policies():
    part = scenarios.side_by_side()
    assert well_formed(part)
    assert len(part.rows) == 3 * 3 * 4
    for row in part.rows:
        assert row["to ours"] >= 1 - 1e-9
        if row["policy"] == "plan (this pack)":
            assert (row["to ours"], row["wasted GB"]) == (1.0, 0.0)


def test_matrix(monkeypatch):
    every = list(scenarios.machines())
    assert {card for _, _, card, _, _, _ in every} == set(published.CARD_MEMORY_GB)
    assert all(budget <= published.CARD_MEMORY_GB[card] for _, _, card, _, budget, _ in every)
    some = [one for one in every if one[1:5] == ("fp8", "RTX 4090", "PCIe 3.0 x8", 8)]
    monkeypatch.setattr(scenarios, "machines", lambda: iter(some))
    part = scenarios.matrix()
    assert well_formed(part)
    assert len(part.rows) == len(some) >= 3
    for row in part.rows:
        assert row["20 calls s"] == pytest.approx(20 * row["step s"])
        assert row["cached s"] < row["20 calls s"]
        # F1 B0, warm-up 4, two in a row, the last step computed
        assert row["hits"] == 10
        assert row["bound s"] <= row["step s"] * (1 + 1e-9)
    wan = next(row for row in part.rows if "832x480, 17" in row["machine"])
    assert wan["GB a step"] == pytest.approx((40 - wan["stay"]) * 0.3513, rel=0.001)


def test_costs(monkeypatch):
    monkeypatch.setattr(costs, "REPEATS", 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    part = costs.costs()
    assert well_formed(part)
    assert len(part.rows) == 7
