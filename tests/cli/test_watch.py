"""`draftwise watch`: its exit codes, its rows, its JSON, and what it says that it cannot tell."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
from tests.cli.test_schema import close, schema_of
from tests.support.made_windows import HEALTHY, make_window
from tests.support.made_windows import make_baseline as measured
from tests.support.production import PLAIN, SPEC
from tests.support.watched import make_baseline
from tests.support.watched import serving_counters as serving

from draftwise.cli import main
from draftwise.cli._watching import draw_course
from draftwise.core import Finding, Severity
from draftwise.verbs.diagnosing import add_diagnoses
from draftwise.watching.diagnose import SideInfo
from draftwise.watching.watcher import Snapshot

LOG = Path(__file__).parents[1] / "support" / "vllm_logs" / "h200_0.26.0_eagle3.txt"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["watch", *map(str, arguments)])


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    path.write_text(make_baseline().to_json())
    return path


def seen(*arguments: object) -> dict[str, Any]:
    """Return what is printed as JSON, which its schema knows to the last property."""
    printed = json.loads(run(*arguments, "--json", "--once", "--interval", "0.2").stdout)
    validator = Draft7Validator(close(schema_of("watch")))
    assert [error.message for error in validator.iter_errors(printed)] == []
    return printed


def test_a_healthy_service_is_one_row_a_pool_and_exit_code_0(baseline: Path) -> None:
    with serving(SPEC, SPEC, PLAIN) as (first, second, plain):
        done = run(first, second, "--plain", plain, "--baseline", baseline, "--once", "--interval", "0.2")
    assert done.exit_code == 0, done.output
    spec, _, beside, *_ = done.output.splitlines()
    assert spec.startswith("spec   2 replicas  16.0 running  tokens/step 1.87")
    assert "(break-even 1.35, expected 1.87)" in spec
    assert "14.4 ms/token (plain 20.0)  coverage 0.99  k 3.0  by position 50 25 13" in spec
    assert beside.startswith("plain  1 replica  8.0 running")


def test_the_first_look_comes_before_all_that_shows_and_judges_it() -> None:
    code = (
        "import sys; from draftwise.cli import main; from draftwise.watching.watcher import Watcher\n"
        "later = {'rich', 'draftwise.watching.diagnose', 'draftwise.plan', 'numpy', 'httpx'}\n"
        "begin = Watcher.begin\n"
        "async def look(self): await begin(self); print(later & set(sys.modules), file=sys.stderr)\n"
        "Watcher.begin = look; main()"
    )
    with serving(SPEC) as (url,):
        words = [sys.executable, "-c", code, "watch", url, "--once", "--interval", "0.2"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n"), done.stdout


def test_without_a_baseline_it_says_which_answers_it_cannot_give() -> None:
    with serving(SPEC) as (url,):
        done = run(url, "--once", "--interval", "0.2")
    assert done.exit_code == 0
    assert "Cannot tell whether it pays, or compare it with a measurement. Pass --baseline FILE" in done.output
    assert "Cannot tell whether it is faster than without speculation. Pass --plain URL" in done.output
    assert "break-even" not in done.output.splitlines()[0]


def test_a_url_that_cannot_be_read_is_one_finding_and_exit_code_3() -> None:
    with serving(SPEC) as (url,):
        done = run(url, "http://127.0.0.1:1", "--once", "--interval", "0.2")
    assert done.exit_code == 3
    assert done.output.count("server-unread") == 1
    assert "spec   1 replica" in done.output
    assert "Traceback" not in done.output


def test_a_service_that_does_not_answer_at_all_is_told_nothing_else() -> None:
    done = run("http://127.0.0.1:1", "--plain", "http://127.0.0.1:2", "--once", "--interval", "0.2")
    assert (done.exit_code, done.output.count("server-unread")) == (3, 2)
    assert "Cannot tell" not in done.output


def test_the_json_has_every_reading_by_pool_and_by_engine(baseline: Path) -> None:
    with serving(SPEC, PLAIN) as (url, plain):
        printed = seen(url, "--plain", plain, "--baseline", baseline)
    assert printed["expected"] == {"tokens_per_step": pytest.approx(1.871), "break_even": 1.35, "crossover": 40}
    spec, beside = printed["pools"]
    assert (spec["pool"], beside["pool"]) == ("spec", "plain")
    assert spec["tokens_per_step"] == pytest.approx(1.87, abs=0.01)
    assert spec["by_engine"][0]["instance"] == url
    assert beside["counts_drafts"] is False
    assert printed["findings"] == []


def test_a_log_is_read_to_its_end_and_again_from_standard_input() -> None:
    done = run("--log", LOG)
    assert done.exit_code == 0
    assert "tokens/step unknown  acceptance length 2.52  k 3.0  by position 70 49 34" in done.output
    piped = CliRunner().invoke(main, ["watch", "--log", "-"], input=LOG.read_text())
    assert piped.output == done.output
    assert run("--log", "/nowhere").exit_code == 2
    assert "--plain URL" not in done.output  # which a log does not take


def test_a_prometheus_that_is_not_there_is_a_finding() -> None:
    done = run("--prometheus", "http://127.0.0.1:1", "--model", "m", "--once")
    assert done.exit_code == 3
    assert "http://127.0.0.1:1 does not answer" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give the URLs of servers, --prometheus, or --log."),
        (["http://a", "--prometheus", "http://b"], "Give the URLs of servers, --prometheus, or --log."),
        (["http://a", "--json", "--live"], "not both"),
        (["http://a", "--probe"], "needs a --baseline with a probe"),
        (["--log", "-", "--record-baseline", "b.json"], "send requests to servers: give their URLs"),
        (["--log", "-", "--plain", "http://b"], "--plain is read with URLs of servers only"),
        (["--prometheus", "http://b", "--plain", "http://c"], "--plain is read with URLs of servers only"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_bad_input_names_its_fix(tmp_path: Path) -> None:
    (tmp_path / "setup.json").write_text("{}")
    assert "is not an http(s) URL. Write http://llama:8000." in run("llama:8000", "--once").output
    assert "is not an http(s) URL. Example: " in run("ftp://llama:8000", "--once").output
    done = run("http://127.0.0.1:1", "--baseline", tmp_path / "setup.json", "--once")
    assert done.exit_code == 2
    assert "is not a baseline" in done.output
    assert run("http://127.0.0.1:1", "--baseline", tmp_path / "nothing", "--once").exit_code == 2


def test_a_baseline_of_another_setup_is_refused(tmp_path: Path, baseline: Path) -> None:
    setup = tmp_path / "setup.json"
    setup.write_text('{"target": "m", "engine_version": "0.33.0"}')
    done = run("http://127.0.0.1:1", "--baseline", baseline, "--setup", setup, "--once")
    assert done.exit_code == 2
    assert "belongs to another setup" in done.output


def test_the_live_view_keeps_one_row_a_pool_and_draws_its_course() -> None:
    with serving(SPEC) as (url,):
        done = run(url, "--live", "--once", "--interval", "0.2")
    assert done.exit_code == 0
    assert "spec   1 replica" in done.output
    assert any(bar in done.output for bar in "▅▆▇█")


def test_bars_begin_where_speculation_gives_nothing() -> None:
    assert draw_course([1.0, 1.5, 2.0, 0.9]) == "▁▅█▁"
    assert draw_course([1.0, 4.0, 2.5]) == "▁█▅"


def test_what_is_wrong_is_said_with_what_it_rests_on_and_how_to_find_out_more(baseline: Path) -> None:
    fallen = replace(SPEC, positions=(0.12, 0.04, 0.02))
    with serving(fallen, PLAIN) as (url, plain):
        done = run(url, "--plain", plain, "--baseline", baseline, "--once", "--interval", "0.2")
        printed = seen(url, "--plain", plain, "--baseline", baseline)
    assert done.exit_code == 1
    assert "acceptance-fell" in done.output
    assert "acceptance length 1.18, expected 1.88" in done.output
    assert "draftwise watch http" in done.output
    first, *rest = printed["findings"]
    settles = f"draftwise watch {url} --baseline baseline.json --probe"
    assert (first["code"], first["settles"]) == ("acceptance-fell", settles)
    assert {"traffic-changed", "drafter-changed"} <= set(first["candidates"])
    assert {each["code"]: each.get("follows_from") for each in rest} == {
        "fell-below-break-even": "acceptance-fell",
        "tail-dead": "acceptance-fell",
        "slower-than-plain": "acceptance-fell",
    }


def test_the_window_of_a_recorded_baseline_tells_what_a_run_cannot() -> None:
    slower = make_window(replace(SPEC, step_s=0.05))
    plain = make_window(replace(PLAIN, step_s=0.037), pool="plain", instance="p")
    snapshot, known = Snapshot(at_s=0.0, windows=(), recent=(slower, plain)), measured()
    for baseline, code in ((known, "step-cost-up"), (replace(known, seen=HEALTHY), "machine-slower")):
        assert add_diagnoses(snapshot, baseline, SideInfo()).findings[0].code == code


def test_a_server_that_is_gone_comes_before_the_diagnoses_and_what_its_probe_says_after_them() -> None:
    gone, differs = (
        Finding(code=code, severity=Severity.ERROR, message="m") for code in ("server-unread", "probe-differs")
    )
    fallen = make_window(replace(SPEC, positions=(0.12, 0.04, 0.02)))
    snapshot = Snapshot(at_s=0.0, windows=(), recent=(fallen,), findings=(differs, gone))
    first, second, *_, last = add_diagnoses(snapshot, measured(), SideInfo()).findings
    assert (first.code, second.code, last.code) == ("server-unread", "acceptance-fell", "probe-differs")


def test_a_setup_and_a_start_log_tell_causes_apart(baseline: Path, tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text("INFO Async scheduling is disabled because the V1 model runner does not support it with ngram\n")
    with serving(replace(SPEC, step_s=0.06)) as (url,):
        printed = seen(url, "--baseline", baseline, "--start-log", log)
    codes = [finding["code"] for finding in printed["findings"]]
    assert codes == (["async-off", "step-cost-up"] if codes else [])  # this baseline has no curve
    assert run(url, "--start-log", tmp_path / "none", "--once").exit_code == 2
    assert run(url, "--setup", tmp_path / "none", "--once").exit_code == 2


def test_a_lost_flag_is_found_and_the_setup_says_why(tmp_path: Path) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    given = f"vllm serve m --speculative-config '{config}' --speculative-config '{config}'\n"
    (tmp_path / "run.sh").write_text(given)
    with serving(PLAIN) as (url,):
        done = run(url, "--setup", tmp_path / "run.sh", "--once", "--interval", "0.2")
    assert done.exit_code == 1
    assert "spec-off" in done.output
    assert "does not speculate" in done.output
