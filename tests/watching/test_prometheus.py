"""What a Prometheus recorded, put together into the windows that looks at the servers would have given."""

import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.production import PLAIN, SPEC, Server
from tests.support.spellings import SPELLINGS
from tests.support.web import Answer, serving_answers

from draftwise.verbs.diagnosing import add_diagnoses
from draftwise.watching.prometheus import MUTE, PrometheusWatcher, Selection, select
from draftwise.watching.watcher import Snapshot

NOW_S, STEP_S = 1_700_000_000, 15


def record(server: Server, pool: str, instance: str, *, restart_s: int | None = None, ray: bool = False) -> list[dict]:
    """Return the series of a server over five minutes, as the API gives them."""
    times = range(NOW_S - 300, NOW_S + 1, STEP_S)
    began = NOW_S - 4000 if restart_s is None else restart_s
    series = []
    rates = {**server.count(), **{f"={name}": value for name, value in server.read_gauges().items()}}
    for name, rate in rates.items():
        plain, _, label = name.lstrip("=").partition("{")
        sample = f"ray_vllm_{plain}" if ray else f"vllm:{plain}"
        labels = {
            "__name__": sample,
            "engine": "0",
            "instance": instance,
            "job": "llm",
            "model_name": "m",
            "pool": pool,
        }
        if label:
            labels["position"] = label.split('"')[1]
        values = []
        for at in times:
            since = began if at >= began else NOW_S - 4000
            values.append([at, str(rate if name.startswith("=") else rate * (at - since))])
        series.append({"metric": labels, "values": values})
    return series


def test_what_was_before_a_roll_out_is_left_out() -> None:
    asked: list[str] = []

    def answer(path: str, _: dict[str, str]) -> Answer:
        asked.append(parse_qs(urlsplit(path).query)["query"][0])
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})

    async def run(url: str) -> None:
        watcher = PrometheusWatcher(url, selection=Selection(model="m"), now=lambda: NOW_S)
        for since_s in (None, NOW_S - 400, NOW_S - 40, NOW_S + 5):
            await watcher.look(since_s=since_s)

    with serving_answers(answer) as url:
        asyncio.run(run(url))
    spans = [query.rpartition("[")[2] for query in asked if query.endswith("s]")]
    assert spans == ["300s]", "300s]", "40s]", "1s]"]


def watch(
    series: list[dict],
    starts: list[dict] = (),
    *,
    turns: list[dict] = (),
    moves: list[dict] = (),
    down: list[dict] = (),
    again: list[dict] = (),
    answers: list[dict] = (),
    copies: list[dict] = (),
    model: str | None = "m",
    now_s: float = NOW_S,
    prometheus_s: float = NOW_S,
) -> tuple[Snapshot, list[str]]:
    """Return what is seen, and what was asked."""
    asked: list[str] = []

    def named(query: str) -> list[dict]:
        wanted = re.compile(json.loads(re.search(r'__name__=~("(?:[^"\\]|\\.)*")', query)[1]))
        return [each for each in series if wanted.fullmatch(each["metric"]["__name__"])]

    def answer(path: str, _: dict[str, str]) -> Answer:
        query = parse_qs(urlsplit(path).query)["query"][0]
        asked.append(query)
        if query == "vector(time())":
            return 200, json.dumps(
                {"status": "success", "data": {"result": [{"metric": {}, "value": [0, prometheus_s]}]}}
            )
        if query.startswith("(changes(process_cpu"):
            return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(copies)}})
        vectors = turns if "resets(" in query else again if "changes(" in query else starts
        if query.startswith("increase(http_requests_total"):
            return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(answers)}})
        vectors = moves if query.startswith("(max_over_time(process_start") else vectors
        result = list(vectors) if "process_start" in query else list(down) if query.startswith("up{") else named(query)
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})

    with serving_answers(answer) as url:
        return asyncio.run(look(url, model, now_s)), asked


