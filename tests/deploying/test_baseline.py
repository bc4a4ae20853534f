"""`baseline.json`: what a run found, beside the files that are held against it."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.gateway import running
from tests.support.made_runs import CONTEXT, arm, closed, gains, make_run, save_run, workload

from draftwise.cli import main
from draftwise.core import Arm, Baseline, Device, RollbackBasis, Setup, SpecConfig
from draftwise.deploying import deploy, make_order
from draftwise.deploying.deployment_folder import prove

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
BASE = Setup(target=MODEL, engine="vllm", engine_version="0.26.0", device=Device(name="GPU", kind="cuda"))
SPEC = SpecConfig(method="ngram", num_speculative_tokens=3)
CANARY = FakeScript(
    first_token_s=0.001, step_s=0.0002, model=MODEL, version={"version": "0.26.0"}, k=3, accepted=(3, 1, 0)
)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Return a run of a server that pays under both loads."""
    sides = [Arm(name="plain", setup=BASE), replace(arm(3), setup=replace(BASE, spec=SPEC))]
    run = make_run(
        {"ngram k=3": gains(1.4)},
        arms=sides,
        workloads=[workload(num_prompts=24, tokens=120)],
        conditions=closed(1, 4),
        context={**CONTEXT, "model": {"name": MODEL, "dtype": "bfloat16"}},
    )
    return save_run(tmp_path / "run", run)


def ordered(run: Path, out: Path, *more: str) -> Baseline:
    words = ["deploy", str(run), "--to", "kubernetes", "--out", str(out), "--candidate", "ngram k=3", *more]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = Baseline.from_json((out / "baseline.json").read_text(), where="baseline.json")
    assert found.setup_sha256 == sha256((out / "setup.json").read_bytes()).hexdigest()
    return found


def test_a_baseline_has_what_the_run_found(measured: Path, tmp_path: Path) -> None:
    found = ordered(measured, tmp_path / "out")
    assert (found.run, found.arm, found.plain_arm) == ("run", "ngram k=3", "plain")
    assert found.expected is not None
    assert found.expected.counters.tokens_per_step == pytest.approx(2, rel=0.02)
    assert {name: [count for count, _ in curve] for name, curve in found.curve_ms.items()} == {
        "plain": [1, 4],
        "ngram k=3": [1, 4],
    }
    strictest = max(
        (rule for rule in found.rollback if rule.basis is RollbackBasis.BREAK_EVEN), key=lambda rule: rule.value
    )
    assert (found.expected.workload, found.expected.condition) == (strictest.workload, strictest.condition)
    assert [each.partition(":")[0] for each in found.missing] == [
        "Its answers to the probe, and how much they vary by chance",
        "Values to expect by hour of the week",
    ]


def test_numbers_of_another_release_are_not_carried_over(measured: Path, tmp_path: Path) -> None:
    found = ordered(measured, tmp_path / "out", "--vllm", "0.27.0")
    assert (found.expected, found.curve_ms, found.rollback) == (None, {}, ())
    assert len(found.missing) == 5


def test_what_nobody_measured_is_said_to_be_missing() -> None:
    folder = deploy(make_order(replace(BASE, spec=SPEC)), "compose")
    found = Baseline.from_json(folder.files["baseline.json"], where="baseline.json")
    assert found.expected is None
    assert len(found.missing) == 5


def served(script: FakeScript, out: Path, *more: str) -> tuple[int, str, str]:
    """Deploy with a server that runs as its canary."""
    server = FakeBackend("server", script, real_time=True)
    with running(server):
        words = ["deploy", MODEL, "--vllm", "0.26.0", "-sc", SPEC.to_json(), "--to", "compose", "--out", str(out)]
        result = CliRunner().invoke(main, [*words, "--probe", server.url, *more])
        if result.exit_code:
            return result.exit_code, result.stderr, ""
        watch = [
            "watch",
            server.url,
            "--baseline",
            str(out / "baseline.json"),
            "--probe",
            "--interval",
            "0.2",
            "--json",
        ]
        return result.exit_code, result.stdout, CliRunner().invoke(main, watch, catch_exceptions=False).stdout


def test_a_running_canary_answers_the_probe_and_watch_compares_with_that(tmp_path: Path) -> None:
    code, told, watched = served(CANARY, tmp_path / "out")
    assert code == 0, told
    found = Baseline.from_json((tmp_path / "out/baseline.json").read_text(), where="baseline.json")
    assert len({answer.prompt_id for answer in found.probe}) == 24
    assert found.probe_null == 0
    assert len(found.missing) == 4
    assert found.setup_sha256 == sha256((tmp_path / "out/setup.json").read_bytes()).hexdigest()
    (probe,) = [each for each in json.loads(watched)["findings"] if each["code"].startswith("probe")]
    assert probe["code"] == "probe-same"
    assert list(prove(tmp_path / "out")) == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (replace(CANARY, model="other"), "serves 'other'"),
        (replace(CANARY, version={"version": "0.27.0"}), "The server runs release 0.27.0"),
        (replace(CANARY, k=0, accepted=()), "The server counted no draft"),
    ],
)
def test_a_server_of_another_setup_is_no_canary(script: FakeScript, words: str, tmp_path: Path) -> None:
    code, told, _ = served(script, tmp_path / "out")
    assert code == 2
    assert words in told
    assert not (tmp_path / "out").exists()
