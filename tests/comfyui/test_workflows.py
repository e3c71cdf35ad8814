"""The example workflows against a real server: they fit its nodes, the toy runs, and interrupting it is harmless."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sys
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from PIL import Image
from rigs.comfyui_server import PACK, ComfyUIServer, anew
from rigs.example_workflows import (
    FILES,
    REPOSITORY,
    TOY,
    WORKFLOWS,
    as_prompt,
    declared_inputs,
    load,
    model_files,
    note_text,
    server_nodes,
    widget_values,
)

NAMES = [path.stem for path in FILES]


@pytest.fixture(scope="module")
def definitions(server):
    return server.get("object_info")


def missing_types(workflow, definitions) -> set[str]:
    return {node["type"] for node in server_nodes(workflow)} - set(definitions)


def usable(name: str, definitions) -> dict:
    """Return a workflow whose nodes this ComfyUI has; skip where it lacks some, which must not be the pack's."""
    workflow = load(WORKFLOWS / f"{name}.json")
    missing = missing_types(workflow, definitions)
    assert not any(kind.startswith("DiT") for kind in missing)
    if missing:
        pytest.skip(f"this ComfyUI has no {', '.join(sorted(missing))}")
    return workflow


def test_the_workflows_that_any_supported_comfyui_can_run_are_not_skipped(definitions):
    everywhere = {"DiT-Toy-compare", "Flux.1-dev-12GB", "Qwen-Image-16GB", "Wan-2.2-14B-text-to-video-24GB"}
    skipped = {name for name in NAMES if missing_types(load(WORKFLOWS / f"{name}.json"), definitions)}
    assert everywhere <= set(NAMES) - skipped


@pytest.mark.parametrize("name", NAMES)
def test_links_fit(name, definitions):
    workflow = usable(name, definitions)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    assert len({link[0] for link in workflow["links"]}) == len(workflow["links"])
    for number, source, output, target, slot, _ in workflow["links"]:
        given = definitions[nodes[source]["type"]]["output"][output]
        entry = nodes[target]["inputs"][slot]
        wanted = declared_inputs(definitions[nodes[target]["type"]])[entry["name"]][0]
        assert "*" in (given, wanted) or given in wanted.split(","), (nodes[target]["type"], entry["name"])
        assert entry["link"] == number
        assert number in nodes[source]["outputs"][output]["links"]


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_outputs_are_those_the_server_has(name, definitions):
    for node in server_nodes(usable(name, definitions)):
        definition = definitions[node["type"]]
        declared = declared_inputs(definition)
        assert {entry["name"] for entry in node["inputs"]} <= set(declared)
        outputs = [entry["type"] for entry in node["outputs"]]
        assert outputs[: len(definition["output"])] == definition["output"]
        connected = {entry["name"] for entry in node["inputs"] if entry["link"] is not None or "widget" in entry}
        assert set(definition["input"].get("required", {})) <= connected, f"{node['type']} lacks an input"


@pytest.mark.parametrize("name", NAMES)
def test_widget_values_are_in_range(name, definitions):
    for node in server_nodes(usable(name, definitions)):
        declared = declared_inputs(definitions[node["type"]])
        for field, value in widget_values(node, definitions[node["type"]]).items():
            kind, options = declared[field]
            assert in_range(value, kind, options), (node["type"], field, value)


def in_range(value, kind, options) -> bool:
    if isinstance(kind, list):
        return value in kind
    if kind == "COMBO":
        return value in options["options"]
    if kind == "COMFY_DYNAMICCOMBO_V3":
        return value in [option["key"] for option in options["options"]]
    if kind == "STRING":
        return isinstance(value, str)
    if kind == "BOOLEAN":
        return isinstance(value, bool)
    if kind == "INT":
        fits_step = (value - options.get("min", 0)) % options.get("step", 1) == 0
        return isinstance(value, int) and options["min"] <= value <= options["max"] and fits_step
    assert kind in ("FLOAT", "FLOAT,INT"), kind
    return isinstance(value, (int, float)) and options["min"] <= value <= options["max"]


