"""Pages of counters over real sockets: what is asked for, what is refused, and what it takes to say so."""

import asyncio
import gzip
import random
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count, repeat

import pytest
from tests.support.web import Answer, serving_answers

from draftwise.core import BackendError, InvalidSetup
from draftwise.watching.page_identity import read_identity
from draftwise.watching.watcher import HttpPage, Look, Snapshot, Watcher, open_pages, read_all, read_page

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
    assert asked == ["/metrics"] * 10
    assert (look.server, look.started_s) == ("vLLM", 1.7e9)
    assert look.engines[0].counters.generation_tokens == 5


def test_a_prefix_stays_and_headers_are_sent() -> None:
    asked: list[tuple[str, str]] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        asked.append((path, headers["authorization"]))
        return 200, PAGE

    look_at(answer, "/llama/v1", headers={"Authorization": "Bearer key"})
    assert asked == [("/llama/metrics", "Bearer key")] * 10


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "no"), "answers 404: a gateway has no metrics of its own there. Pass the address of each server"),
        ((401, "no"), "answers 401: it requires a key or a header"),
        ((500, "no"), "answers 500."),
        ((301, "no"), "answers 301: pass the address that it leads to"),
        ((200, "<html>hello</html>"), "shows no counters of a known server: a gateway has no metrics"),
        (
            (200, 'go_threads 3\nfork:generation_tokens_total{m="a"} 8\n'),
            "server: only fork:generation_tokens_total and",
        ),
        ((200, 'vllm:num_requests_running{server="http://a"} 6\n'), "server: only vllm:num_requests_running and the"),
    ],
)
def test_what_is_no_page_of_counters_is_said(answer: Answer, said: str) -> None:
    with pytest.raises(BackendError, match=said):
        look_at(lambda path, headers: answer)


@pytest.mark.parametrize("page", [gzip.compress(PAGE.encode()), b"\xef\xbb\xbf" + PAGE.encode()], ids=["gzip", "mark"])
def test_a_page_is_read_as_a_proxy_sends_it(page: bytes) -> None:
    look = look_at(lambda *_: (200, page))
    assert look.engines[0].counters.generation_tokens == 5


def test_of_thousands_of_positions_the_first_hundred_are_read() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    page = PAGE + "".join(f'{name}{{engine="0",position="{each}"}} {20_000 - each}\n' for each in range(20_000))
    look = look_at(lambda *_: (200, page))
    assert look.engines[0].counters.spec.accepted_per_pos == tuple(range(20_000, 19_900, -1))
    assert len(read_identity(page).counted) == 101


STAYS, MOVES = repeat("process_cpu_seconds_total 400"), (f"process_cpu_seconds_total {each}" for each in count())


