"""`draftwise ui` over HTTP: what it shows, what it refuses, and what it costs."""

import json
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from draftwise.verbs.listed_runs import list_runs
from draftwise.verbs.pages.answers import answer
from draftwise.verbs.pages.pages_app import _draw_loads, make_app
from draftwise.verbs.ui import ui

DOCUMENTS = Path(__file__).parents[1] / "core" / "documents"
TOKEN = "secret"
COMMAND = """vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""


def make_runs(folder: Path, count: int) -> Path:
    summary = json.loads((DOCUMENTS / "run" / "summary.json").read_text())
    for index in range(count):
        run = folder / f"run-{index:04}"
        run.mkdir(parents=True)
        for name in ("manifest.json", "turns.jsonl"):
            shutil.copy(DOCUMENTS / "run" / name, run)
        summary["context"]["started"] = f"2026-{1 + index % 12:02}-01T00:00:00"
        summary["scope_values"]["model"] = f"org/model-{index % 3}"
        (run / "summary.json").write_text(json.dumps(summary))
    return folder


def make_run_of_one_load(folder: Path) -> None:
    """Two workloads and two candidates at one load; one interval is not known."""
    shutil.copytree(DOCUMENTS / "run", folder)
    summary = json.loads((folder / "summary.json").read_text())
    (first, *_) = summary["comparisons"]
    summary["comparisons"] = [
        first | {
            "workload": workload, "candidate": candidate, "temperature": 0.0,
            "load": {"kind": "closed", "concurrency": 4}, "deciding": {"value": value, "low": low, "high": high},
        }
        for workload, candidate, value, low, high in (
            ("chat", "ngram", 0.9, 0.8, 1.0), ("chat", "eagle3", 1.4, 1.3, 1.5),
            ("code", "ngram", 1.6, 1.2, 2.1), ("code", "eagle3", 1.25, 0.0, None),
        )
    ]  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def runs(tmp_path):
    folder = make_runs(tmp_path / "runs", 3)
    shutil.copytree(DOCUMENTS / "run", folder / "whole")
    return folder


@pytest.fixture
def client(runs):
    app, jobs = make_app([runs], TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8765", headers={"x-csrf-token": TOKEN}) as client:
        client.jobs = jobs
        yield client
    jobs.stop_all(0)


class Counting(BaseHTTPRequestHandler):
    """A page of vLLM's counters that grow."""

    def do_GET(self):
        grown = int(100 * time.monotonic())
        names = {"num_drafts": 1, "num_draft_tokens": 3, "num_accepted_tokens": 2}
        rows = [f'vllm:spec_decode_{name}_total{{model_name="m"}} {grown * by}' for name, by in names.items()]
        rows.append(f'vllm:generation_tokens_total{{model_name="m"}} {3 * grown}')
        body = "\n".join([*rows, ""]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def counting():
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8765",
        "",
        "169.254.169.254",
        "[::2]",
        "[bad",
        "a@127.0.0.1",
        "127.0.0.1:x",
    ],
)
@pytest.mark.parametrize("path", ["/", "/judge", "/static/pages.js", "/run/x/report"])
def test_other_host_names_are_refused(client, host, path):
    assert client.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("path", ["/api/answer/check", "/api/forecast", "/api/start/watch", "/api/jobs/x/stop"])