@pytest.mark.parametrize("name", NAMES)
def test_the_note_names_every_file_and_where_it_comes_from(name):
    workflow = load(WORKFLOWS / f"{name}.json")
    note = note_text(workflow)
    for file in model_files(workflow):
        assert f"`models/{file['directory']}`: [{file['name']}]({file['url']})" in note
    assert "**Memory**" in note or name == "DiT-Toy-compare"
    assert "**Expect**" in note or "**16 GB**" in note


@pytest.mark.parametrize("name", NAMES)
def test_the_note_is_the_one_that_is_written_for_it(name):
    written = REPOSITORY / "dev" / "example_workflows" / "notes" / f"{name}.md"
    assert note_text(load(WORKFLOWS / f"{name}.json")).startswith(written.read_text(encoding="utf-8").rstrip())


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_lies_beside_the_workflow(name):
    with Image.open(WORKFLOWS / f"{name}.jpg") as picture:
        assert picture.format == "JPEG"
        assert picture.width >= 400


def test_no_two_nodes_lie_on_each_other():
    title = 30
    for path in FILES:
        boxes = [(*node["pos"], *node["size"]) for node in load(path)["nodes"]]
        for number, (x, y, w, h) in enumerate(boxes):
            for other_x, other_y, other_w, other_h in boxes[:number]:
                beside = x >= other_x + other_w or other_x >= x + w
                below = y - title >= other_y + other_h or other_y - title >= y + h
                assert beside or below, path.stem


@pytest.mark.parametrize("path", sorted((WORKFLOWS / "api").glob("*.json")), ids=lambda path: path.stem)
def test_the_api_twin_says_the_same(path, definitions):
    workflow = usable(path.stem, definitions)
    twin = {number: {"class_type": node["class_type"], "inputs": node["inputs"]} for number, node in load(path).items()}
    assert twin == as_prompt(workflow, definitions)


@pytest.mark.parametrize("name", [name for name in NAMES if name != TOY.stem])
def test_the_server_accepts_it_and_gets_as_far_as_loading_the_empty_model_files(name, server, definitions):
    workflow = usable(name, definitions)
    run = server.run(as_prompt(workflow, definitions))
    assert run.ended == "execution_error"
    failed = next(node for node in workflow["nodes"] if str(node["id"]) == run.events[-1][1]["node_id"])
    assert failed["properties"].get("models"), f"{failed['type']}: {run.events[-1][1]['exception_message']}"


def test_the_toy_and_the_h3_workflow_have_api_twins():
    assert {path.stem for path in (WORKFLOWS / "api").glob("*.json")} == {
        "DiT-Toy-compare",
        "MiniMax-H3-text-to-video-24GB",
    }


def test_the_server_lists_workflows_pictures_help_and_translations(server):
    assert sorted(server.get("workflow_templates")[PACK]) == NAMES
    for name in NAMES:
        assert json.loads(server.fetch(f"api/workflow_templates/{PACK}/{quote(name)}.json"))["version"] == 0.4
        assert server.fetch(f"api/workflow_templates/{PACK}/{quote(name)}.jpg")[:2] == b"\xff\xd8"
    translations = server.get("i18n")
    for node_id in ("DiTLayerwiseOffload", "DiTDBCache", "DiTRunReport", "DiTCompare", "DiTToyModel", "DiTToyDecode"):
        assert server.fetch(f"extensions/{PACK}/docs/{node_id}.md").startswith(b"# ")
        assert node_id in translations["en"]["nodeDefs"]
        assert node_id in translations["zh"]["nodeDefs"]


def test_the_pack_says_nothing_at_start_but_its_import_time(server):
    started = server.log().partition("To see the GUI")[0]
    for path in (sys.prefix, os.environ["COMFYUI_PATH"]):  # the suite's own environment may lie in a folder so named
        started = started.replace(path, "")
    lines = [line for line in started.splitlines() if PACK in line or "dit_layerwise_offload" in line]
    assert len(lines) == 1, lines
    assert re.search(r"[\d.]+ seconds.*" + PACK, lines[0])


