"""Help pages and translations: one page a node with every input in it, no text missing, left over or stale."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dev.node_texts import english_texts

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DOCS = REPOSITORY / "web" / "docs"
LANGUAGES = ("en", "zh")
SPECIAL_IN_TRANSLATIONS = "{}@|"  # the frontend's translation library gives these a meaning of their own


@pytest.fixture(scope="module")
def schema_texts(pack):
    return english_texts(pack.nodes.values())


def translated(language: str) -> dict:
    return json.loads((REPOSITORY / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))


def leaves(texts: dict, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Flatten nested texts to {path: text}."""
    flat = {}
    for key, value in texts.items():
        flat.update(leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value})
    return flat


def test_every_input_and_output_says_what_it_is(schema_texts):
    unsaid = [path for path, text in leaves(schema_texts).items() if not text]
    assert unsaid == []


def test_the_english_texts_are_the_schemas(schema_texts):
    assert translated("en") == schema_texts, "run python -m dev.node_texts"


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_key_is_missing_or_left_over(language, schema_texts):
    assert set(leaves(translated(language))) == set(leaves(schema_texts))


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_empty_or_has_signs_that_the_frontend_interprets(language):
    wrong = {
        path: text
        for path, text in leaves(translated(language)).items()
        if not text.strip() or any(sign in text for sign in SPECIAL_IN_TRANSLATIONS)
    }
    assert wrong == {}


def test_chinese_is_chinese():
    latin_only = [path for path, text in leaves(translated("zh")).items() if not re.search(r"[\u4e00-\u9fff]", text)]
    assert latin_only == []


def test_every_node_has_a_page_and_every_page_a_node(schema_texts):
    assert {page.stem for page in DOCS.glob("*.md")} == set(schema_texts)


def test_pages_explain_every_input_and_name_nothing_else(schema_texts):
    for node_id, texts in schema_texts.items():
        page = (DOCS / f"{node_id}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {texts['display_name']}\n")
        inputs = re.search(r"^## Inputs\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE).group(1)
        explained = [
            name.strip()
            for names in re.findall(r"^\*\*([^*]+)\*\* - ", inputs, re.MULTILINE)
            for name in names.split(",")
        ]
        assert explained == list(texts["inputs"]), node_id


def test_pages_say_when_to_use_the_node_how_it_goes_with_others_and_its_limits():
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for heading in ("## When to use it", "## Together with other things", "## Limits"):
            assert heading in text, page.name
        for word in ("dynamic vram", "lora", "controlnet", "compile"):
            assert word in text.lower(), (page.name, word)


def test_options_of_a_list_are_explained(pack):
    for node_id, node in pack.nodes.items():
        page = (DOCS / f"{node_id}.md").read_text(encoding="utf-8")
        for declared in node.define_schema().inputs:
            for option in getattr(declared, "options", None) or []:
                assert f"`{option}`" in page, (node_id, declared.id, option)


def test_the_dbcache_page_has_the_presets_as_they_are(pack):
    page = (DOCS / "DiTDBCache.md").read_text(encoding="utf-8")
    for name, preset in pack.module("dbcache.rules").PRESETS.items():
        row = (name, preset.fn, preset.bn, preset.warmup_steps, preset.threshold, preset.max_continuous)
        assert "| " + " | ".join(str(value) for value in row) + " |" in page