@pytest.mark.parametrize(
    ("lines", "headers", "copied"),
    [
        (STAYS, {}, True),
        (MOVES, {}, False),
        (repeat(""), {"Age": "12"}, True),
        (repeat(""), {"X-Cache": "Hit from a proxy"}, True),
        (repeat(""), {"Cache-Status": "proxy; hit; ttl=3"}, True),
        (repeat(""), {"Date": "Sun, 29 Nov 2026 17:00:00 GMT"}, True),
        (repeat(""), {"Age": "0", "X-Cache": "MISS"}, False),
        (MOVES, {"Age": "12"}, False),
    ],
)
def test_a_page_from_a_cache_is_no_state_of_its_server(
    lines: Iterator[str], headers: dict[str, str], copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwise.watching.watcher._COPIED_S", 0.05)
    dates = map(str, count())

    async def run(url: str) -> Look:
        page = HttpPage("spec", url)
        await page.look()
        await asyncio.sleep(0.06)
        return await page.look()

    def answer(*_: object) -> Answer:
        return 200, f"{PAGE}{next(lines)}\n", {"Date": next(dates), **headers}

    with serving_answers(answer) as url:
        if copied:
            with pytest.raises(BackendError, match="a cache answers in its place"):
                asyncio.run(run(url))
        else:
            assert asyncio.run(run(url)).server == "vLLM"


def test_a_cache_that_hides_is_found_by_asking_with_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.watching.watcher._COPIED_S", 0.0)
    tokens = count(6)

    async def run(url: str) -> Look:
        page = HttpPage("spec", url)
        await page.look()
        return await page.look()

    with (
        serving_answers(
            lambda path, _: (200, PAGE.replace("5\n", f"{next(tokens)}\n") if "?" in path else PAGE)
        ) as url,
        pytest.raises(BackendError, match=r"a request with a query gets another page\. So a cache answers"),
    ):
        asyncio.run(run(url))


def test_other_engines_are_named_with_what_they_need() -> None:
    with pytest.raises(BackendError, match=r"Triton's own page.*REPORT_CUSTOM_METRICS"):
        look_at(lambda *_: (200, 'nv_inference_request_success{model="m"} 5\n'))
    with pytest.raises(BackendError, match="is Ollama, which has no metrics page"):
        look_at(lambda path, _: (200, "Ollama is running") if path == "/" else (404, "no"))


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


class Replica:
    """Counters of one server, as vLLM shows them, without the start of its process."""

    def __init__(self, rng: random.Random, old: int) -> None:
        self.rng, self.steps, self.accepted, self.finished = rng, 0, 0, 0
        for _ in range(old):
            self.serve()

    def serve(self) -> None:
        """Answer one request of a drawn length."""
        steps = self.rng.randint(20, 60)
        self.steps, self.finished = self.steps + steps, self.finished + 1
        self.accepted += sum(self.rng.random() < 0.6 for _ in range(steps))

    def page(self) -> str:
        counts = {
            "generation_tokens_total": self.steps + self.accepted,
            "spec_decode_num_drafts_total": self.steps,
            "spec_decode_num_draft_tokens_total": self.steps,
            "spec_decode_num_accepted_tokens_total": self.accepted,
            "request_success_total": self.finished,
        }
        return "".join(f'vllm:{name}{{engine="0"}} {count}\n' for name, count in counts.items())


def watch_pool(seed: int, replicas: int, policy: str) -> tuple[list[Snapshot], list[Replica]]:
    """Return what is seen of a drawn pool behind one address: young or old, its traffic equal."""
    rng = random.Random(seed)
    ages = [rng.choice((0, 2, 40, 400))] * replicas if seed % 2 else [rng.randint(0, 400) for _ in range(replicas)]
    pool = [Replica(rng, age) for age in ages]
    turns, of_connection, lock = iter(range(1 << 30)), threading.local(), threading.Lock()

    def choose() -> Replica:
        return pool[next(turns) % replicas] if policy == "round robin" else rng.choice(pool)

    def answer(path: str, headers: dict[str, str]) -> Answer:
        with lock:
            if policy == "sticky":  # one thread serves one connection
                of_connection.replica = getattr(of_connection, "replica", None) or choose()
                return 200, of_connection.replica.page()
            return 200, choose().page()

    async def run(url: str) -> list[Snapshot]:
        watcher, seen = Watcher(open_pages({"spec": [url]}, {})), []
        for _ in range(4):
            seen.append(await watcher.look())
            for each in pool:
                for _ in range(3):
                    each.serve()
        watcher.close()
        return seen

    with serving_answers(answer) as url:
        return asyncio.run(run(url)), pool


@pytest.mark.parametrize("policy", ["round robin", "random", "sticky"])
def test_nothing_is_computed_from_several_servers_behind_an_address(policy: str) -> None:
    for seed in range(10):
        seen, _ = watch_pool(seed, 2 + seed % 5, policy)
        assert all(snapshot.recent == () for snapshot in seen), seed
        assert {each.code for each in seen[-1].findings} == {"several-behind-url"}, seed


def test_one_server_is_not_taken_for_several() -> None:
    for seed in range(5):
        seen, (server,) = watch_pool(seed, 1, "random")
        assert all(snapshot.findings == () for snapshot in seen), seed
        (window,) = seen[-1].recent
        assert 0 < window.counters.spec.num_drafts <= server.steps


@pytest.mark.parametrize(
    ("earlier", "later", "other"),
    [
        ('a_total{x="1"} 5\n', 'a_total{x="1"} 6\n', False),
        ('a_total{x="1"} 5\n', 'a_total{x="1"} 4\n', True),
        ('a_bucket{le="1"} 5\n', 'a_bucket{le="2"} 5\n', True),
        ("a_created 1.5\n", "a_created 3.6\n", True),
        ("process_start_time_seconds 1e9\n", "process_start_time_seconds 1000000001.3\n", True),
        ("process_start_time_seconds 1e9\n", "process_start_time_seconds 1000000001\n", False),
        ('vllm:cache_config_info{num_gpu_blocks="9"} 1\n', 'vllm:cache_config_info{num_gpu_blocks="8"} 1\n', True),
        ("# TYPE a_total gauge\na_total 5\n", "# TYPE a_total gauge\na_total 4\n", False),
        ("a_total 5\nb_total 50\n", "a_total 5\nb_to", False),
        ("a_sum 0.30000000000000004\n", "a_sum 0.3\n", False),
        ("a_total 5\n", "a_total 5\nb_total 1\n", False),
        ("running 5\n", "running 4\n", False),
    ],
)
def test_pages_of_one_process_never_count_back(earlier: str, later: str, other: bool) -> None:
    assert read_identity(earlier).cannot_precede(read_identity(later)) is other


def test_every_address_of_a_name_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless Service has an address a pod; one pod alone answers at each of them, as often as it is asked."""

    urls: list[str] = []

    async def find_addresses(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", int(url.rpartition(":")[2]))) for url in urls]

    with serving_answers(lambda *_: (200, PAGE)) as one, serving_answers(lambda *_: (200, f"{PAGE}a_total 1\n")) as two:
        monkeypatch.setattr(asyncio.SelectorEventLoop, "getaddrinfo", find_addresses)
        for urls[:] in ([one], [one, two], [one, "http://127.0.0.1:1"]):
            assert not asyncio.run(HttpPage("spec", "http://llm").look()).several
        with serving_answers(lambda *_: (200, PAGE.replace("1.7e9", "1.8e9"))) as other:
            urls[:] = [one, other]
            assert asyncio.run(HttpPage("spec", "http://llm").look()).several


@pytest.mark.parametrize(
    ("url", "shared"),
    [
        ("http://vllm:8000", True),
        ("http://vllm.prod.svc:8000", True),
        ("http://llama-3.prod.svc.cluster.local", True),
        ("https://llm.example.com/qwen/v1", True),
        ("https://10.0.0.7", True),
        ("http://10.0.0.7:80", True),
        ("http://10.0.0.7:8000", False),
        ("http://[fd00::7]:8000", False),
        ("http://127.0.0.1:80", False),
        ("http://localhost:8000", False),
        ("http://vllm-0.vllm.prod.svc.cluster.local:8000", False),
        ("http://10-0-0-7.prod.pod.cluster.local:8000", False),
        ("http://vllm-1:8000", False),
    ],
)
def test_an_address_that_may_be_of_several_is_said_to_be(url: str, shared: bool) -> None:
    class Page(HttpPage):
        async def look(self) -> Look:
            return read_page(PAGE, pool=self.pool, instance=self.instance, at_s=0.0, clock_s=0.0)

    def say(*urls: str) -> list[str]:
        watcher = Watcher([Page("spec", each) for each in urls])
        return [each.code for each in asyncio.run(watcher.look()).findings if each.code != "same-server-twice"]

    assert say(url) == ["one-page-one-address"] * shared
    assert say(url, "http://b:1") == []
