"""Pages that are cut off, spelled otherwise or late: readings stay those of the server, and nothing is made up."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.support import virtual_time
from tests.support.simulated_service import Server, change, scrape
from tests.support.simulated_watch import watch

from draftwise.backends.exposition import parse_engines
from draftwise.core import BackendError, Window
from draftwise.guarding.service_reading import read_sample
from draftwise.watching.diagnose import diagnose
from draftwise.watching.diagnose.outliers import find_outliers
from draftwise.watching.watcher import Look, Snapshot, Watcher, read_page

pytestmark = pytest.mark.engine  # numba

GOOD = change(Server(), rate=8.0)
Edit = Callable[[str, np.random.Generator], str]


def scrapes(seed: int, server: Server = GOOD, *, seconds: float = 300.0) -> list[str]:
    return [page for _, page in scrape(server, seed=seed, seconds=seconds, settle_s=60.0)]


class Played:
    """A server whose pages are given, one a look; None for no answer."""

    def __init__(self, pages: Sequence[str | None], instance: str = "http://a-0:8000") -> None:
        self.pool, self.instance, self.pages, self.number = "spec", instance, pages, -1

    async def look(self) -> Look:
        self.number += 1
        page = self.pages[self.number]
        if page is None:
            raise BackendError("no answer")
        at_s = 1_790_000_060.0 + 15.0 * self.number
        return read_page(page, pool=self.pool, instance=self.instance, at_s=at_s, clock_s=at_s)

    def close(self) -> None:
        pass


def play(pages: Sequence[str | None]) -> Snapshot:
    async def run() -> Snapshot:
        played = Played(pages)
        watcher = Watcher([played], now=lambda: 1_790_000_060.0 + 15.0 * played.number)
        for _ in pages:
            seen = await watcher.look()
        return seen

    return virtual_time.run(run())


def edit_lines(page: str, change_line: Callable[[str], str]) -> str:
    return "".join(change_line(line) for line in page.splitlines(keepends=True))


def cut(page: str, rng: np.random.Generator) -> str:
    return page[: int(len(page) * rng.uniform(0.2, 0.95))]


def drop(page: str, rng: np.random.Generator) -> str:
    names = sorted(set(re.findall(r"^(vllm:\w+_(?:total|sum|count))\{", page, re.MULTILINE)))
    lost = rng.choice(names)
    return edit_lines(page, lambda line: "" if line.startswith(lost + "{") else line)


def dip(page: str, rng: np.random.Generator) -> str:
    names = sorted(set(re.findall(r"^(vllm:\w+_(?:total|sum|count))\{", page, re.MULTILINE)))
    low = rng.choice(names)

    def lower(line: str) -> str:
        name, _, value = line.rpartition(" ")
        return f"{name} {0.8 * float(value):.6f}\n" if line.startswith(low + "{") else line

    return edit_lines(page, lower)


def open_metrics(page: str, _: np.random.Generator) -> str:
    exemplar = ' # {trace_id="4bf92f}"} 0.042 1790000000.1'
    return edit_lines(page, lambda line: line[:-1] + (exemplar if "_total" in line or "_bucket" in line else "") + "\n")


def other_labels(page: str, _: np.random.Generator) -> str:
    def reorder(line: str) -> str:
        found = re.fullmatch(r"(\S+?)\{(.*)\} (\S+)\n", line)
        if found is None:
            return line
        labels = ",".join(re.findall(r'\w+="[^"]*"', found[2])[::-1])
        return f'{found[1]} {{zone="eu,{{1}}",path="a\\"b}}c",{labels},}} {found[3]} 1790000000123\n'

    return edit_lines(page, reorder)


READINGS = ("tokens_per_step", "coverage", "mean_k", "seconds_per_token", "prefix_hit_rate")


def read(window: Window) -> list[float]:
    return [getattr(window, name) or 0.0 for name in READINGS]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("edit", [cut, drop, dip])
def test_some_damaged_pages_change_nothing(edit: Edit, seed: int) -> None:
    rng = np.random.default_rng([seed, 46])
    pages = scrapes(seed)
    damaged = set(rng.choice(np.arange(1, 20), 4, replace=False).tolist())
    (whole,) = play(pages).recent
    snapshot = play([edit(page, rng) if i in damaged else page for i, page in enumerate(pages)])
    (window,) = snapshot.recent
    assert snapshot.findings == ()
    assert not window.restarted
    assert window.counts_drafts
    assert read(window) == pytest.approx(read(whole), rel=0.05)


@pytest.mark.parametrize("edit", [open_metrics, other_labels])
def test_a_page_in_another_spelling_is_read_the_same(edit: Edit) -> None:
    rng = np.random.default_rng(0)
    for page in scrapes(1, seconds=30.0):
        assert parse_engines(edit(page, rng)) == parse_engines(page)


def test_edges_that_come_and_go_are_left_out_of_the_histogram() -> None:
    pages = scrapes(2)
    (whole,) = play(pages).recent
    gone = lambda page: edit_lines(page, lambda line: "" if 'le="0.025"' in line else line)  # noqa: E731
    (window,) = play([gone(page) if i % 2 else page for i, page in enumerate(pages)]).recent
    assert dict(window.slower_than) == {edge: count for edge, count in whole.slower_than if edge != 0.025}


def restart(at: int, *, seed: int, skew_s: float = 0.0, then: Server = GOOD) -> list[str | None]:
    """Return pages of a server that restarts at one of them, by a clock that is off."""

    def shift(page: str, born_s: float | None) -> str:
        return edit_lines(
            page,
            lambda line: (
                f"process_start_time_seconds {1_790_000_060 + skew_s + (born_s or -300_000.0):.2f}\n"
                if line.startswith("process_start")
                else line
            ),
        )

    again = [page for _, page in scrape(then, seed=seed + 1, seconds=300.0, settle_s=9.0)]
    return [
        *(shift(page, None) for page in scrapes(seed)[:at]),
        *(shift(page, 15.0 * at - 9.0) for page in again[: 21 - at]),
    ]


def multiply(page: str, by: float) -> str:
    """Return the page of a server that is faster by a factor."""

    def faster(line: str) -> str:
        name, _, value = line.rpartition(" ")
        is_count = re.match(r"vllm:\w+_(total|sum|count|bucket)\b", line)
        return f"{name} {by * float(value):.6f}\n" if is_count else line

    return edit_lines(page, faster)


@pytest.mark.parametrize("times", [1, 1000], ids=["small", "large"])
@pytest.mark.parametrize("skew_s", [0.0, -45.0, -600.0, 900.0])
def test_a_restart_by_a_clock_that_is_off_is_no_balancer_at_any_speed(skew_s: float, times: int) -> None:
    snapshot = play([multiply(page or "", times) for page in restart(8, seed=3, skew_s=skew_s)])
    assert snapshot.findings == ()
    (window,) = snapshot.recent
    assert window.restarted
    assert window.tokens_per_step == pytest.approx(play(scrapes(3)).recent[0].tokens_per_step, rel=0.1)


def test_what_was_before_a_restart_is_not_counted() -> None:
    (window,) = play(restart(8, seed=3, then=change(GOOD, gate=1.0))).recent
    assert window.counters.spec.num_drafts > 1000
    assert window.counters.spec.num_accepted_tokens == 0


def test_replicas_in_turns_are_told_apart_where_no_start_is_told() -> None:
    pages = [scrapes(seed, change(GOOD, rate=rate)) for seed, rate in ((4, 5.0), (5, 8.0), (6, 12.0))]
    turns = np.random.default_rng(1).integers(0, 3, 21)
    shown = [pages[turn][i] for i, turn in enumerate(turns)]
    snapshot = play([without_start(page) for page in shown])
    assert [each.code for each in snapshot.findings] == ["several-behind-url"]
    assert snapshot.recent == ()


def in_turns(uptime_s: float, seed: int, edit: Callable[[str, int], str]) -> Snapshot:
    """Return what is seen of three equal replicas behind one address, which answer by chance."""
    replicas = [
        [page for _, page in scrape(GOOD, seed=10 * seed + i, seconds=300.0, settle_s=uptime_s)] for i in range(3)
    ]
    turns = np.random.default_rng(seed).integers(0, 3, 21)
    return play([edit(replicas[turn][i], turn) for i, turn in enumerate(turns)])


def without_start(page: str) -> str:
    return edit_lines(page, lambda line: "" if line.startswith("process") else line)


def test_equal_replicas_are_told_apart_by_when_their_counters_were_made() -> None:
    made = 'vllm:generation_tokens_created{{engine="0",model_name="m"}} 178999{}.5\n'
    for seed in range(3):
        snapshot = in_turns(60.0, seed, lambda page, turn: without_start(page) + made.format(9900 + 7 * turn))
        assert [each.code for each in snapshot.findings] == ["several-behind-url"]
        assert snapshot.recent == ()


def test_equal_replicas_without_any_start_are_told_apart_once_their_counters_are() -> None:
    snapshot = in_turns(1200.0, 1, lambda page, _: without_start(page))
    assert [each.code for each in snapshot.findings] == ["several-behind-url"]
    assert snapshot.recent == ()


def start_at(page: str, start_s: float) -> str:
    begins = "process_start_time_seconds"
    return edit_lines(page, lambda line: f"{begins} {start_s}\n" if line.startswith(begins) else line)


def test_a_clock_that_is_set_makes_no_new_process() -> None:
    pages = scrapes(7)
    snapshot = play([start_at(page, 1_789_000_000.0 + 20 * (i > 9)) for i, page in enumerate(pages)])
    assert snapshot.findings == ()
    assert snapshot.recent[0].counters == play(pages).recent[0].counters


def test_a_start_that_comes_back_is_of_another_process() -> None:
    shown = [start_at(page, 1_789_000_000.0 + 20 * (5 < i < 9)) for i, page in enumerate(scrapes(7))]
    assert [each.code for each in play(shown).findings] == ["several-behind-url"]


STARTED_S = 1_789_000_000.0


@pytest.mark.parametrize(
    "start",
    [
        *(lambda i, by=by: STARTED_S + by * (i > 9) for by in (45, 600, 1_000_200, -45, -600)),
        lambda i: 1_790_000_000.0 + 15 * i,
        lambda i: STARTED_S + 7 * i,
    ],
)
def test_a_start_that_moves_while_counters_go_on_is_said_and_nothing_is_computed(start: Callable[[int], float]) -> None:
    snapshot = play([start_at(page, start(i)) for i, page in enumerate(scrapes(7))])
    assert ([each.code for each in snapshot.findings], snapshot.recent) == (["several-behind-url"], ())


def test_counters_that_begin_anew_while_the_start_stays_are_said_and_nothing_is_computed() -> None:
    anew = [start_at(page or "", STARTED_S) for page in restart(8, seed=3)]
    drafts = scrapes(7)
    at_ten = dict(re.findall(r"^(vllm:spec_decode\S+) (\S+)$", drafts[9], re.MULTILINE))

    def take_away(line: str) -> str:
        name, _, value = line.rpartition(" ")
        return f"{name} {float(value) - float(at_ten[name])}\n" if name in at_ten else line

    for pages in (anew, [edit_lines(page, take_away) if i > 9 else page for i, page in enumerate(drafts)]):
        snapshot = play(pages)
        assert ([each.code for each in snapshot.findings], snapshot.recent) == (["several-behind-url"], ())
        assert "contradict each other" in snapshot.findings[0].message


@pytest.mark.parametrize("lost", [False, True], ids=["idle", "no longer shown"])
def test_an_engine_that_gets_nothing_while_the_others_are_busy_is_named(lost: bool) -> None:
    busy, pages = scrapes(8), scrapes(9)

    def show(i: int) -> str:
        page = pages[min(i, 9)].replace('engine="0"', 'engine="1"')
        idle = re.sub(r"(num_requests_running\S+) \S+", r"\1 0", page) if i > 9 else page
        return "" if lost and i > 9 else "".join(re.findall(r"^vllm:.*\n", idle, re.MULTILINE))

    snapshot = play([page + show(i) for i, page in enumerate(busy)])
    assert [each.code for each in snapshot.findings] == ["rank-silent"]
    assert snapshot.findings[0].message.startswith("Engine 1 of http://a-0:8000 has generated no token for 165 s")
    both = [page + "".join(re.findall(r"^vllm:.*\n", other.replace('engine="0"', 'engine="1"'), re.MULTILINE))
            for page, other in zip(busy, pages, strict=True)]  # fmt: skip
    assert play(both).findings == ()


def test_a_canary_of_few_requests_makes_no_outlier_of_the_others() -> None:
    canary = change(GOOD, rate=0.06)
    for seed in range(12):
        large = [watch(GOOD, pool="spec", instance=f"s{i}", seed=90 * seed + i, seconds=45.0) for i in (1, 2)]
        small = watch(canary, pool="spec", instance="c", seed=90 * seed + 3, seconds=45.0)
        assert find_outliers([*large, small]) == ()
    ill = watch(change(GOOD, rate=0.06, gate=1.0), pool="spec", instance="c", seed=3, seconds=300.0)
    assert find_outliers([*large, ill]) == (ill,)


@pytest.mark.parametrize("counts_drafts", [False, None])
def test_pools_that_are_swapped_are_named_where_absence_tells_nothing_too(counts_drafts: bool | None) -> None:
    drafting = watch(GOOD, pool="plain", instance="p", seed=1, seconds=300.0)
    without = watch(change(GOOD, speculates=0.0), pool="spec", instance="s", seed=2, seconds=300.0)
    found = diagnose({"spec": [replace(without, counts_drafts=counts_drafts)]}, None, [drafting])
    assert found[0].code == "pools-swapped"


def test_a_server_that_does_not_speculate_is_never_below_break_even() -> None:
    window = watch(change(GOOD, speculates=0.0), pool="spec", instance="s", seed=2, seconds=300.0)
    assert read_sample(window) is None
    assert read_sample(replace(window, counts_drafts=True)) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_drafts_total"),
        ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_proposed_total"),
        ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_accepted"),
        ("vllm:spec_decode_num_", "vllm:speculation_"),
        ("vllm:generation_tokens_total", "vllm:output_tokens_total"),
    ],
)
def test_a_counter_that_a_release_renames_is_unknown_and_not_zero(old: str, new: str) -> None:
    snapshot = play([page.replace(old, new) for page in scrapes(3, seconds=60.0)])
    (finding,) = snapshot.findings
    assert (finding.code, finding.where) == ("metrics-renamed", "http://a-0:8000")
    assert new not in finding.message or "of no known release" in finding.message
    assert diagnose({"spec": snapshot.recent}) == ()
    assert read_sample(snapshot.recent[0]) is None
