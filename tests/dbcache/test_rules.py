"""Settings: presets, their scaling, and errors that name field, value and way out."""

from __future__ import annotations

import pytest
from pack.dbcache.rules import DBCacheSettings, rules_for_run

BLOCKS = 40


def run_of(steps, **values):
    return rules_for_run(DBCacheSettings(**values).rules(BLOCKS), steps)


@pytest.mark.parametrize(
    ("preset", "values"),
    [("quality", (1, 2, 8, 0.08, 2)), ("balanced", (1, 0, 4, 0.12, 2)), ("fast", (1, 0, 2, 0.24, 16))],
)
def test_presets(preset, values):
    rules = DBCacheSettings(preset=preset, fn=5, bn=5, threshold=0.9, max_cached=3).rules(BLOCKS)
    assert (rules.fn, rules.bn, rules.warmup_steps, rules.threshold, rules.max_continuous) == values
    assert rules.max_cached == -1


def test_custom_keeps_the_nodes_own_values():
    settings = DBCacheSettings(preset="custom", fn=5, bn=4, max_cached=3)
    assert vars(settings.rules(BLOCKS)) == vars(settings)


@pytest.mark.parametrize(("steps", "warmup"), [(50, 8), (16, 8), (15, 5), (9, 3), (6, 2)])
def test_a_presets_warm_up_shrinks_on_short_schedules(steps, warmup):
    run = run_of(steps, preset="quality")
    assert run.warmup_steps == warmup
    assert not run.off
    assert bool(run.notes) == (steps < 16)


def test_a_preset_is_off_below_six_steps_and_says_so():
    run = run_of(5, preset="fast")
    assert "too few" in run.off
    assert "5 steps" in run.notes[0]


def test_custom_is_taken_at_its_word():
    run = run_of(4, preset="custom", warmup_steps=8)
    assert (run.warmup_steps, run.off, run.notes) == (8, "", ())


def test_step_masks_are_left_out_below_nine_steps():
    assert run_of(9, preset="custom", scm="fast").scm == "fast"
    run = run_of(8, preset="custom", scm="fast")
    assert run.scm == "none"
    assert "scm 'fast'" in run.notes[0]


def test_threshold_zero_switches_off_unless_a_static_mask_decides():
    values = {"preset": "custom", "threshold": 0.0}
    assert run_of(20, **values).off == "threshold is 0"
    assert run_of(20, **values, scm="fast", scm_policy="static").off == ""


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
        assert (settings.rules(blocks).fn, settings.rules(blocks).bn) == (fn, bn)
        return
    with pytest.raises(ValueError, match=f"Fn is {fn} and Bn is {bn}.*{blocks} blocks.*Lower Fn or Bn"):
        settings.rules(blocks)


def test_long_skips_need_the_early_blocks():
    """Hunyuan-DiT: late blocks take the outputs of early ones."""
    quality = DBCacheSettings(preset="quality").rules(BLOCKS, "Hunyuan-DiT")
    assert (quality.fn, quality.bn) == (1, 1)
    assert DBCacheSettings(preset="quality").rules(BLOCKS).bn == 2
    assert DBCacheSettings(preset="fast").rules(BLOCKS, "Hunyuan-DiT").bn == 0
    custom = DBCacheSettings(preset="custom", fn=2, bn=2)
    assert custom.rules(BLOCKS, "Hunyuan-DiT") == custom.rules(BLOCKS)
    with pytest.raises(ValueError, match=r"Bn is 3 and Fn is 2, but in Hunyuan-DiT.*Set Fn to at least Bn"):
        DBCacheSettings(preset="custom", fn=2, bn=3).rules(BLOCKS, "Hunyuan-DiT")


def test_a_presets_bn_is_limited_before_the_stack_is_checked():
    assert DBCacheSettings(preset="quality").rules(3, "Hunyuan-DiT").bn == 1
    with pytest.raises(ValueError, match=r"Bn is 2 \(preset 'quality'\)"):
        DBCacheSettings(preset="quality").rules(3)


def test_rules_are_equal_by_value():
    """A placement is kept as long as the rules it was chosen for are the same."""
    one, same, other = (DBCacheSettings(preset=name).rules(BLOCKS) for name in ("quality", "quality", "fast"))
    assert one == same
    assert one is not same
    assert one != other