def relabel(series: dict, **labels: str | None) -> dict:
    """Return a series with other labels; None takes one away."""
    return {**series, "metric": {k: v for k, v in {**series["metric"], **labels}.items() if v is not None}}


async def look(url: str, model: str | None = None, now_s: float = NOW_S) -> Snapshot:
    watcher = PrometheusWatcher(url, selection=Selection(model=model), now=lambda: now_s)
    snapshots = watcher.snapshots(1.0)
    try:
        return await anext(snapshots)
    finally:
        await snapshots.aclose()


def test_who_began_again_and_again_and_who_refused_requests_is_asked_for() -> None:
    series = [*record(SPEC, "spec", "a:8000"), *record(SPEC, "spec", "b:8000")]
    at = {"pool": "spec", "job": "llm", "instance": "b:8000"}
    counted = {"2xx": 90.0, "4xx": 7.0, "5xx": 2.0}
    answers = [{"metric": at | {"status": status}, "value": [NOW_S, str(n)]} for status, n in counted.items()]
    snapshot, _ = watch(series, again=[{"metric": at, "value": [NOW_S, "4"]}], answers=answers)
    assert [(each.code, each.where) for each in snapshot.findings] == [("engine-dies", "b:8000")]
    first, second = snapshot.of("spec")
    assert (first.sums.refused, first.sums.broken) == (None, None)
    assert (second.sums.refused, second.sums.broken) == (7.0, 2.0)


def test_recorded_counters_are_the_windows_of_each_server() -> None:
    series = [*record(SPEC, "spec", "a:8000"), *record(SPEC, "spec", "b:8000"), *record(PLAIN, "plain", "c:8000")]
    starts = [{"metric": {"instance": "a:8000", "pool": "spec"}, "value": [NOW_S, str(NOW_S - 4000)]}]
    snapshot, _ = watch(series, starts)
    assert snapshot.findings == ()
    assert snapshot.pools == ("spec", "plain")
    first, second = snapshot.of("spec")
    assert (first.instance, second.instance) == ("a:8000", "b:8000")
    assert first.duration_s == 300.0
    assert first.tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-3)
    assert first.rate_per_pos == pytest.approx(SPEC.positions, rel=1e-3)
    assert first.load.running == pytest.approx(SPEC.running)
    assert (first.uptime_s, second.uptime_s) == (4000.0, None)
    assert snapshot.of("plain")[0].counts_drafts is False


def test_drafts_that_a_release_counts_under_other_names_are_unknown_and_not_off() -> None:
    series = [*record(SPEC, "spec", "a:8000"), *record(PLAIN, "plain", "c:8000")]
    for each in series:
        each["metric"]["__name__"] = each["metric"]["__name__"].replace("spec_decode_num", "spec_decode_count")
    snapshot, asked = watch(series)
    assert [(each.code, each.where) for each in snapshot.findings] == [("metrics-renamed", "a:8000")]
    assert "vllm:spec_decode_count_drafts" in snapshot.findings[0].message
    assert [window.counts_drafts for window in snapshot.recent] == [None, False]
    assert sum("(spec|draft|accept)" in query for query in asked) == 1


def moved(seconds: float) -> list[dict]:
    return [{"metric": {"instance": "a:8000", "pool": "spec"}, "value": [NOW_S, str(seconds)]}] if seconds else []


@pytest.mark.parametrize(("restart_s", "moved_s"), [(None, 600), (None, 3900), (NOW_S - 100, 0)])
def test_a_start_that_contradicts_the_counters_is_said_and_nothing_is_computed(
    restart_s: int | None, moved_s: float
) -> None:
    starts = [{"metric": {"instance": "a:8000", "pool": "spec"}, "value": [NOW_S, str(NOW_S - 3900)]}]
    snapshot, _ = watch(record(SPEC, "spec", "a:8000", restart_s=restart_s), starts, moves=moved(moved_s))
    assert ([each.code for each in snapshot.findings], snapshot.recent) == (["several-behind-url"], ())
    assert "contradict each other" in snapshot.findings[0].message


