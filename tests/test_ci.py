"""The files that GitHub and pre-commit read: valid, and naming only commands and files that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dev.check_types import ROOMS

yaml = pytest.importorskip("yaml")

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SETUP = "python3 -m venv .venv && .venv/bin/python -m pip install -q nox && .venv/bin/python -m nox -s "


def read(path: str):
    return yaml.safe_load((REPOSITORY / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def jobs():
    return read(".github/workflows/tests.yml")["jobs"]


def commands(job) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_ci_runs_the_readmes_command_with_lint_before_the_tests(jobs):
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert SETUP + "lint tests\n" in script
    assert SETUP + "lint tests\n" in README
    assert commands(jobs["linux"]) == [".ci/run"]
    assert jobs["linux"]["runs-on"].startswith("ubuntu")


def test_the_unit_tests_run_on_windows_and_macos(jobs):
    systems = jobs["unit"]["strategy"]["matrix"]["os"]
    assert {name.split("-")[0] for name in systems} == {"windows", "macos"}
    install, run = commands(jobs["unit"])
    for file in re.findall(r"-r (\S+)", install):
        assert (REPOSITORY / file).is_file()
    noxfile = (REPOSITORY / "noxfile.py").read_text(encoding="utf-8")
    words = run.split("-m pytest ")[1].split()
    assert ", ".join(json.dumps(word) for word in words) in noxfile


def test_the_environment_is_kept_under_all_that_it_is_made_of(jobs):
    host = (REPOSITORY / "dev" / "comfyui_host.py").read_text(encoding="utf-8")
    made_of = re.search(r"^REQUIREMENTS = \((.*)\)$", host, re.MULTILINE).group(1)
    requirements = {"/".join(re.findall(r'"([^"]+)"', one)) for one in made_of.split(", ")}
    kept = next(step["with"] for step in jobs["linux"]["steps"] if step.get("uses", "").startswith("actions/cache@"))
    named = set(re.findall(r"'([\w/.-]+)'", kept["key"]))
    assert named == {*requirements, "dev/comfyui_host.py"}
    assert f'user_cache_path("{Path(kept["path"]).name}"' in host


def test_pre_commit_runs_what_lint_runs():
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [hook["entry"] for hook in hooks] == [
        "python -m ruff check --fix",
        "python -m ruff format",
        "python -m dev.check_types",
    ]
    types = re.compile(hooks[-1]["files"])
    assert all(types.match(f"{room}/__init__.py") for room in ROOMS)


def test_the_issue_form_asks_for_the_run_report():
    form = read(".github/ISSUE_TEMPLATE/bug.yml")
    assert {"name", "description", "body"} <= set(form)
    fields = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert len(fields) == len([part for part in form["body"] if part["type"] != "markdown"])
    assert fields["report"]["attributes"]["render"] == "json"
    assert "DiT Run Report" in fields["report"]["attributes"]["description"]
    for part in fields.values():
        assert part["type"] in {"textarea", "input", "dropdown", "checkboxes"}
        assert part["attributes"]["label"]