def toy_prompt(server, definitions, **sampler) -> dict:
    """Return the toy workflow as a prompt, with both samplers' inputs changed by keyword."""
    prompt = copy.deepcopy(as_prompt(load(TOY), definitions))
    for node in prompt.values():
        if node["class_type"] == "KSampler":
            node["inputs"].update(sampler)
    return prompt


def of_type(prompt: dict, kind: str) -> str:
    return next(number for number, node in prompt.items() if node["class_type"] == kind)


def of_source(prompt: dict, sampler: str) -> str:
    """Return the type of the node that a sampler's model comes from."""
    return prompt[prompt[sampler]["inputs"]["model"][0]]["class_type"]


def pictures(server: ComfyUIServer, run, prompt) -> list[np.ndarray]:
    """Return the pixels of everything the preview nodes show."""
    shown = []
    for number, node in prompt.items():
        if node["class_type"] == "PreviewImage":
            for image in run.shown(number)["images"]:
                shown.append(np.asarray(Image.open(io.BytesIO(server.fetch(f"view?{urlencode(image)}")))))
    return shown


def test_the_toy_workflow_runs_and_its_report_arrives(server, definitions):
    prompt = toy_prompt(server, definitions)
    run = server.run(prompt)
    assert run.ended == "execution_success", run.events[-1]
    assert {data["node"] for kind, data in run.events if kind == "executed"} == {
        number for number, node in prompt.items() if definitions[node["class_type"]]["output_node"]
    }
    report = run.shown(of_type(prompt, "DiTRunReport"))
    (summary,) = report["text"]
    assert "engine layerwise" in summary
    assert re.search(r"20 steps, 20 model calls, [1-9]\d* of them cached", summary)
    (chart,) = report["images"]
    assert Image.open(io.BytesIO(server.fetch(f"view?{urlencode(chart)}"))).size == (1024, 768)
    assert "PSNR" in run.shown(of_type(prompt, "DiTCompare"))["text"][0]
    assert len(pictures(server, run, prompt)) == 20
    assert any("step 20 of 20" in text for text in run.progress_texts)
    assert any(": hit (" in text for text in run.progress_texts)


def test_the_api_twin_is_accepted_as_it_lies_there(server):
    run = server.run(load(WORKFLOWS / "api" / TOY.name))
    assert run.ended == "execution_success"


def test_interrupting_leaves_a_healthy_server(server, definitions):
    prompt = toy_prompt(server, definitions)
    before = server.run(anew(prompt))

    samplers = [number for number, node in prompt.items() if node["class_type"] == "KSampler"]
    plain, cached_sampler = sorted(samplers, key=lambda number: of_source(prompt, number) == "DiTDBCache")
    long = toy_prompt(server, definitions, steps=5000)
    del long[of_type(long, "DiTCompare")]
    long[plain]["inputs"]["steps"] = 1
    interrupted = []

    def interrupt(kind, data):
        if kind == "progress" and data["node"] == cached_sampler and data["value"] >= 5 and not interrupted:
            interrupted.append(data["value"])
            server.post("interrupt", {})

    run = server.run(long, interrupt)
    assert interrupted
    assert run.ended == "execution_interrupted"
    assert run.events[-1][1]["node_id"] == cached_sampler

    after = server.run(anew(prompt))
    assert after.ended == "execution_success"
    assert cached_sampler in {data["node"] for kind, data in after.events if kind == "progress"}, "it did not run again"
    for one, other in zip(pictures(server, before, prompt), pictures(server, after, prompt), strict=True):
        np.testing.assert_array_equal(one, other)
    reports = [run.shown(of_type(prompt, "DiTRunReport"))["text"] for run in (before, after)]
    assert reports[0] == reports[1]