@pytest.mark.parametrize(
    "headers",
    [
        {"x-csrf-token": ""},
        {"x-csrf-token": "other"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[bad"},
    ],
    ids=str,
)
def test_writes_need_the_token_of_a_page(client, path, headers):
    assert client.post(path, json={}, headers=headers).status_code == 403
    assert client.get(path).status_code == 405


def test_body_is_bounded(client):
    assert client.post("/api/answer/check", content=b" " * 2_000_001).status_code == 413
    assert client.post("/api/answer/check", content=iter([b"{}"])).status_code == 411


def test_every_page_is_shown_without_scripts_of_others(client):
    for path in ("/", "/compare", "/forecast", "/watch", "/judge"):
        shown = client.get(path)
        assert shown.status_code == 200
        assert "script-src 'self'" in shown.headers["content-security-policy"]
        assert "://" not in shown.text.replace("http://www.w3.org", ""), path


@pytest.mark.parametrize("path", ["/run/x", "/run/x/report", "/static/../app.py", "/static/%2e%2e/app.py", "/nothing"])
def test_what_is_not_there_is_not_found(client, path):
    assert client.get(path).status_code == 404


def test_filters(client):
    assert "4 of 4 runs" in client.get("/").text
    assert "1 of 4 runs" in client.get("/", params={"model": "org/model-1"}).text
    assert "0 of 4 runs" in client.get("/", params={"text": "<script>alert(1)</script>"}).text
    assert "<script>alert" not in client.get("/", params={"text": "<script>alert(1)</script>"}).text


def test_a_thousand_runs_are_read_once(tmp_path, monkeypatch):
    folder = make_runs(tmp_path / "many", 1000)
    listed = list_runs([folder])
    assert len(listed) == 1000
    monkeypatch.setattr("draftwise.verbs.listed_runs._read", lambda path: pytest.fail(f"{path} is read again"))
    assert list_runs([folder]) == listed
    assert list_runs([folder, folder / "run-0001"]) == listed


def test_a_changed_summary_is_read_again(runs):
    before = list_runs([runs])
    (runs / "run-0000" / "summary.json").write_text("{")
    after = list_runs([runs])
    assert [each.decision == "" for each in after].count(True) == [each.decision == "" for each in before].count(
        True
    ) + 1


NAMES = st.sampled_from(["comparisons", "context", "scope_values", "deciding", "value", "verdict", "hardware"])
VALUES = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(VALUES, lambda each: st.lists(each) | st.dictionaries(NAMES, each)))
def test_no_summary_breaks_the_list(tmp_path_factory, summary):
    folder = make_runs(tmp_path_factory.mktemp("any"), 1)
    (folder / "run-0000" / "summary.json").write_text(json.dumps(summary))
    assert len(list_runs([folder])) == 1


def test_a_run_and_its_report(client, runs):
    (key,) = [each.key for each in list_runs([runs]) if each.name == "whole"]
    shown = client.get(f"/run/{key}")
    assert "leave code plain" in shown.text
    assert "inconclusive" in shown.text
    assert "data-chart" in shown.text
    assert client.get(f"/run/{key}/report").status_code == 404
    assert follow(client, client.post("/api/start/report", json={"run": key}))[-1] == {"kind": "done", "value": False}
    report = client.get(f"/run/{key}/report")
    assert report.headers["content-security-policy"].startswith("sandbox;")


def test_two_runs(client, runs):
    keys = [each.key for each in list_runs([runs]) if each.name in ("whole", "run-0000")]
    shutil.copy(runs / "whole" / "requests.jsonl", runs / "run-0000")
    for name in ("workload-code.jsonl", "settled.jsonl"):
        shutil.copy(runs / "whole" / name, runs / "run-0000")
    shown = client.get("/compare", params={"before": keys[0], "after": keys[1]})
    assert "What differs" in shown.text or "Verdicts" in shown.text


def test_a_comparison_that_cannot_be_is_a_sentence(client, runs):
    (runs / "run-0001" / "manifest.json").write_text("{}")
    keys = [each.key for each in list_runs([runs]) if each.name in ("whole", "run-0001")]
    shown = client.get("/compare", params={"before": keys[0], "after": keys[1]})
    assert shown.status_code == 200
    assert 'class="bad"' in shown.text


def test_forms_answer_as_the_verbs_do(client):
    fields = {"sources": COMMAND}
    assert client.post("/api/answer/check", json=fields).text == answer("check", fields)


@pytest.mark.parametrize(
    "fields", [{}, {"sources": 5}, {"nothing": 1}, {"sources": COMMAND, "vllm": "0.0.1"}, [], {"name": "-"}]
)
@pytest.mark.parametrize("verb", ["check", "upgrade", "size", "pick", "explain", "deploy", "../check"])
def test_mistakes_are_findings(client, verb, fields):
    given = client.post(f"/api/answer/{verb}", json=fields)
    if given.status_code != 404:
        found = given.json()
        assert isinstance(found, list) or found["error"][0]["message"]


def test_forecast_follows_the_context(client):
    asked = {name: str(DOCUMENTS / f"{name}.json") for name in ("profile", "calibration")}
    first, second = (
        client.post("/api/forecast", json=asked | {"prompt_tokens": tokens}).json() for tokens in (100, 20000)
    )
    assert first["traffic"]["prompt_tokens"] == 100
    assert first["cells"] != second["cells"]
    assert "error" in client.post("/api/forecast", json={}).json()
    assert "error" in client.post("/api/forecast", json=asked | {"profile": "/no/such"}).json()
    assert not (DOCUMENTS / "x").exists()


def follow(client, started, stop_after=None):
    """Return the events of a job, which is stopped after so many updates."""
    job, events = started.json()["job"], []
    with client.stream("GET", f"/api/jobs/{job}/events") as sent:
        for line in sent.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
                if stop_after is not None and sum(each["kind"] == "update" for each in events) >= stop_after:
                    client.jobs.get(job).stop()
    return events


def test_watch_goes_on_until_it_is_stopped(client, counting):
    asked = {"urls": [counting], "interval_s": 0.2}
    events = follow(client, client.post("/api/start/watch", json=asked), stop_after=2)
    assert events[-1] == {"kind": "done", "value": True}
    assert next(each for each in events if each["kind"] == "update")["value"]["pools"]


@pytest.mark.parametrize(
    "fields", [{}, {"urls": ["nonsense://"]}, {"urls": ["http://x"], "interval_s": -1}, {"urls": 5}]
)
def test_a_watch_that_cannot_begin_says_why(client, fields):
    events = follow(client, client.post("/api/start/watch", json=fields), stop_after=1)
    assert events[-1]["kind"] == "done"
    assert any(each["kind"] in ("error", "update") for each in events)


def test_only_what_pages_need_can_be_started(client):
    for verb in ("decide", "deploy", "train", "guard"):
        assert client.post(f"/api/start/{verb}", json={}).status_code == 404


def test_a_fault_is_told(client):
    def fail(_):
        raise ZeroDivisionError("of the test")

    assert client.jobs.start("watch", fail).wait(120)
    error, done = follow(client, SimpleNamespace(json=lambda: {"job": "watch-1"}))
    assert (error["kind"], done) == ("error", {"kind": "done", "value": False})
    assert "of the test" in error["value"][0]["message"]
    assert error["value"][0]["code"] == "internal-error"


def test_too_many_jobs_are_refused_and_unknown_ones_are_not_found(client):
    over = threading.Event()
    for _ in range(20):
        client.jobs.start("watch", lambda _: over.wait(30))
    refused = client.post("/api/start/watch", json={"urls": ["http://127.0.0.1:1"]}).json()
    assert refused["error"][0]["code"] == "job-running"
    over.set()
    assert client.jobs.get("watch-20").wait(120)
    for found in (client.post("/api/jobs/watch-21/stop", json={}), client.get("/api/jobs/watch-21/events")):
        assert (found.status_code, found.json()["error"][0]["code"]) == (404, "no-such-job")


def test_listens_on_loopback_and_ends_when_asked(tmp_path):
    from draftwise.core.progress import Silent

    told = []

    class Ended(Silent):
        stop_requested = True

        def status(self, text):
            told.append(text)

        update = status

    result = ui.run(ui.request(tmp_path, port=0), Ended())
    assert result.address.startswith("http://127.0.0.1:")
    assert result.address in told[0]
    assert (told[1], len(result.token) > 20) == (result, True)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    from draftwise.core import InvalidSetup

    with pytest.raises(InvalidSetup, match="There is no folder"):
        ui(tmp_path / "nowhere")


def test_runs_of_one_load_are_rows_and_others_lines(tmp_path):
    make_run_of_one_load(tmp_path / "one")
    comparisons = json.loads((tmp_path / "one" / "summary.json").read_text())["comparisons"]
    (chart,) = _draw_loads(comparisons)
    assert (chart["x"], chart["title"]) == ("rows", "Requests in flight: 4, temperature 0")
    assert [(each["name"], [point["x"] for point in each["points"]]) for each in chart["series"]] == [
        ("ngram", ["chat", "code"]),
        ("eagle3", ["chat", "code"]),
    ]
    more = [each | {"load": {"kind": "closed", "concurrency": 16}} for each in comparisons]
    assert [(each["x"], each["title"]) for each in _draw_loads([*more, *comparisons])] == [
        ("log", "chat, temperature 0"),
        ("log", "code, temperature 0"),
    ]
    assert [point["x"] for point in _draw_loads([*more, *comparisons])[0]["series"][0]["points"]] == [4, 16]
