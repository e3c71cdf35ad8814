"""Every row of the calibrators' table runs, and everything that lists them by name lists those of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from pack.dbcache.calibrators import CALIBRATORS, CalibratorChoice, calibrator_choice
from pack.dbcache.calibrators.base import Forecaster
from pack.dbcache.rules import DBCacheSettings
from rigs.gate_rig import GateRig, custom
from rigs.toy_stacks import SHAPES

REPOSITORY = Path(__file__).resolve().parent.parent.parent
WEB_PAGE = REPOSITORY / "web" / "docs" / "DiTDBCache.md"
FORECASTING = [name for name in CALIBRATORS if name != "none"]
OTHER_PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]

each_shape = pytest.mark.parametrize("shape", SHAPES)


def hits_with(calibrator: str) -> list[torch.Tensor]:
    """Return the outputs of the cached calls of one run."""
    rig = GateRig("out_of_place", custom(warmup_steps=5, max_continuous=2, calibrator=calibrator))
    calls = [rig.call(step) for step in range(12)]
    return [output for output, outcome in calls if outcome.hit]


class Doubling(Forecaster):
    """Forecasts twice the last residual, and counts how often it is asked."""

    asked = 0

    def __init__(self) -> None:
        self.last: dict[str, torch.Tensor] = {}

    def reset_cache(self) -> None:
        self.last.clear()

    def update(self, residual: torch.Tensor, name: str) -> None:
        self.last[name] = residual

    def approximate(self, name: str) -> torch.Tensor:
        type(self).asked += 1
        return 2 * self.last[name]


@pytest.mark.parametrize("name", FORECASTING)
def test_every_calibrator_changes_what_is_forecast(name):
    repeated, forecast = hits_with("none"), hits_with(name)
    assert len(forecast) == len(repeated) > 0
    assert not any(torch.equal(a, b) for a, b in zip(repeated, forecast, strict=True))


@pytest.mark.parametrize("calibrator", FORECASTING)
@each_shape
def test_calibrators_forecast_better_than_reuse(shape, calibrator):
    """On a slow, smooth trajectory a forecast of the residual is nearer to the truth than the old residual."""

    def error(name):
        rig = GateRig(shape, custom(warmup_steps=4, max_continuous=2, calibrator=name))
        total = 0.0
        for step in range(12):
            output, outcome = rig.call(step)
            assert output.isfinite().all()
            total += float((output - rig.plain(step)).abs().mean()) if outcome.hit else 0.0
        return total

    assert error(calibrator) < 0.7 * error("none")


@pytest.mark.parametrize("calibrator", FORECASTING)
def test_calibrators_stay_finite_when_a_step_is_evaluated_twice(calibrator):
    rig = GateRig("in_place", custom(warmup_steps=2, max_continuous=1, calibrator=calibrator, calibrator_order=2))
    for step in range(10):
        for at in (step, step + 0.5):
            output, _ = rig.call(step, at=at)
            assert output.isfinite().all()


def test_one_row_is_all_that_a_new_forecaster_needs(monkeypatch):
    """A name that settings take must never run silently as ``none``."""
    monkeypatch.setitem(CALIBRATORS, "doubling", CalibratorChoice("twice as much", "nothing", forecaster=_doubling))
    monkeypatch.setattr(Doubling, "asked", 0)
    repeated, forecast = hits_with("none"), hits_with("doubling")
    assert Doubling.asked == len(forecast) > 0
    assert not any(torch.equal(a, b) for a, b in zip(repeated, forecast, strict=True))


def _doubling(order: int) -> Forecaster:
    return Doubling()


def test_one_row_is_all_that_a_calibrator_of_cache_dits_needs(monkeypatch):
    choice = CalibratorChoice("as foca", "as much", config=CALIBRATORS["foca"].config)
    monkeypatch.setitem(CALIBRATORS, "another", choice)
    assert all(torch.equal(a, b) for a, b in zip(hits_with("foca"), hits_with("another"), strict=True))


def test_a_name_that_is_not_in_the_table_is_refused(monkeypatch):
    message = f"calibrator is 'magic', but must be one of {', '.join(CALIBRATORS)}"
    for refuse in (calibrator_choice, lambda name: DBCacheSettings(calibrator=name)):
        with pytest.raises(ValueError, match=re.escape(message)):
            refuse("magic")
    monkeypatch.setitem(CALIBRATORS, "magic", CALIBRATORS["foca"])
    rig = GateRig("out_of_place", custom(calibrator="magic"))
    monkeypatch.delitem(CALIBRATORS, "magic")
    with pytest.raises(ValueError, match=re.escape(message)):
        GateRig("out_of_place", rig.settings)


def test_a_calibrator_is_either_cache_dits_or_the_packs():
    with pytest.raises(ValueError, match="config and forecaster"):
        CalibratorChoice("both", "nothing", CALIBRATORS["foca"].config, _doubling)


def tables_of(page: Path) -> list[list[list[str]]]:
    """Return the rows of every table of calibrators on a page, as cells."""
    tables = re.findall(r"^\| calibrator \|.*\n\| ---.*\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()] for rows in tables]


def test_the_pages_list_the_calibrators_of_the_table():
    default = DBCacheSettings().calibrator
    expected = [
        [f"`{name}`" + " (default)" * (name == default), choice.blurb, choice.keeps]
        for name, choice in CALIBRATORS.items()
    ]
    assert tables_of(WEB_PAGE) == [expected]
    others = [table for page in OTHER_PAGES for table in tables_of(page)]
    assert others
    assert all(table == expected for table in others)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tooltips_name_them_all(language):
    texts = json.loads((REPOSITORY / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    tooltip = texts["DiTDBCache"]["inputs"]["calibrator"]["tooltip"]
    places = [re.search(rf"\b{name}(:|\uff1a)", tooltip) for name in CALIBRATORS]
    assert all(places)
    assert [place.start() for place in places] == sorted(place.start() for place in places)