def test_a_restart_within_is_counted_from_its_start() -> None:
    restarted = NOW_S - 100
    starts = [{"metric": {"instance": "a:8000", "pool": "spec"}, "value": [NOW_S, str(restarted)]}]
    snapshot, _ = watch(record(SPEC, "spec", "a:8000", restart_s=restarted), starts, moves=moved(3900))
    (window,) = snapshot.recent
    assert window.restarted
    assert window.tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-2)
    assert window.uptime_s == 100.0


def test_names_of_rays_exporter_are_read_the_same() -> None:
    (window,) = watch(record(SPEC, "spec", "a:8080", ray=True))[0].recent
    assert window.tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-3)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("also", [False, True], ids=["alone", "with the originals"])
def test_recorded_names_in_another_spelling_are_the_same_names(spelling: str, also: bool) -> None:
    series = [*record(SPEC, "spec", "a:8000"), *record(PLAIN, "plain", "p:8000")]
    changed = [relabel(each, __name__=SPELLINGS[spelling](each["metric"]["__name__"])) for each in series]
    drafts = lambda seen: [replace(each, counts_drafts=each.counts_drafts or None) for each in seen.recent]  # noqa: E731
    names = {each["metric"]["__name__"] for each in changed}
    originals = [each for each in series if also and each["metric"]["__name__"] not in names]
    snapshot, _ = watch(changed + originals)
    assert (snapshot.findings, drafts(snapshot)) == ((), drafts(watch(series)[0]))


def test_a_spelling_that_is_read_in_part_is_no_health() -> None:
    for name, new in (("spec_decode_num", "speculation"), ("num_accepted", "num_taken"), ("_total", ":rate5m")):
        series = record(SPEC, "spec", "a:8000")
        changed = [
            relabel(each, __name__=each["metric"]["__name__"].replace(":", "_").replace(name, new)) for each in series
        ]
        snapshot, _ = watch(changed)
        assert [each.code for each in snapshot.findings] == ["metrics-renamed"], new
        assert all(window.tokens_per_step is None for window in snapshot.recent)


def test_rays_names_without_drafts_are_unknown_after_thousands_of_tokens() -> None:
    for pool, codes in (("spec", ["metrics-renamed"]), ("plain", [])):
        found = watch(record(PLAIN, pool, "a:8000", ray=True))[0].findings
        assert [each.code for each in found] == codes


def test_servers_are_told_apart_behind_a_collector_on_a_node_and_without_an_instance() -> None:
    pair = [record(each, "spec", name) for each, name in ((SPEC, "a:8000"), (DEAD, "b:8000"))]
    expected, _ = watch([*pair[0], *pair[1]])
    for own in ("exported_instance", "pod"):
        for shown in ({"instance": "node-1"}, {"instance": None}) if own == "pod" else ({"instance": "otel:8889"},):
            series = [relabel(row, **{own: row["metric"]["instance"]} | shown) for rows in pair for row in rows]
            assert watch(series)[0] == expected


def test_series_that_name_no_server_are_not_read() -> None:
    pair = [record(each, "spec", name) for each, name in ((SPEC, "a:8000"), (DEAD, "b:8000"))]
    shared = [relabel(row, instance="node-1:9100", zone=str(i)) for i, rows in enumerate(pair) for row in rows]
    snapshot, _ = watch(shared)
    assert ([each.code for each in snapshot.findings], snapshot.recent) == (["several-behind-url"], ())
    sums = [relabel(row, instance=None) for row in pair[0]]
    snapshot, _ = watch(sums)
    assert ([each.code for each in snapshot.findings], snapshot.recent) == (["server-unread"], ())
    assert watch([*sums, *pair[0]])[0] == watch(pair[0])[0]


