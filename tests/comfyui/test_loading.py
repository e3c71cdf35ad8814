"""Loading the pack the way ComfyUI does, and what loading must not do."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest
from pack.comfy_adapter.streaming.settings import RESIDENCY_POLICIES
from pack.dbcache.calibrators import CALIBRATORS
from rigs import tiny_sizes
from rigs.real_comfy import WAN, build, sample

from dev.packages import REPOSITORY

PROBE = "tests.comfyui.loading_probe"

OFFLOAD_INPUTS = [
    ("model", "MODEL", None),
    ("engine", ["auto", "layerwise", "comfyui"], "auto"),
    ("resident_blocks", "INT", -1),
    ("vram_budget_gb", "FLOAT", 0.0),
    ("residency_policy", list(RESIDENCY_POLICIES), "auto"),
    ("prefetch_blocks", "INT", -1),
    ("pin_memory", ["auto", "on", "off"], "auto"),
    ("lora", ["auto", "bake", "on_the_fly"], "auto"),
]
DBCACHE_INPUTS = [
    ("model", "MODEL", None),
    ("preset", ["quality", "balanced", "fast", "custom"], "quality"),
    ("Fn", "INT", 1),
    ("Bn", "INT", 2),
    ("warmup_steps", "INT", 8),
    ("residual_diff_threshold", "FLOAT", 0.08),
    ("max_continuous_cached_steps", "INT", 2),
    ("max_cached_steps", "INT", -1),
    ("calibrator", list(CALIBRATORS), "secant"),
    ("calibrator_order", "INT", 1),
    ("scm", ["none", "slow", "medium", "fast", "ultra"], "none"),
    ("scm_policy", ["dynamic", "static"], "dynamic"),
    ("start_percent", "FLOAT", 0.0),
    ("end_percent", "FLOAT", 1.0),
    ("cache_device", ["auto", "device", "cpu"], "auto"),
    ("verbose", "BOOLEAN", False),
    ("compute_last_step", "BOOLEAN", True),
]
REPORT_INPUTS = [("model", "MODEL", None), ("after", "*", None)]
COMPARE_INPUTS = [("reference", "IMAGE", None), ("candidate", "IMAGE", None), ("amplify", "FLOAT", 8.0)]
TOY_INPUTS = [("labels", "STRING", "0 1 2 3 4 5 6 7 8 9"), ("batch_size", "INT", 10)]


def probe(*arguments: str) -> dict:
    """Load the pack in a fresh interpreter and return what the probe saw."""
    result = subprocess.run(
        [sys.executable, "-m", PROBE, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("node_id", "name", "inputs", "outputs", "is_output"),
    [
        ("DiTLayerwiseOffload", "DiT Layerwise Offload", OFFLOAD_INPUTS, ["MODEL"], False),
        ("DiTDBCache", "DBCache", DBCACHE_INPUTS, ["MODEL"], False),
        ("DiTRunReport", "DiT Run Report", REPORT_INPUTS, ["*", "STRING", "IMAGE"], True),
        ("DiTCompare", "DiT Compare", COMPARE_INPUTS, ["STRING", "IMAGE"], True),
        ("DiTToyModel", "DiT Toy Model", TOY_INPUTS, ["MODEL", "CONDITIONING", "CONDITIONING", "LATENT"], False),
        ("DiTToyDecode", "DiT Toy Decode", [("samples", "LATENT", None)], ["IMAGE"], False),
    ],
)
def test_nodes_are_registered_with_their_inputs(pack, comfy_nodes, node_id, name, inputs, outputs, is_output):
    assert comfy_nodes.NODE_DISPLAY_NAME_MAPPINGS[node_id] == name
    node = comfy_nodes.NODE_CLASS_MAPPINGS[node_id]
    declared = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES().get("optional", {})}
    described = []
    for key, value in declared.items():
        kind, options = value[0], value[1] if len(value) > 1 else {}
        if kind == "COMBO":
            kind = options["options"]
        described.append((key, kind, options.get("default")))
        assert options.get("tooltip"), f"{key} has no tooltip"
    assert described == inputs
    assert list(node.RETURN_TYPES) == outputs
    assert node.OUTPUT_NODE is is_output


def test_ranges(comfy_nodes, pack):
    offload = comfy_nodes.NODE_CLASS_MAPPINGS["DiTLayerwiseOffload"].INPUT_TYPES()["required"]
    assert offload["resident_blocks"][1]["min"] == -1
    assert (offload["prefetch_blocks"][1]["min"], offload["prefetch_blocks"][1]["max"]) == (-1, 16)
    cache = comfy_nodes.NODE_CLASS_MAPPINGS["DiTDBCache"].INPUT_TYPES()["required"]
    assert (cache["Fn"][1]["min"], cache["Bn"][1]["min"]) == (1, 0)
    threshold = cache["residual_diff_threshold"][1]
    assert (threshold["min"], threshold["max"]) == (0.0, 1.0)
    assert cache["max_continuous_cached_steps"][1]["min"] == -1


def test_the_execute_methods_take_what_the_schemas_declare(pack):
    for node in pack.nodes.values():
        declared = [item.id for item in node.define_schema().inputs]
        assert list(inspect.signature(node.execute).parameters) == declared


def test_loading_imports_and_changes_nothing():
    seen = probe("load")
    assert seen["imported"] == []
    assert seen["changed_comfy_modules"] == []
    assert seen["nodes_module_is_comfyuis"]


def test_without_cache_dit_the_pack_loads_and_the_offload_works():
    seen = probe("without_cache_dit")
    assert seen["offload_identical"]
    assert seen["dbcache_error"].startswith("RuntimeError: DBCache needs the package cache-dit")
    assert "pip install" in seen["dbcache_error"]


def test_cache_dit_is_imported_when_the_node_executes_with_one_log_line_before_it():
    seen = probe("log")
    assert seen["before"] == []
    assert seen["messages"].count("DBCache: importing cache-dit, which takes several seconds the first time.") == 1


def test_an_unet_is_refused_by_name(offload, dbcache, unet):
    for node in (offload, dbcache):
        with pytest.raises(ValueError, match=r"model is a UNetModel, which has no stack.*Remove this node"):
            node(unet)


@pytest.mark.parametrize(
    ("field", "inputs"),
    [("resident_blocks", {"resident_blocks": -5}), ("vram_budget_gb", {"vram_budget_gb": -2.0})],
)
def test_bad_offload_input(offload, field, inputs):
    with pytest.raises(ValueError, match=field):
        offload(build(WAN), **inputs)


def test_bad_dbcache_input(dbcache):
    with pytest.raises(ValueError, match=r"Fn is 6 and Bn is 2.*8 blocks.*Lower Fn or Bn"):
        dbcache(build(WAN), preset="custom", Fn=6, Bn=2)


def test_report_before_a_run_is_a_message(offload, pack):
    node = pack.nodes["DiTRunReport"]
    output = node.execute(offload(build(WAN)), "passed")
    assert output.result[0] == "passed"
    assert "No sampling run" in output.result[1]
    assert "No sampling run" in output.ui["text"][0]
    assert len(output.ui["images"]) == 1


def test_report_json(offload, dbcache, pack):
    model = dbcache(
        offload(build(WAN), resident_blocks=2),
        preset="custom",
        residual_diff_threshold=1.0,
        warmup_steps=2,
        calibrator="none",
    )
    sample(model, WAN)
    output = pack.nodes["DiTRunReport"].execute(model, 7)
    run = json.loads(output.result[1])
    described = {"version", "model", "patcher", "comfyui", "engine", "engine_reason", "placement", "steps", "threshold"}
    assert set(run) == {*described, "streamed_blocks", "calls", "totals", "notes"}
    assert (run["version"], run["model"], run["engine"]) == (2, "WAN21", "layerwise")
    assert run["patcher"] == "LayerwiseOffloadModelPatcher"
    assert {key: type(value) for key, value in run["calls"][-1].items()} == {
        "step": int,
        "sigma": float,
        "branch": str,
        "outcome": str,
        "reason": str,
        "diffs": dict,
        "blocks_run": list,
        "bytes_streamed": int,
        "bytes_wasted": int,
        "bytes_wasted_by_reason": dict,
    }
    totals = run["totals"]
    # two residuals, of both conditions, each of 2 x 4 x 4 tokens in float32
    assert totals["cache_bytes"] == 2 * 2 * 32 * tiny_sizes.WAN["dim"] * 4
    assert set(totals) == {
        "calls",
        "hits",
        "blocks_run",
        "blocks_skipped",
        "skipped_share",
        "seconds_skipped",
        "bytes_streamed",
        "bytes_wasted",
        "bytes_wasted_by_reason",
        "peak_slot_bytes",
        "cache_bytes",
    }
    assert totals["calls"] == len(run["calls"])
    assert totals["hits"] == sum(call["outcome"] == "hit" for call in run["calls"])
    assert totals["blocks_run"] == sum(len(call["blocks_run"]) for call in run["calls"])
    assert totals["bytes_streamed"] == sum(call["bytes_streamed"] for call in run["calls"])
    assert totals["skipped_share"] == totals["blocks_skipped"] / (totals["blocks_run"] + totals["blocks_skipped"]) > 0
    assert totals["seconds_skipped"] is None  # on the CPU nothing overlaps, so blocks are not timed
    assert output.ui["text"][0].startswith("WAN21 (LayerwiseOffloadModelPatcher), ComfyUI ")
