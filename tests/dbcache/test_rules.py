"""Settings: presets, their scaling, and errors that name field, value and way out."""

from __future__ import annotations

import pytest
from pack.dbcache.rules import DBCacheSettings, settings_for_run


@pytest.mark.parametrize(
    ("preset", "values"),
    [("quality", (1, 2, 8, 0.08, 2)), ("balanced", (1, 0, 4, 0.12, 2)), ("fast", (1, 0, 2, 0.24, 16))],
)
def test_presets(preset, values):
    settings = DBCacheSettings(preset=preset, fn=5, bn=5, threshold=0.9, max_cached=3).with_preset()
    assert (settings.fn, settings.bn, settings.warmup_steps, settings.threshold, settings.max_continuous) == values
    assert settings.max_cached == -1


def test_custom_keeps_the_nodes_own_values():
    settings = DBCacheSettings(preset="custom", fn=5, bn=4, max_cached=3)
    assert settings.with_preset() == settings


@pytest.mark.parametrize(("steps", "warmup"), [(50, 8), (16, 8), (15, 5), (9, 3), (6, 2)])
def test_a_presets_warm_up_shrinks_on_short_schedules(steps, warmup):
    run = settings_for_run(DBCacheSettings(preset="quality"), steps)
    assert run.settings.warmup_steps == warmup
    assert not run.off
    assert bool(run.notes) == (steps < 16)


def test_a_preset_is_off_below_six_steps_and_says_so():
    run = settings_for_run(DBCacheSettings(preset="fast"), 5)
    assert "too few" in run.off
    assert "5 steps" in run.notes[0]


def test_custom_is_taken_at_its_word():
    run = settings_for_run(DBCacheSettings(preset="custom", warmup_steps=8), 4)
    assert (run.settings.warmup_steps, run.off, run.notes) == (8, "", ())


def test_step_masks_are_left_out_below_nine_steps():
    settings = DBCacheSettings(preset="custom", scm="fast")
    assert settings_for_run(settings, 9).use_scm
    run = settings_for_run(settings, 8)
    assert not run.use_scm
    assert "scm 'fast'" in run.notes[0]


def test_threshold_zero_switches_off_unless_a_static_mask_decides():
    settings = DBCacheSettings(preset="custom", threshold=0.0)
    assert settings_for_run(settings, 20).off == "threshold is 0"
    static = DBCacheSettings(preset="custom", threshold=0.0, scm="fast", scm_policy="static")
    assert settings_for_run(static, 20).off == ""


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("preset", {"preset": "best"}),
        ("Fn", {"fn": 0}),
        ("Bn", {"bn": -1}),
        ("warmup_steps", {"warmup_steps": -1}),
        ("residual_diff_threshold", {"threshold": 1.5}),
        ("residual_diff_threshold", {"threshold": float("nan")}),
        ("max_continuous_cached_steps", {"max_continuous": -2}),
        ("max_cached_steps", {"max_cached": -2}),
        ("calibrator", {"calibrator": "magic"}),
        ("calibrator_order", {"calibrator_order": 0}),
        ("scm", {"scm": "turbo"}),
        ("scm_policy", {"scm_policy": "maybe"}),
        ("start_percent", {"start_percent": -0.1}),
        ("end_percent", {"end_percent": 1.1}),
        ("start_percent", {"start_percent": 0.6, "end_percent": 0.4}),
        ("cache_device", {"cache_device": "disk"}),
    ],
)
def test_bad_values_are_named(field, values):
    with pytest.raises(ValueError, match=field) as caught:
        DBCacheSettings(**values)
    assert str(next(iter(values.values()))) in str(caught.value)


@pytest.mark.parametrize(("fn", "bn", "blocks", "fits"), [(1, 2, 4, True), (1, 2, 3, False), (4, 4, 8, False)])
def test_something_must_be_left_to_skip(fn, bn, blocks, fits):
    settings = DBCacheSettings(preset="custom", fn=fn, bn=bn)
    if fits:
        settings.check_stack(blocks)
        return
    with pytest.raises(ValueError, match=f"Fn is {fn} and Bn is {bn}.*{blocks} blocks.*Lower Fn or Bn"):
        settings.check_stack(blocks)


def test_long_skips_need_the_early_blocks():
    """Hunyuan-DiT: late blocks take the outputs of early ones."""
    quality = DBCacheSettings(preset="quality").with_long_skips("Hunyuan-DiT")
    assert (quality.with_preset().fn, quality.with_preset().bn) == (1, 1)
    assert DBCacheSettings(preset="quality").with_preset().bn == 2
    assert DBCacheSettings(preset="fast").with_long_skips("Hunyuan-DiT").with_preset().bn == 0
    custom = DBCacheSettings(preset="custom", fn=2, bn=2)
    assert custom.with_long_skips("Hunyuan-DiT") == custom
    with pytest.raises(ValueError, match=r"Bn is 3 and Fn is 2.*Set Fn to at least Bn"):
        DBCacheSettings(preset="custom", fn=2, bn=3).with_long_skips("Hunyuan-DiT")