@pytest.mark.parametrize("fast_s", [0, 200])
def test_counters_that_ended_are_no_present_ones_whatever_up_says(fast_s: int) -> None:
    """Scrapes ended 200 s ago, unless this machine's clock is fast by as much."""
    snapshot, _ = watch(record(SPEC, "spec", "a:8000"), now_s=NOW_S + 200, prometheus_s=NOW_S + 200 - fast_s)
    assert [each.code for each in snapshot.findings] == ([] if fast_s else ["server-unread"])


def test_an_engine_without_requests_among_busy_ones_is_named() -> None:
    idle = replace(SPEC, steps=0.0, finished=0.0, running=0.0)
    servers = ((SPEC, "0"), (idle, "1"), (SPEC, "2"))
    series = [relabel(row, engine=engine) for server, engine in servers for row in record(server, "spec", "a:8000")]
    (found,) = watch(series)[0].findings
    assert (found.code, found.message[:20]) == ("rank-silent", "Engine 1 of a:8000 h")
    quiet = [each for each in series if "num_requests_running" not in each["metric"]["__name__"]]
    assert watch(quiet)[0].findings == ()


def test_the_model_is_asked_for_and_needed_where_there_are_several() -> None:
    series = record(SPEC, "spec", "a:8000")
    _, asked = watch(series, model='na"me')
    assert all('model_name="na\\"me"' in query for query in asked)
    other = [{**each, "metric": {**each["metric"], "model_name": "other"}} for each in series]
    snapshot, asked = watch([*series, *other], model=None)
    assert "model_name" not in asked[0]
    assert "Choose one with --model: m, other" in snapshot.findings[0].message


def test_a_start_that_went_back_is_several_servers_at_one_address() -> None:
    series = [*record(SPEC, "spec", "a:8000"), *record(SPEC, "spec", "b:8000")]
    snapshot, _ = watch(series, turns=[{"metric": {"instance": "a:8000", "pool": "spec"}, "value": [NOW_S, "1"]}])
    assert [(each.code, each.where) for each in snapshot.findings] == [("several-behind-url", "a:8000")]
    assert [window.instance for window in snapshot.recent] == ["b:8000"]


def test_a_server_that_dies_again_and_again_is_not_several_at_one_address() -> None:
    series = record(SPEC, "spec", "a:8000")
    for each in series:
        if "num_requests" not in each["metric"]["__name__"]:  # began anew every minute, and the last time 30 s ago
            each["values"] = [[at, str(float(value) % 6000)] for at, value in each["values"]]
    assert {each.code for each in watch(series)[0].findings} == {"several-behind-url"}
    at = {"pool": "spec", "instance": "a:8000"}
    starts = [{"metric": at, "value": [NOW_S, str(NOW_S - 30)]}]
    snapshot, _ = watch(
        series, starts, again=[{"metric": at, "value": [NOW_S, "5"]}], moves=[{"metric": at, "value": [NOW_S, "240"]}]
    )
    assert [(each.code, each.where) for each in snapshot.findings] == [("engine-dies", "a:8000")]


def roll_out(old: Server, new: Server) -> Snapshot:
    """Return what is seen of a service whose only server was replaced two minutes ago."""
    series = [*record(old, "spec", "a:8000"), *record(new, "spec", "b:8000")]
    for each in series:
        is_old = each["metric"]["instance"] == "a:8000"
        each["values"] = [pair for pair in each["values"] if (pair[0] < NOW_S - 120) is is_old]
    return watch(series)[0]


DEAD = replace(SPEC, positions=(0.0, 0.0, 0.0))


def test_what_a_replaced_server_did_is_no_part_of_the_pool() -> None:
    snapshot = roll_out(SPEC, SPEC)
    (window,) = snapshot.serving("spec")
    assert (len(snapshot.of("spec")), window.instance) == (2, "b:8000")
    assert window.output_tokens_per_s == pytest.approx(SPEC.generated, rel=1e-2)


