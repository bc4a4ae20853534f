"""The playground in Chromium, from its own files alone."""

import json

import pytest
from docs.playground.__main__ import build, measure

from draftwise.verbs.pages.answers import answer
from tests.support.browser import WIDTHS, Visit, browser, npm_folder, serving_folder
from tests.support.source_fixtures import find_fixtures
from tests.ui.test_playground import ASKED, COMMAND

__all__ = ["browser"]

ASK = """async (asked) => {
    const worker = new Worker("worker.js", { type: "module" });
    const next = () => new Promise((done) => { worker.onmessage = ({ data }) => done(data); });
    await next();
    const answers = [];
    for (const each of asked) { worker.postMessage(each); answers.push(await next()); }
    worker.terminate();
    return answers;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "playground"
    build(out, npm_folder("pyodide"))
    return out


@pytest.fixture(scope="module")
def url(folder):
    with serving_folder(folder) as address:
        yield address


def test_at_most_7_megabytes_are_sent(folder):
    assert sum(measure(folder).values()) < 7_000_000


def test_answers_equal_cpythons(browser, url):
    asked = [("check", {"sources": text}) for text in find_fixtures()] + list(ASKED)
    with Visit(browser, url) as visit:
        answers = visit.page.evaluate(ASK, asked)
    differing = [fields for (verb, fields), text in zip(asked, answers, strict=True) if text != answer(verb, fields)]
    assert not differing


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_of_every_verb(browser, url, width):
    with Visit(browser, f"{url}index.html", width=width, dark=width == 400) as visit:
        page = visit.page
        page.wait_for_selector("[data-complete]")
        assert page.locator("article h2 .badge").all_inner_texts() == ["? not judged", "✓ accepted", "✗ rejected"]
        assert page.locator(".release.open").count()
        assert page.locator(".release.good").count()
        barriers = visit.find_barriers()
        for verb in ("upgrade", "size", "pick", "explain"):
            page.click(f"[data-verb={verb}]")
            page.wait_for_selector(f".state:text-matches('^{verb}: ')")
            assert not page.locator("article .badge:text('cannot be answered')").count(), verb
            assert visit.overflow <= 0
            barriers += visit.find_barriers()
        assert not barriers
        assert not visit.troubles
        assert all(each.startswith((url, "data:", "blob:")) for each in visit.requests)


def test_a_link_carries_the_input(browser, url):
    with Visit(browser, f"{url}index.html") as visit:
        visit.page.wait_for_selector("article")
        visit.page.fill("[name=sources]", COMMAND)
        visit.page.wait_for_selector("article code:text-is('Qwen/Qwen3-8B') >> nth=0")
        visit.page.wait_for_function("() => location.hash.includes('vllm%20serve%20Qwen')")
        link = visit.page.url
    with Visit(browser, link) as visit:
        visit.page.wait_for_selector("article")
        assert visit.page.input_value("[name=sources]") == COMMAND
        assert not any("Qwen" in each for each in visit.requests)  # a fragment is not sent


def test_markup_in_the_input_stays_text(browser, url):
    text = "vllm serve '<img src=x onerror=alert(1)>/<b>x</b>' --speculative-config '{\"method\": \"<i>\"}'"
    with Visit(browser, f"{url}index.html#{json.dumps({'verb': 'check', 'sources': text})}") as visit:
        visit.page.wait_for_selector("article")
        assert not visit.page.locator("article img, article i").count()
        assert not visit.troubles
