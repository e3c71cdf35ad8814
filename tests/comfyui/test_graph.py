"""A whole graph through ComfyUI's own executor: validation, caching, progress, interrupt, the report on the node."""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from rigs.real_comfy import WAN, build, cond


class StubServer:
    """What the executor asks of the server."""

    client_id = "test"
    last_node_id = None
    last_prompt_id = None
    sockets_metadata = {}  # noqa: RUF012

    def __init__(self):
        self.messages = []

    def send_sync(self, event, data, sid=None):
        self.messages.append((event, data))

    def send_progress_text(self, text, node_id, sid=None):
        self.messages.append(("progress_text", (node_id, text)))


class TinyModel:
    """A loader for the test: the same MODEL object each time, as a real loader's cached output is."""

    CATEGORY = "test"
    FUNCTION = "load"
    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "LATENT")
    model = None

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {}}

    def load(self):
        return (self.model, cond(2), cond(3), {"samples": torch.zeros(WAN.latent)})


def graph(seed: int = 1, **changes) -> dict:
    offload = {"resident_blocks": 2, **_defaults_of_offload()}
    cache = {**_defaults_of_cache(), **changes}
    return {
        "1": {"class_type": "TestTinyModel", "inputs": {}},
        "2": {"class_type": "DiTLayerwiseOffload", "inputs": {"model": ["1", 0], **offload}},
        "3": {"class_type": "DiTDBCache", "inputs": {"model": ["2", 0], **cache}},
        "4": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["3", 0],
                "seed": seed,
                "steps": 10,
                "cfg": 3.0,
                "sampler_name": "euler",
                "scheduler": "simple",
                "positive": ["1", 1],
                "negative": ["1", 2],
                "latent_image": ["1", 3],
                "denoise": 1.0,
            },
        },
        "5": {"class_type": "DiTRunReport", "inputs": {"model": ["3", 0], "after": ["4", 0]}},
        "6": {"class_type": "TestKeep", "inputs": {"latent": ["5", 0], "report": ["5", 1]}},
    }


def _defaults_of_offload() -> dict:
    return {
        "engine": "auto",
        "vram_budget_gb": 0.0,
        "residency_policy": "auto",
        "prefetch_blocks": 1,
        "pin_memory": "auto",
        "lora": "auto",
    }


def _defaults_of_cache() -> dict:
    return {
        "preset": "custom",
        "Fn": 1,
        "Bn": 1,
        "warmup_steps": 2,
        "residual_diff_threshold": 1.0,
        "max_continuous_cached_steps": 2,
        "max_cached_steps": -1,
        "calibrator": "none",
        "calibrator_order": 1,
        "scm": "none",
        "scm_policy": "dynamic",
        "start_percent": 0.0,
        "end_percent": 1.0,
        "cache_device": "auto",
        "verbose": False,
    }


@pytest.fixture
def execute(pack, comfy_nodes, monkeypatch):
    """Validate and run a graph; returns (kept outputs, messages the server was sent)."""
    import execution

    kept = []

    class Keep:
        CATEGORY = "test"
        FUNCTION = "keep"
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls):  # noqa: N802
            return {"required": {"latent": ("LATENT",), "report": ("STRING", {"forceInput": True})}}

        def keep(self, latent, report):
            kept.append((latent["samples"].clone(), report))
            return ()

    TinyModel.model = build(WAN)
    monkeypatch.setitem(comfy_nodes.NODE_CLASS_MAPPINGS, "TestTinyModel", TinyModel)
    monkeypatch.setitem(comfy_nodes.NODE_CLASS_MAPPINGS, "TestKeep", Keep)
    server = StubServer()
    running = SimpleNamespace(PromptServer=SimpleNamespace(instance=server))
    monkeypatch.setitem(sys.modules, "server", running)
    arguments = {"lru": 0, "ram": 0.0, "ram_inactive": 0.0}
    executor = execution.PromptExecutor(server, cache_type=execution.CacheType.CLASSIC, cache_args=arguments)

    def run(prompt):
        server.messages.clear()
        kept.clear()
        valid = asyncio.run(execution.validate_prompt("id", prompt, None))
        assert valid[0], valid
        executor.execute(prompt, "id", {"client_id": "test"}, valid[2])
        return list(kept), list(server.messages)

    yield run
    TinyModel.model = None


def errors(messages):
    return [data for event, data in messages if event in ("execution_error", "execution_interrupted")]


def test_a_graph_runs_and_its_report_arrives(execute):
    kept, messages = execute(graph())
    assert errors(messages) == []
    [(samples, report)] = kept
    run = json.loads(report)
    assert (run["steps"], run["engine"]) == (10, "layerwise")
    assert run["totals"]["hits"] > 0
    assert run["totals"]["bytes_streamed"] > 0
    texts = [data["output"]["text"][0] for event, data in messages if event == "executed" and data["node"] == "5"]
    assert len(texts) == 1
    assert "model calls" in texts[0]
    progress = [text for event, text in messages if event == "progress_text"]
    assert {node for node, _ in progress} == {"3"}
    assert progress[0][1] == "step 1 of 10, uncond+cond: miss (warm-up)"
    assert len(progress) == run["totals"]["calls"]
    again, _ = execute(graph(seed=2))
    back, _ = execute(graph(seed=1))
    assert not torch.equal(again[0][0], samples)
    assert torch.equal(back[0][0], samples)


def test_a_bad_value_is_named_on_its_node_and_the_next_run_works(execute):
    _, messages = execute(graph(Fn=7, Bn=2))
    [error] = errors(messages)
    assert error["node_id"] == "3"
    assert "Fn is 7 and Bn is 2" in error["exception_message"]
    kept, messages = execute(graph())
    assert errors(messages) == []
    assert len(kept) == 1


def test_interrupting_a_graph_leaves_one_that_runs_again(execute, comfy_nodes):
    expected, _ = execute(graph())
    model = TinyModel.model.model.diffusion_model
    calls = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 5:
            comfy_nodes.interrupt_processing()

    handle = model.blocks[0].register_forward_pre_hook(interrupt)
    kept, messages = execute(graph(seed=2))
    handle.remove()
    assert kept == []
    assert [error["node_id"] for error in errors(messages)] == ["4"]
    kept, messages = execute(graph(seed=1))
    assert errors(messages) == []
    assert torch.equal(kept[0][0], expected[0][0])