@pytest.mark.parametrize(
    ("old", "new", "codes"), [(DEAD, SPEC, set()), (SPEC, DEAD, {"zero-acceptance"}), (SPEC, SPEC, set())]
)
def test_an_illness_ends_with_the_server_that_was_replaced(old: Server, new: Server, codes: set[str]) -> None:
    found = add_diagnoses(roll_out(old, new), None, None).findings
    assert {each.code for each in found if each.severity != "info" and not getattr(each, "follows_from", "")} >= codes
    assert bool(codes) or found == ()


def test_a_server_that_is_worse_than_the_replaced_one_is_named() -> None:
    found = add_diagnoses(roll_out(SPEC, replace(SPEC, positions=(0.2, 0.06, 0.05))), None, None).findings
    assert ("replica-outlier", "b:8000") in [(each.code, each.where) for each in found]


def test_addresses_that_two_clusters_share_are_no_reading() -> None:
    series = record(SPEC, "spec", "a:8000")
    east, west = ([{**each, "metric": {**each["metric"], "cluster": name}} for each in series] for name in ("e", "w"))
    snapshot, _ = watch([*east, *west])
    assert [each.code for each in snapshot.findings] == ["server-unread"]
    assert "in several clusters" in snapshot.findings[0].message
    assert watch(east)[0].findings == ()


def test_a_target_that_cannot_be_scraped_is_unread_and_one_that_was_replaced_is_not() -> None:
    gone = record(SPEC, "spec", "b:8000")
    early = [{**each, "values": [pair for pair in each["values"] if pair[0] <= NOW_S - 120]} for each in gone]
    series = [*record(SPEC, "spec", "a:8000"), *early]
    replaced, asked = watch(series)
    assert replaced.findings == ()
    assert asked[-1] == 'up{instance=~"b:8000"} == 0'
    unread, _ = watch(series, down=[{"metric": {"instance": "b:8000", "pool": "spec"}, "value": [NOW_S, "0"]}])
    assert [(each.code, each.where) for each in unread.findings] == [("server-unread", "b:8000")]


def test_a_target_that_two_jobs_scrape_is_read_once() -> None:
    own = [
        {**each, "metric": {**each["metric"], "service": "chat"}}
        for server, pool, name in ((SPEC, "spec", "a"), (PLAIN, "plain", "p"))
        for each in record(server, pool, name)
    ]
    left_out = ("pool", "service")
    bare = [{**row, "metric": {k: v for k, v in row["metric"].items() if k not in left_out}} for row in own]
    again = [{**row, "metric": {**row["metric"], "job": "pods"}} for row in own]
    pair = [{**row, "metric": {**row["metric"], "prometheus_replica": "b"}} for row in own]
    expected, _ = watch(own)
    for more in (bare, again, pair):
        assert watch([*own, *more])[0].recent == expected.recent


def test_no_data_is_a_finding_and_not_health() -> None:
    snapshot, _ = watch([])
    assert [finding.code for finding in snapshot.findings] == ["server-unread"]
    assert "recorded no counters" in snapshot.findings[0].message


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, json.dumps({"status": "error", "error": "parse error"})), "rejects the query: parse error"),
        ((200, "<html>"), "which is not Prometheus' API"),
        ((200, "[]"), "which is not Prometheus' API"),
        ((503, ""), "answers 503"),
    ],
)
def test_what_is_no_answer_of_prometheus_is_a_finding(answer: Answer, said: str) -> None:
    with serving_answers(lambda path, headers: answer) as url:
        snapshot = asyncio.run(look(url))
    assert said in snapshot.findings[0].message
    assert snapshot.findings[0].where == url


