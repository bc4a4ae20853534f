"""All services that one Prometheus recorded: told apart by labels, held against their runs, costliest first."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from tests.support.production import BREAK_EVEN, PLAIN, SPEC, Server
from tests.support.web import Answer, serving_answers

from draftwise.cli.watch_command import watch
from draftwise.watching.fleet import FleetService, list_services, see_fleet
from draftwise.watching.prometheus import PrometheusApi, Selection

NOW_S, SPAN_S = 1_700_000_000.0, 300.0
BORN_S = NOW_S - 4000.0
DEAD = replace(SPEC, positions=(0.0,) * 3)
FALLEN = replace(SPEC, positions=(0.2, 0.06, 0.05))


def record(server: Server, instance: str, **labels: str) -> list[tuple[dict[str, str], float, bool]]:
    """Return the series of a server: labels, value or growth in a second, and whether it grows."""
    labels = {"engine": "0", "instance": instance, "job": "llm", "model_name": "m", "pool": "spec", **labels}
    series = []
    for name, rate in server.count().items():
        sample, _, position = name.partition("{")
        own = {"position": position.split('"')[1]} if position else {}
        series.append(({"__name__": f"vllm:{sample}", **labels, **own}, rate, True))
    gauges = {f"vllm:{name}": value for name, value in server.read_gauges().items()}
    gauges["process_start_time_seconds"] = BORN_S
    return series + [({"__name__": name, **labels}, value, False) for name, value in gauges.items()]


def record_service(
    servers: Sequence[Server], service: str, namespace: str = "prod", *, revisions: Sequence[str] = (), **more: str
) -> list[tuple[dict[str, str], float, bool]]:
    named = {"service": service, "namespace": namespace, **more}
    rows = [
        record(
            each,
            f"{namespace}-{service}-{i}:8000",
            **named,
            revision=revisions[i] if revisions else "r1",
            pool="spec" if each.speculates else "plain",
        )
        for i, each in enumerate(servers)
    ]
    return [row for each in rows for row in each]


def record_run(service: str, revision: str = "r1") -> list[tuple[dict[str, str], float, bool]]:
    values = {
        "breakeven_tokens_per_step": BREAK_EVEN,
        "expected_tokens_per_step": 1.87,
        "expected_coverage": 0.99,
        "configured_k": 3.0,
    }
    labels = {"service": service, "revision": revision}
    return [({"__name__": f"draftwise:{name}", **labels}, value, False) for name, value in values.items()]


class RecordedAnswer:
    """An API that answers queries as Prometheus does: selectors by name and label, `max by` and `count by`."""

    def __init__(self, series: Sequence[tuple[dict[str, str], float, bool]], **told: Sequence[dict]) -> None:
        self.series, self.asked = series, list[str]()
        self.told = {
            "(resets": told.get("turns", ()),
            "(max_over_time": told.get("moves", ()),
            "(changes(process_start": told.get("again", ()),
            "(changes(process_cpu": told.get("copies", ()),
            "max by (instance)": told.get("down", ()),
            "max by (instance, service, namespace) (max": told.get("never", ()),
            "max by (instance, service, namespace) (min": told.get("up", ()),
            "vector": told.get("now", ()),
            "(sum by": told.get("stood", ()),
        }

    def shows(self, labels: Mapping[str, str], at_s: float) -> bool:
        """Say whether a series had samples then."""
        return True

    def __call__(self, path: str, _: Mapping[str, str]) -> Answer:
        given = parse_qs(urlsplit(path).query)
        query, at_s = given["query"][0], float(given.get("time", [str(NOW_S)])[0])
        times = [float(given[each][0]) for each in ("start", "end")] if "start" in given else [at_s]
        self.asked.append(query)
        for begins, rows in self.told.items():
            if query.startswith(begins):
                return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(rows)}})
        start = query.startswith("process_start")
        asked = re.findall(r'__name__([=!]~)("(?:[^"\\]|\\.)*")', query)
        wanted = [(sign == "=~", re.compile(json.loads(name))) for sign, name in asked]
        result = []
        for labels, value, grows in self.series:
            name = labels["__name__"]
            if name.startswith("process_start") if start else all(bool(n.fullmatch(name)) == is_ for is_, n in wanted):
                told = [each for each in times if self.shows(labels, each)]
                shown = [[each, f"{value * (each - BORN_S) if grows else value}"] for each in told]
                if shown:
                    result.append({"metric": labels, "value": shown[0], "values": shown})
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def see(series: Sequence[tuple[dict[str, str], float, bool]], selection: Selection | None = None) -> list[FleetService]:
    async def run(url: str) -> list[FleetService]:
        found = await see_fleet(PrometheusApi(url), selection or Selection(), now_s=NOW_S, span_s=SPAN_S)
        assert {each.name for each in found} == set(await list_services(PrometheusApi(url), selection or Selection()))
        return list(found)

    with serving_answers(RecordedAnswer(series)) as url:
        return asyncio.run(run(url))


def codes(service: FleetService) -> list[str]:
    return [each.code for each in service.found if not each.follows_from]


def test_one_model_in_two_namespaces_and_two_services_are_three_rows() -> None:
    healthy = [SPEC, SPEC, PLAIN]
    series = [
        *record_service(healthy, "chat"),
        *record_service([DEAD, DEAD], "chat", "staging"),
        *record_service(healthy, "code"),
    ]
    first, *others = see(series)
    assert first.name == ("staging", "chat")
    assert codes(first) == ["zero-acceptance"]
    assert {each.name for each in others} == {("prod", "chat"), ("prod", "code")}
    assert all(each.found == () for each in others)


def test_what_costs_most_is_first_and_more_servers_cost_more() -> None:
    series = [
        *record_service([SPEC] * 3, "healthy"),
        *record_service([FALLEN] * 2, "small"),
        *record_service([FALLEN] * 6, "large"),
        *(row for name in ("healthy", "small", "large") for row in record_run(name)),
    ]
    found = see(series)
    assert [each.name[1] for each in found] == ["large", "small", "healthy"]
    assert found[0].cost == pytest.approx(3 * (found[1].cost or 0.0), rel=0.05)
    assert found[2].cost is None
    assert found[0].yardstick.break_even == BREAK_EVEN


def test_a_run_of_another_revision_says_nothing() -> None:
    series = [*record_service([FALLEN] * 2, "chat", revisions=["r2", "r2"]), *record_run("chat", "r1")]
    (found,) = see(series)
    assert found.yardstick.break_even is None
    assert codes(found) == []


def test_old_and_new_revision_are_one_service_and_the_worse_one_is_named() -> None:
    series = record_service([SPEC, SPEC, FALLEN, FALLEN], "chat", revisions=["r1", "r1", "r2", "r2"])
    (found,) = see(series)
    assert codes(found) == ["revisions-differ"]
    assert "revision r2" in found.found[0].message


def test_a_service_whose_data_ended_is_not_healthy() -> None:
    class Ended(RecordedAnswer):
        """The servers of `gone` are scraped no more."""

        def shows(self, labels: Mapping[str, str], at_s: float) -> bool:
            return at_s < NOW_S or labels.get("service") != "gone"

    series = [*record_service([SPEC] * 2, "chat"), *record_service([SPEC] * 2, "gone")]
    with serving_answers(Ended(series)) as url:
        found = asyncio.run(see_fleet(PrometheusApi(url), Selection(), now_s=NOW_S, span_s=SPAN_S))
    assert [(each.name[1], codes(each)) for each in found] == [("gone", ["scrape-gap"]), ("chat", [])]


def test_targets_that_another_job_scrapes_too_count_once() -> None:
    own = record_service([SPEC, SPEC], "chat")
    again = [
        ({k: v for k, v in labels.items() if k not in ("service", "revision", "pool")}, *rest) for labels, *rest in own
    ]
    (found,) = see([*own, *again])  # type: ignore[list-item]
    assert len(found.windows) == 2


def test_without_deploys_labels_the_model_names_a_service() -> None:
    series = [*record(SPEC, "a:8000", model_name="llama"), *record(DEAD, "b:8000", model_name="qwen")]
    assert [each.name for each in see(series)] == [("", "qwen"), ("", "llama")]


def test_names_of_no_release_and_sums_of_no_server_are_no_health() -> None:
    series = [*record_service([SPEC], "chat"), *record_service([DEAD], "other")]
    renamed = [({**labels, "__name__": labels["__name__"].replace("spec_decode_num", "speculation")}, *more)
               for labels, *more in series]  # fmt: skip
    assert [codes(each) for each in see(renamed)] == [["metrics-renamed"]] * 2  # type: ignore[arg-type]
    sums = [({name: label for name, label in labels.items() if name != "instance"}, *more) for labels, *more in series]
    assert [codes(each) for each in see(sums)] == [["server-unread"]] * 2  # type: ignore[arg-type]
    shared = [({**labels, "instance": "otel:8889", "exported_instance": labels["instance"]}, *more)
              for labels, *more in series]  # fmt: skip
    assert see(shared) == see(series)  # type: ignore[arg-type]


def test_starts_that_contradict_the_counters_are_named_and_nothing_is_computed() -> None:
    moves = [{"metric": {"instance": "prod-moved-0:8000", "pool": "spec"}, "value": [NOW_S, "600"]}]
    series = [row for name in ("moved", "well") for row in record_service([SPEC], name)]
    moved, well = _see_told(series, NOW_S, moves=moves)
    assert (codes(moved), moved.windows, codes(well), len(well.windows)) == (["several-behind-url"], (), [], 1)


def test_an_engine_that_generates_nothing_is_named() -> None:
    idle = replace(SPEC, steps=0.0, finished=0.0, running=0.0)
    names = {"service": "chat", "namespace": "prod"}
    series = [
        row for server, engine in ((SPEC, "0"), (idle, "1")) for row in record(server, "a", engine=engine, **names)
    ]
    assert [codes(each) for each in see(series)] == [["rank-silent"]]


def test_histograms_are_not_asked_for() -> None:
    recorded = RecordedAnswer(record_service([SPEC], "chat"))
    with serving_answers(recorded) as url:
        asyncio.run(see_fleet(PrometheusApi(url), Selection(), now_s=NOW_S, span_s=SPAN_S))
    assert len(recorded.asked) == 13
    assert not [query for query in recorded.asked if "bucket" in query]


def test_the_table_names_services_by_what_they_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    idle = replace(SPEC, steps=0.1, finished=0.001, running=0.0)
    series = [*record_service([SPEC] * 2, "good"), *record_service([DEAD] * 2, "bad"), *record_run("bad")]
    series += record_service([idle] * 2, "idle")
    with serving_answers(RecordedAnswer(series)) as url:
        shown = CliRunner().invoke(watch, ["--prometheus", url, "--once"], env={"COLUMNS": "200"})
        as_json = CliRunner().invoke(watch, ["--prometheus", url, "--once", "--json"])
    assert shown.exit_code == as_json.exit_code == 1, shown.output
    head, row, total = shown.output.splitlines()
    assert head.split() == ["servers", "lost", "service", "servers", "tokens/step", "first", "finding"]
    assert "prod/bad" in row
    assert "zero-acceptance" in row
    assert total == "3 services, 2 without a finding, 1 of them with notes (--json shows them)."
    rows = json.loads(as_json.output)["services"]
    assert [(each["service"], each["servers"]) for each in rows] == [("bad", 2), ("idle", 2), ("good", 2)]


def _value(value: float, **labels: str) -> dict:
    return {"metric": labels, "value": [NOW_S, str(value)]}


def _see_told(
    series: Sequence[tuple[dict[str, str], float, bool]], now_s: float = NOW_S, **told: Sequence[dict]
) -> list:
    with serving_answers(RecordedAnswer(series, **told)) as url:
        return list(asyncio.run(see_fleet(PrometheusApi(url), Selection(), now_s=now_s, span_s=SPAN_S)))


def test_addresses_of_several_servers_and_targets_that_are_down_are_named_and_not_read() -> None:
    series = [*record_service([SPEC], "shared"), *record_service([SPEC, SPEC], "half"), *record_service([SPEC], "well")]
    series += record_service([SPEC, SPEC], "cached")
    told = {"turns": [_value(3, instance="prod-shared-0:8000")], "down": [_value(0, instance="prod-half-1:8000")]}
    told["copies"] = [_value(0, instance="prod-cached-1:8000")]
    found = {each.name[1]: each for each in _see_told(series, **told)}
    assert {name: codes(each) for name, each in found.items()} == {
        "shared": ["several-behind-url"],
        "half": ["server-unread"],
        "cached": ["server-unread"],
        "well": [],
    }
    assert [len(found[name].windows) for name in ("shared", "half", "cached", "well")] == [0, 1, 1, 1]
    # An API that answers with something else says nothing of a target.
    odd = {"turns": [_value(1e9, instance="prod-well-0:8000")], "down": [_value(1, instance="prod-well-0:8000")]}
    assert codes(next(each for each in _see_told(series, **odd) if each.name[1] == "well")) == []


def test_targets_that_never_answered_and_servers_that_die_again_and_again_are_named() -> None:
    series = [*record_service([SPEC], "well"), *record_service([SPEC, SPEC], "loop")]
    told = {
        "again": [_value(4, instance="prod-loop-1:8000")],
        "down": [_value(0, instance="new:8000")],
        "never": [_value(0, instance="new:8000", service="gone", namespace="prod")],
    }
    found = {each.name[1]: each for each in _see_told(series, **told)}
    said = {"well": [], "loop": ["engine-dies"], "gone": ["server-unread"]}
    assert {name: codes(each) for name, each in found.items()} == said
    assert len(found["loop"].windows) == 2


def test_an_engine_that_hangs_within_the_window_is_named_and_its_server_judged() -> None:
    stood = [_value(5, instance="prod-half-1:8000", engine="1"), _value(1e9, instance="prod-well-0:8000")]
    series = [*record_service([SPEC], "well"), *record_service([SPEC, SPEC], "half")]
    first, second = _see_told(series, stood=stood)
    assert (codes(first), codes(second)) == (["engine-hung"], [])
    assert first.found[0].message.startswith("prod-half-1:8000, engine 1 has 5 requests in flight")
    bare = [each for each in series if not each[0]["__name__"].startswith("process_")]
    said = [_see_told(rows, stood=stood)[0].found[0].message for rows in (series, bare)]
    assert ["a cache" in each for each in said] == [False, True]
    assert len(first.windows) == 2


def test_a_target_that_is_scraped_and_shows_no_counters_is_named() -> None:
    up = [_value(1, instance=name, service="half", namespace="prod") for name in ("prod-half-0:8000", "mute:8000")]
    (found,) = _see_told([*record_service([SPEC], "half")], up=up)
    assert [(each.code, each.where) for each in found.found] == [("server-unread", "mute:8000")]
    assert "without --disable-log-stats" in found.found[0].message


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    ("tokens", "steps", "running", "waiting", "is_hung"),
    [
        ("900x20", "90x20", "2x20", "7x20", True),
        ("900x20", "90x20", "0x20", "7x20", True),
        ("900x20", "90x20", "0x20", "0x20", False),
        ("900x20", "90+5x20", "2x20", "0x20", False),  # a long prompt
        ("900+9x20", "90+5x20", "2x20", "0x20", False),
    ],
)
def test_the_query_for_stalls_finds_one_engine_of_a_server(
    tokens: str, steps: str, running: str, waiting: str, is_hung: bool, tmp_path: Path
) -> None:
    recorded = RecordedAnswer(record_service([SPEC], "chat"))
    with serving_answers(recorded) as url:
        asyncio.run(see_fleet(PrometheusApi(url), Selection(), now_s=NOW_S, span_s=SPAN_S))
    (query,) = (each for each in recorded.asked if each.startswith("(sum by"))
    names = ("generation_tokens_total", "iteration_tokens_total_count", "num_requests_running", "num_requests_waiting")
    values = {"0": ("100+9x20", "10+5x20", "2x20", "0x20"), "1": (tokens, steps, running, waiting)}
    series = [
        {"series": f'vllm:{name}{{instance="a",engine="{engine}"}}', "values": text}
        for engine, texts in values.items()
        for name, text in zip(names, texts, strict=True)
    ]
    found = [{"labels": '{instance="a",engine="1"}', "value": 7 if running == "0x20" else 2}] if is_hung else []
    test = {"expr": query, "eval_time": "4m", "exp_samples": found}
    tests = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": [test]}]}
    (tmp_path / "test.yaml").write_text(json.dumps(tests))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_time_is_that_of_prometheus() -> None:
    series = [*record_service([SPEC], "a"), *record_service([SPEC], "b")]
    for off_s in (-3600.0, 3600.0):
        found = _see_told(series, NOW_S + off_s, now=[_value(NOW_S)])
        assert [window.start_s + window.duration_s for each in found for window in each.windows] == [NOW_S] * 2


@pytest.mark.parametrize(("server", "said"), [(SPEC, {"counter-reset"}), (DEAD, {"counter-reset", "zero-acceptance"})])
def test_servers_that_began_within_the_window_are_judged_since_then(server: Server, said: set[str]) -> None:
    class Replaced(RecordedAnswer):
        """The old server is there at the begin, the new one at the end."""

        def shows(self, labels: Mapping[str, str], at_s: float) -> bool:
            return (at_s < NOW_S) == (labels["instance"] == "old:8000")

    named = {"service": "chat", "namespace": "prod", "revision": "r1"}
    fresh = [
        (labels, NOW_S - 120.0 if labels["__name__"].startswith("process") else value, grows)
        for labels, value, grows in record(server, "new:8000", **named)
    ]
    with serving_answers(Replaced([*record(SPEC, "old:8000", **named), *fresh])) as url:
        (found,) = asyncio.run(see_fleet(PrometheusApi(url), Selection(), now_s=NOW_S, span_s=SPAN_S))
    assert {each.code for each in found.found} == said
    assert [(window.instance, window.duration_s) for window in found.windows] == [("new:8000", 120.0)]
