"""Pages of counters over real sockets: what is asked for, what is refused, and what it takes to say so."""

import asyncio
import socket
from collections.abc import Callable

import pytest
from tests.support.web import Answer, serving_answers

from draftwise.core import BackendError, InvalidSetup
from draftwise.watching.watcher import HttpPage, Look, open_pages, read_all

PAGE = 'vllm:generation_tokens_total{engine="0"} 5\nprocess_start_time_seconds 1.7e9\n'


def look_at(answer: Callable[[str, dict[str, str]], Answer], path: str = "", **settings: object) -> Look:
    async def run(url: str) -> Look:
        page = HttpPage("spec", url + path, **settings)  # type: ignore[arg-type]
        try:
            return await page.look()
        finally:
            page.close()

    with serving_answers(answer) as url:
        return asyncio.run(run(url))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/metrics", "/v1/"])
def test_the_page_is_found_whichever_of_its_urls_is_given(path: str) -> None:
    asked: list[str] = []
    look = look_at(lambda path, _: asked.append(path) or (200, PAGE), path)  # type: ignore[func-returns-value]
    assert asked == ["/metrics"]
    assert (look.server, look.started_s) == ("vLLM", 1.7e9)
    assert look.engines[0].counters.generation_tokens == 5


def test_a_prefix_stays_and_headers_are_sent() -> None:
    asked: list[tuple[str, str]] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        asked.append((path, headers["authorization"]))
        return 200, PAGE

    look_at(answer, "/llama/v1", headers={"Authorization": "Bearer key"})
    assert asked == [("/llama/metrics", "Bearer key")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "no"), "answers 404: a gateway has no metrics of its own there. Pass the address of each server"),
        ((401, "no"), "answers 401: it requires a key or a header"),
        ((500, "no"), "answers 500."),
        ((200, "<html>hello</html>"), "shows no counters of a known server"),
    ],
)
def test_what_is_no_page_of_counters_is_said(answer: Answer, said: str) -> None:
    with pytest.raises(BackendError, match=said):
        look_at(lambda path, headers: answer)


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(BackendError, match=r"within 0\.05 s"):
                await HttpPage("spec", url, timeout_s=0.05).look()

    asyncio.run(run())


def test_all_pages_are_read_at_once_and_a_fault_is_one_of_the_answers() -> None:

    async def run(url: str) -> list[Look | BackendError]:
        pages = open_pages({"spec": [url, "http://127.0.0.1:1"], "plain": [f"{url}/metrics"]}, {})
        try:
            return await read_all(pages)
        finally:
            for page in pages:
                page.close()

    with serving_answers(lambda path, headers: (200, PAGE)) as url:
        first, second, third = asyncio.run(run(url))
    assert isinstance(first, Look)
    assert isinstance(second, BackendError)
    assert isinstance(third, Look)
    assert (first.pool, third.pool) == ("spec", "plain")
    assert "http://127.0.0.1:1 does not answer" in str(second)


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidSetup, match="is not an http"):
        open_pages({"spec": ["llama:8000"]}, {})
