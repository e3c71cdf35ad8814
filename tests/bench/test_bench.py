"""The benchmarks' entry: parts, tables, results file, what is said of the machine."""

from __future__ import annotations

import contextlib
import json
import types

import pytest
import torch

from bench import command, costs, machine
from bench.results_file import ResultsFile
from bench.tables import Part


def test_a_part_shows_chosen_columns_and_rows():
    part = Part(
        "x",
        "Title",
        {"what": "{}", "s": "{:.1f}"},
        [{"what": "a", "s": 1.25, "more": 3}, {"what": "bb"}],
        notes=["why"],
    )
    assert part.text().splitlines() == ["Title", "  what    s", "  a     1.2", "  bb      -", "  - why"]
    part.shown = [1]
    assert part.text().splitlines() == ["Title", "  what  s", "  bb    -", "  - why"]
    assert Part("x", "Title", skipped="no card").text() == "Title\n  skipped: no card"
    assert Part("x", "Title", failed="ValueError: no").text() == "Title\n  failed: ValueError: no"


def test_parts_are_named_on_the_command_line(capsys):
    assert command.parsed(["published", "gpu"]).parts == ["published", "gpu"]
    assert command.parsed([]).parts == []
    with pytest.raises(SystemExit):
        command.parsed(["everything"])
    assert "unknown part everything" in capsys.readouterr().err


def test_without_comfyui_or_a_card_parts_are_skipped(monkeypatch):
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = command.parsed([])
    for name in ("import", "end_to_end"):
        assert command.PARTS[name](arguments).skipped == "COMFYUI_PATH is not set"
    assert command.PARTS["gpu"](arguments).skipped == "no CUDA device here"
    assert command.PARTS["gpu_comfyui"](arguments).skipped == "no CUDA device here"


def test_costs_measure_something():
    values = {**costs.hook_costs(repeats=3), **costs.packing_costs(repeats=3), **costs.judging_costs(repeats=3)}
    assert len(values) == 7
    assert all(isinstance(value, float) for value in values.values())


def entries(path):
    return {one["name"]: one for one in json.loads(path.read_text())["parts"]}


def test_the_results_file_keeps_what_is_not_measured_again(tmp_path):
    path = tmp_path / "r.json"
    results = ResultsFile(path, ("a", "b"))
    results.put(Part("b", "Title", {"x": "{}"}, [{"x": 1}, {"x": 2, "y": [3]}], shown=[0]), {"torch": "1"})
    ResultsFile(path, ("a", "b")).put(Part("a", "T", skipped="why"), {"torch": "2"})
    assert list(entries(path)) == ["a", "b"]
    assert entries(path)["b"]["rows"] == [{"x": 1}, {"x": 2, "y": [3]}]
    assert (entries(path)["b"]["machine"], entries(path)["a"]["machine"]) == ({"torch": "1"}, {"torch": "2"})
    assert entries(path)["a"]["skipped"] == "why"
    ResultsFile(path, ("a", "b")).put(Part("b", "New"), {})
    assert (entries(path)["b"]["title"], entries(path)["a"]["title"]) == ("New", "T")


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"other": 1}', '{"parts": [1]}'])
def test_another_file_is_not_overwritten(tmp_path, content):
    path = tmp_path / "precious.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="something else than benchmark results"):
        ResultsFile(path, ())
    assert path.read_text() == content


@pytest.fixture
def parts(monkeypatch):
    """Three small parts in the place of the real ones; the second one fails."""

    def fail(arguments):
        raise RuntimeError("no luck")

    made = {
        "first": lambda arguments: Part("first", "One", {"x": "{}"}, [{"x": 1}]),
        "second": fail,
        "third": lambda arguments: Part("third", "Three", {"x": "{}"}, [{"x": 3}]),
    }
    monkeypatch.setattr(command, "PARTS", made)
    monkeypatch.setattr(command, "describe_machine", lambda: {"torch": "x"})


def test_a_part_that_fails_loses_no_other(parts, tmp_path, capsys):
    path = tmp_path / "r.json"
    with pytest.raises(SystemExit, match="failed: second"):
        command.main(["--json", str(path)])
    printed = capsys.readouterr().out
    assert "second: Failed\n  failed: RuntimeError: no luck" in printed
    assert "third: Three" in printed
    assert {name: one["failed"] for name, one in entries(path).items()} == {
        "first": "",
        "second": "RuntimeError: no luck",
        "third": "",
    }
    command.main(["first", "--json", str(path)])
    assert list(entries(path)) == ["first", "second", "third"]
    assert entries(path)["third"]["rows"] == [{"x": 3}]


def test_a_file_that_cannot_be_written_is_found_before_anything_runs(parts, tmp_path, capsys):
    for path in (tmp_path / "nowhere" / "r.json", tmp_path):
        with pytest.raises(SystemExit, match=r"--json is '.*', which cannot be written .*Name a file"):
            command.main(["--json", str(path)])
    assert capsys.readouterr().out == ""


def test_the_machine_is_described(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "comfyui_version.py").write_text('# made\n__version__ = "9.8.7"\n')
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    described = machine.describe_machine()
    assert described["card"] is None
    assert (described["torch"], described["comfyui"]) == (torch.__version__, "9.8.7")
    assert described["cache-dit"].startswith("1.5")
    assert f'version = "{described["pack"]}"' in (machine.REPOSITORY / "pyproject.toml").read_text()
    monkeypatch.delenv("COMFYUI_PATH")
    assert machine.versions()["comfyui"] is None


def test_the_card_in_use_is_described_while_its_bus_is_busy(monkeypatch):
    properties = types.SimpleNamespace(name="NVIDIA X", total_memory=24e9, uuid="1234-5678")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {1: properties}.__getitem__)
    busy, asked = [], []

    @contextlib.contextmanager
    def load():
        busy.append(True)
        yield
        busy.pop()

    def ask(words):
        asked.append((list(words), list(busy)))
        return "NVIDIA X, 550.1, 4, 4, 16\n"

    described = machine.describe_card(ask, load)
    [(words, while_busy)] = asked
    assert while_busy == [True]
    assert words[-2:] == ["-i", "GPU-1234-5678"]
    assert described == {
        "card": "NVIDIA X",
        "memory GB": 24.0,
        "name": "NVIDIA X",
        "driver_version": "550.1",
        "pcie.link.gen.max": "4",
        "pcie.link.gen.current": "4",
        "pcie.link.width.current": "16",
    }
    assert machine.describe_card(lambda words: None, load)["nvidia-smi"] is None
