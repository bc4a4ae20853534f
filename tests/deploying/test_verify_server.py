"""`draftwise verify` on servers and start-up logs: each planted fault is found, and nothing is taken for granted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.gateway import Gateway, running

from draftwise.cli import main
from draftwise.core import Baseline

LOGS = Path(__file__).parents[1] / "support" / "vllm_logs"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
EAGLE3 = {"method": "eagle3", "model": HEAD, "num_speculative_tokens": 3}
PLAIN = FakeScript(first_token_s=0.001, step_s=0.0002, model=MODEL, version={"version": "0.26.0"}, gap=2.0)
SPEC = replace(PLAIN, k=3, accepted=(3, 1, 0))


def verify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def found(result: Result) -> dict[str, str]:
    """Return the messages of errors and warnings by code."""
    (judged,) = json.loads(result.stdout)
    return {f["code"]: f["message"] for f in judged["findings"] if f["severity"] != "info"}


def write_setup(tmp_path: Path, spec: dict | None = EAGLE3, **args: object) -> Path:
    path = tmp_path / "setup.json"
    setup = {"target": MODEL, "engine_version": "0.26.0", "speculative_config": spec, "args": args, "env": {}}
    path.write_text(json.dumps(setup))
    return path


def look_at(tmp_path: Path, script: FakeScript, *options: str, spec: dict | None = EAGLE3) -> Result:
    server = FakeBackend("server", script, real_time=True)
    with running(server):
        return verify(server.url, "--setup", write_setup(tmp_path, spec), "--prompts", "6", "--json", *options)


def compare(tmp_path: Path, script: FakeScript) -> Result:
    plain = FakeBackend("plain", PLAIN, real_time=True)
    with running(plain):
        return look_at(tmp_path, script, "--against", plain.url)


def test_a_server_that_does_what_was_ordered_has_no_difference(tmp_path: Path) -> None:
    result = compare(tmp_path, SPEC)
    assert found(result) == {}
    assert result.exit_code == 0
    assert "6 of 6 outputs match the plain server's." in result.stdout
    assert "Run evaluations that need them on the plain server." in result.stdout
    assert "A step gave 2." in result.stdout
    assert "Cannot tell how the speculative config resolved." in result.stdout


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (replace(SPEC, accepted=(0,)), "drafter-does-not-fit", "accepted 0 of"),
        (PLAIN, "drafts-missing", "counted no draft"),
        (replace(SPEC, model="other"), "runs-otherwise", "serves 'other'"),
        (
            replace(SPEC, version={"version": "0.27.0"}),
            "runs-otherwise",
            "The server runs release 0.27.0, but the order has vLLM 0.26.0",
        ),
        (replace(SPEC, version={}), "not-told", "Cannot tell which release runs"),
        (
            replace(SPEC, version={"version": "0.26.0+cu129", "speculative_config": {**EAGLE3, "model": "/old/head"}}),
            "runs-otherwise",
            "resolved model to '/old/head'",
        ),
        (
            replace(SPEC, version={"version": "0.26.0", "speculative_config": {}}),
            "runs-otherwise",
            "without speculation",
        ),
        (replace(SPEC, foreign_tokens_per_s=1000.0), "not-told", "tokens of other clients"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, script: FakeScript, code: str, words: str) -> None:
    result = look_at(tmp_path, script)
    assert set(found(result)) == {code}
    assert words in found(result)[code]
    assert result.exit_code == (0 if code == "not-told" else 1)


def test_a_plain_server_that_drafts_is_found(tmp_path: Path) -> None:
    assert set(found(look_at(tmp_path, SPEC, spec=None))) == {"runs-otherwise"}
    assert found(look_at(tmp_path, PLAIN, spec=None)) == {}


def test_lookup_that_finds_nothing_decides_nothing(tmp_path: Path) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 5}
    result = look_at(tmp_path, replace(SPEC, accepted=(0,)), spec=ngram)
    assert found(result) == {}


def test_a_drafter_that_got_worse_is_found_by_what_the_probe_saw_before(tmp_path: Path) -> None:
    assert found(look_at(tmp_path, SPEC, "--expected", "2.3")) == {}
    worse = look_at(tmp_path, replace(SPEC, accepted=(1, 1, 0)), "--expected", "2.3")
    assert set(found(worse)) == {"fewer-tokens-per-step"}
    assert worse.exit_code == 1


def test_a_drafter_that_changed_is_found_by_what_it_answered_before(tmp_path: Path) -> None:
    """One prompt in three takes another step: no mean of tokens per step shows that."""
    baseline = tmp_path / "baseline.json"
    server = FakeBackend("server", SPEC, real_time=True)
    with running(server):
        words = ["watch", server.url, "--record-baseline", str(baseline), "--interval", "0.2"]
        assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    asked = ("--baseline", str(baseline), "--prompts", "24")
    assert found(look_at(tmp_path, SPEC, *asked)) == {}
    worse = look_at(tmp_path, replace(SPEC, accepted=(3, 1, 0, 3, 1, 0, 3, 0, 0)), *asked)
    assert set(found(worse)) == {"probe-differs"}
    assert worse.exit_code == 1


def test_a_baseline_without_a_probe_says_nothing(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(Baseline(setup_sha256="").to_json())
    result = look_at(tmp_path, SPEC, "--baseline", str(baseline))
    assert result.exit_code == 2
    assert "--baseline has no probe" in result.stderr


def test_one_changed_token_is_found_and_a_tie_is_excused(tmp_path: Path) -> None:
    changed = compare(tmp_path, replace(SPEC, differs_at=20, gap=2.5))
    assert set(found(changed)) == {"other-outputs"}
    assert "at output token 20" in found(changed)["other-outputs"]
    assert changed.exit_code == 1
    tie = compare(tmp_path, replace(SPEC, differs_at=20, gap=0.01))
    assert found(tie) == {}
    assert "6 of 6 outputs match the plain server's; 6 differ at ties within rounding." in tie.stdout


def test_a_server_behind_a_gateway_tells_less_and_that_is_said(tmp_path: Path) -> None:
    server = FakeBackend("server", SPEC, real_time=True)
    with running(server):
        gateway = Gateway({"": server.url}, wants=("x-key", "secret"))
        with running(gateway):
            asked = (gateway.url, "--setup", write_setup(tmp_path), "--prompts", "3", "--json")
            result = verify(*asked, "--header", "X-Key: secret")
            refused = verify(*asked)
    assert set(found(result)) == {"not-told"}
    assert result.exit_code == 1  # nothing shows that it speculates
    assert refused.exit_code == 3


def test_a_server_that_does_not_answer_is_exit_code_three(tmp_path: Path) -> None:
    assert verify("http://127.0.0.1:9", "--setup", write_setup(tmp_path)).exit_code == 3
    assert verify("http://127.0.0.1:9").exit_code == 2


@pytest.mark.parametrize(
    ("log", "codes"),
    [
        ("cpu_0.32.0_ngram", set()),
        ("kv_too_small", {"start-failed", "runs-otherwise"}),
        ("unknown_flag", {"start-failed", "not-told"}),
    ],
)
def test_a_start_up_log_is_held_against_the_setup(tmp_path: Path, log: str, codes: set[str]) -> None:
    setup = tmp_path / "setup.json"
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    setup.write_text(json.dumps({"target": MODEL, "engine_version": "0.32.0", "speculative_config": spec, "args": {}}))
    result = verify("--log", LOGS / f"{log}.txt", "--setup", setup, "--json")
    assert set(found(result)) == codes
    assert result.exit_code == ("start-failed" in codes)


@pytest.mark.parametrize(
    "text", ["", "\n", "10.0.0.1 GET / 200\n", "No resources found.", "Application startup complete."]
)
def test_a_log_that_shows_no_config_passes_for_nothing(tmp_path: Path, text: str) -> None:
    log = tmp_path / "pod.log"
    log.write_text(text)
    result = verify("--log", log, "--setup", write_setup(tmp_path), "--json")
    assert (set(found(result)), result.exit_code) == ({"not-told"}, 1)


def test_a_check_that_was_asked_for_and_decides_nothing_is_an_error(tmp_path: Path) -> None:
    result = look_at(tmp_path, replace(SPEC, foreign_tokens_per_s=1000.0), "--expected", "2.3")
    assert (set(found(result)), result.exit_code) == ({"not-told"}, 1)


def test_a_log_of_another_config_or_one_that_ends_early_is_noticed(tmp_path: Path) -> None:
    setup, log = write_setup(tmp_path, {**EAGLE3, "model": "/models/eagle3-head"}), tmp_path / "pod.log"
    log.write_text((LOGS / "h200_0.26.0_eagle3.txt").read_text().replace("startup complete", ""))
    result = found(verify("--log", log, "--setup", setup, "--json"))
    assert "not-told" in result
    log.write_text(log.read_text().replace("num_spec_tokens=", "num_spec_tokens=1"))
    assert "num_speculative_tokens" in found(verify("--log", log, "--setup", setup, "--json"))["runs-otherwise"]