def test_a_prometheus_that_is_not_there_is_a_finding() -> None:
    snapshot = asyncio.run(look("http://127.0.0.1:1"))
    assert "does not answer" in snapshot.findings[0].message


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_queries(tmp_path: Path) -> None:
    _, asked = watch(record(SPEC, "spec", "a:8000"))
    expressions = [re.sub(r"^(\{.*\[\d+s\])$", r"count_over_time(\1)", query) for query in asked]
    rules = [{"record": f"r:{number}", "expr": each} for number, each in enumerate(expressions)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_target_that_passes_on_the_counters_of_servers_is_not_mute(tmp_path: Path) -> None:
    selection = Selection(service="chat")
    of_all = 'job="llm",service="chat",pool="spec"'
    series = [f'up{{{of_all},instance="{name}"}}' for name in ("collector", "mute")]
    series.append(f'vllm:generation_tokens_total{{{of_all},instance="collector",exported_instance="a:8000"}}')
    expression = MUTE.format(selection.of_targets, "instance", select(selection, {"generation_tokens"}))
    expected = [{"labels": '{instance="mute"}', "value": 1}]
    case = {
        "interval": "15s",
        "input_series": [{"series": each, "values": "1x20"} for each in series],
        "promql_expr_test": [{"expr": expression, "eval_time": "4m", "exp_samples": expected}],
    }
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": [], "tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("asked", "value"), [("(max_over_time", "0"), ("(min_over_time", "1")])
def test_a_target_that_never_answered_or_shows_no_counters_is_unread(asked: str, value: str) -> None:
    def answer(path: str, _: dict[str, str]) -> Answer:
        query = parse_qs(urlsplit(path).query)["query"][0]
        never = (
            [{"metric": {"instance": "new:8000", "pool": "spec"}, "value": [NOW_S, value]}] if asked in query else []
        )
        is_named = "__name__=~" in query and "process_start" not in query and "http_requests" not in query
        result = never if query.startswith("max by") else record(SPEC, "spec", "a:8000") if is_named else []
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})

    async def run(url: str) -> Snapshot:
        return await PrometheusWatcher(url, selection=Selection(service="chat"), now=lambda: NOW_S).look()

    with serving_answers(answer) as url:
        snapshot = asyncio.run(run(url))
    assert [(each.code, each.where) for each in snapshot.findings] == [("server-unread", "new:8000")]
    assert [window.instance for window in snapshot.recent] == ["a:8000"]


def test_nothing_is_computed_from_a_page_that_comes_from_a_cache() -> None:
    still = replace(SPEC, steps=0.0, finished=0.0, prompt_tokens=0.0)
    series = [*record(SPEC, "spec", "a:8000"), *record(still, "spec", "b:8000")]
    place = {"metric": {"instance": "b:8000", "pool": "spec", "job": "llm"}, "value": [NOW_S, "0"]}
    for copies, code in (((), "engine-hung"), ([place], "server-unread")):
        snapshot, _ = watch(series, copies=copies)
        assert [(each.code, each.where) for each in snapshot.findings] == [(code, "b:8000")]
        assert len(snapshot.windows) == 2 - len(copies)
        assert "a cache" in snapshot.findings[0].message  # where nothing tells of the process, it may also answer


def test_a_service_is_selected_by_the_labels_that_deploy_puts_on() -> None:
    asked: list[str] = []

    def answer(path: str, _: dict[str, str]) -> Answer:
        asked.append(parse_qs(urlsplit(path).query)["query"][0])
        series = [*record(SPEC, "spec", "a:8000"), *record(SPEC, "spec", "b:8000")]
        for index, each in enumerate(series):
            each["metric"]["namespace"] = "prod" if index < len(series) // 2 else "staging"
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})

    async def run(url: str) -> Snapshot:
        return await PrometheusWatcher(url, selection=Selection(service="chat"), now=lambda: NOW_S).look()

    with serving_answers(answer) as url:
        snapshot = asyncio.run(run(url))
    assert 'service="chat"' in asked[0]
    assert "recorded several services. Choose one with --namespace: prod, staging." in snapshot.findings[0].message
