"""ComfyUI's own frontend in headless Chromium: what a person does with the pack, and what they then see."""

from __future__ import annotations

import json

import pytest
from rigs.chromium import find_or_install
from rigs.comfyui_server import PACK
from rigs.example_workflows import REPOSITORY, TOY, load

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

SCREENSHOTS = REPOSITORY / "artifacts"
NAMES = {
    "DiTLayerwiseOffload": "DiT Layerwise Offload",
    "DiTDBCache": "DBCache",
    "DiTRunReport": "DiT Run Report",
    "DiTCompare": "DiT Compare",
    "DiTToyModel": "DiT Toy Model",
    "DiTToyDecode": "DiT Toy Decode",
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # for containers
LOADED = "() => window.LiteGraph && window.app?.graph?.nodes.length > 0"  # the default workflow is there
TROUBLE = "[role=dialog]:visible, [data-testid=error-overlay]:visible, .p-toast-message-error:visible"
PATIENCE = 90_000.0  # milliseconds; only a fault takes that long


@pytest.fixture(scope="module")
def browser(server):
    executable, reason = find_or_install()
    if executable is None:
        pytest.skip(reason)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(executable), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_frontend(server, browser):
    """Open the frontend in a fresh browser profile, with these of its settings; returns (page, errors of scripts)."""
    contexts = []

    def open_page(**settings):
        server.post("settings", {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", **settings})
        contexts.append(browser.new_context(viewport={"width": 1800, "height": 1000}))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: ours(message) and errors.append(message.text))
        page.goto(server.url)
        page.wait_for_selector(".templates-tab-button")
        page.wait_for_function(LOADED)
        return page, errors

    def ours(message):
        return message.type == "error" and f"/extensions/{PACK}" in message.location.get("url", "")

    yield open_page
    for context in contexts:
        context.close()


def search(page, name: str):
    """Open the search by a double click on the empty canvas, type ``name`` and return the pack's result."""
    page.evaluate("() => app.graph.clear()")
    for _ in range(5):
        page.mouse.dblclick(700, 850)
        try:
            page.wait_for_function("() => document.activeElement.tagName == 'INPUT'", timeout=5_000)
            break
        except playwright.TimeoutError:  # clicked too early
            continue
    page.keyboard.type(name)
    found = page.locator("[role=option]").filter(has_text=name).filter(has_text=PACK).first
    found.wait_for()
    return found


def close_search(page) -> None:
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.tagName != 'INPUT'")


def test_nodes_are_found_by_search_under_their_names(open_frontend):
    page, errors = open_frontend()
    for name in NAMES.values():
        search(page, name)
        close_search(page)
    search(page, "DBCache").click()
    page.wait_for_function("() => app.graph.nodes.some(node => node.type == 'DiTDBCache')")
    assert errors == []


def test_the_toy_workflow_opens_from_the_template_browser_and_runs(open_frontend, server):
    page, errors = open_frontend()
    page.click(".templates-tab-button")
    page.get_by_text(PACK, exact=True).first.click()
    card = page.get_by_test_id(f"template-workflow-{TOY.stem}")
    picture = card.locator("img").first
    picture.wait_for()
    page.wait_for_function("image => image.complete && image.naturalWidth >= 400", arg=picture.element_handle())
    card.click()

    saved = {str(node["id"]): node["type"] for node in load(TOY)["nodes"]}
    page.wait_for_function("number => app.graph.nodes.length == number", arg=len(saved))
    assert page.evaluate("() => Object.fromEntries(app.graph.nodes.map(n => [String(n.id), n.type]))") == saved
    assert page.evaluate("() => app.graph.nodes.filter(n => !LiteGraph.registered_node_types[n.type]).length") == 0
    page.locator("[role=dialog]:visible").first.wait_for(state="hidden")
    assert page.locator(TROUBLE).all_inner_texts() == []

    # other text, same digits: whatever the server has kept of other tests' runs does not fit
    labels = "app.graph.nodes.find(n => n.type == 'DiTToyModel').widgets.find(w => w.name == 'labels')"
    page.evaluate(f"() => {{ {labels}.value += ' ' }}")
    done_before = set(server.get("history"))
    page.get_by_role("button", name="Run", exact=True).first.click()
    page.wait_for_function(f"() => ({widget_text('DiTDBCache', '$$node-text-preview')}).includes('step 20 of 20')")
    page.wait_for_function(f"() => ({widget_text('DiTRunReport', 'summary')}).includes('20 steps, 20 model calls')")
    page.wait_for_function(f"() => ({widget_text('DiTCompare', 'summary')}).includes('PSNR')")
    page.wait_for_function("() => app.graph.nodes.find(n => n.type == 'DiTRunReport').imgs?.[0]?.naturalWidth == 1024")
    page.wait_for_function(
        "() => app.graph.nodes.filter(n => n.type == 'PreviewImage').every(n => n.imgs?.length == 10)"
    )
    (done,) = set(server.get("history")) - done_before
    assert server.get(f"history/{done}")[done]["status"]["status_str"] == "success"
    assert page.evaluate("() => app.graph.nodes.filter(n => n.has_errors).length") == 0
    assert page.locator(TROUBLE).all_inner_texts() == []
    assert errors == []

    saved_again = page.evaluate("() => JSON.stringify(app.graph.serialize())")
    values = {node["type"]: node.get("widgets_values") for node in json.loads(saved_again)["nodes"]}
    assert not values["DiTRunReport"], "what a run showed is not part of the workflow"
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "toy-workflow.png")


def widget_text(node_type: str, widget: str) -> str:
    """Return JavaScript for the text of a widget, empty until there is one."""
    node = f"app.graph.nodes.find(n => n.type == '{node_type}')"
    return f"String({node}.widgets?.find(w => w.name == '{widget}')?.value ?? '')"


def test_nodes_are_found_in_chinese_where_the_frontend_is(open_frontend):
    page, errors = open_frontend(**{"Comfy.Locale": "zh"})
    version = page.evaluate("() => window.__COMFYUI_FRONTEND_VERSION__")
    if tuple(int(part) for part in version.split(".")[:2]) <= (1, 32):
        pytest.skip(f"frontend {version} replaces packs' translations when it loads its own of a language")
    texts = json.loads((REPOSITORY / "locales" / "zh" / "nodeDefs.json").read_text(encoding="utf-8"))
    search(page, texts["DiTLayerwiseOffload"]["display_name"])
    close_search(page)
    inputs = page.evaluate("() => LiteGraph.createNode('DiTToyModel').widgets.map(w => w.label ?? w.name)")
    assert inputs == [texts["DiTToyModel"]["inputs"][name]["name"] for name in ("labels", "batch_size")]
    assert errors == []
