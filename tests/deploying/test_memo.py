"""MEMO.md: what a platform team reads of it before anything is applied."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.adopted import EVIDENCE, FOUND, IMAGES, ORDER, SETUP
from tests.support.made_runs import CONTEXT, arm, closed, gains, make_run, save_run, workload

from draftwise.cli import main
from draftwise.core import Arm, ClosedLoop, Condition, Counters, Expected, Setup, SpecConfig, SpecStats
from draftwise.deploying import TARGETS, Platform, deploy, make_order, read_layout
from draftwise.reporting.conditions import describe_rule

LOGS = Path(__file__).parents[1] / "support" / "vllm_logs"


def test_it_is_the_one_that_was_read_over() -> None:
    """What, why, numbers, limits, where to leave it off, rollback, who: all sections, with what a run found."""
    drafts = SpecStats(
        num_drafts=1000, num_draft_tokens=3000, num_accepted_tokens=880, accepted_per_pos=(500, 250, 130)
    )
    expected = Expected(
        workload="code",
        condition=Condition(load=ClosedLoop(concurrency=32)),
        counters=Counters(spec=drafts, generation_tokens=1900),
    )
    evidence = replace(EVIDENCE, expected=expected, not_adopted=("Traffic like chat: the run says reject (0.93x).",))
    order = make_order(SETUP, name="llama", cold_start_s=431, evidence=evidence)
    order = replace(order, owner="Team Inference", platform=Platform(layout=read_layout("pvc:models")))
    files = deploy(order, "kserve").files
    memo = re.sub(r"\d+( rules need its config.json, and )\d+", r"N\1N", files["MEMO.md"])
    assert memo == (Path(__file__).parent / "memo.md").read_text(encoding="utf-8")
    assert "draftwise.dev/owner: Team Inference\n" in files["spec.yaml"]


@pytest.mark.parametrize("to", TARGETS)
def test_it_says_what_why_and_how_back(to: str) -> None:
    order = replace(ORDER, image=IMAGES.get(to, ORDER.image))
    memo = deploy(order, to).files["MEMO.md"]
    assert f"**Why.** {FOUND} (run `2026-11-22`)" in memo
    assert "**Owner:** not given (--owner)." in memo
    assert "--speculative-config" in memo.split("## Files")[0]
    assert (
        "Requests with min_p: vLLM 0.26.0 refuses it while speculating."
        in memo.split("## Where to leave speculation off")[1]
    )
    assert f"## When to roll back\n\n- {describe_rule(order.evidence.rollback[0])}" in memo
    assert f"## What a rollback leaves behind\n\n- {TARGETS[to].leaves}" in memo


def test_what_check_warns_of_stands_among_the_limits() -> None:
    folder = deploy(ORDER, "kubernetes")
    (warning,) = [limit for limit in folder.limits if limit.code == "cudagraph-cliff"]
    assert f"- {warning}" in folder.files["MEMO.md"].partition("## Limits")[2]


def test_checkpoints_are_judged_by_their_names_and_not_by_where_they_are_put() -> None:
    memo = deploy(replace(ORDER, platform=Platform(layout=read_layout("pvc:models"))), "kserve").files["MEMO.md"]
    assert "neither a directory here" not in memo


@pytest.mark.parametrize("to", ["kubernetes", "compose", "systemd", "kserve"])
def test_a_directory_that_nobody_brings_is_told(to: str) -> None:
    order = replace(
        ORDER, setup=replace(SETUP, target="/data/llama"), platform=Platform(layout=read_layout("pvc:models"))
    )
    codes = [limit.code for limit in deploy(order, to).limits]
    assert ("weights-not-brought" in codes) == (to != "kserve")
    assert "weights-not-brought" not in [limit.code for limit in deploy(ORDER, to).limits]


@pytest.mark.parametrize(
    ("target", "told"), [("models/org/llama", True), ("./llama", True), ("org/llama", False), ("s3://b/c/llama", False)]
)
def test_a_directory_of_another_machine_is_told_by_its_name(target: str, told: bool) -> None:
    codes = [limit.code for limit in deploy(replace(ORDER, setup=replace(SETUP, target=target)), "kubernetes").limits]
    assert ("weights-not-brought" in codes) == told


@pytest.mark.parametrize("to", TARGETS)
def test_there_is_a_way_to_try_it_on_a_part_of_the_requests(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = deploy(replace(ORDER, image=IMAGES.get(to, ORDER.image)), to)
    (command,) = re.findall(r"^draftwise (deploy .*)", folder.files["MEMO.md"], re.MULTILINE) or [""]
    assert bool(command) != ("canary.yaml" in folder.files)
    if command:
        folder.write(tmp_path / "out")
        monkeypatch.chdir(tmp_path / "out")
        result = CliRunner().invoke(main, shlex.split(command.replace("HOST:PORT", "10.0.0.1:80")))
        assert result.exit_code == 0, result.output
        assert (tmp_path / "out/proxied/haproxy.cfg").is_file()
        assert prove_same(tmp_path / "out", tmp_path / "out/proxied")


def prove_same(one: Path, other: Path) -> bool:
    """Return whether two folders start the same server."""
    return (one / "setup.json").read_bytes() == (other / "setup.json").read_bytes()


def test_where_the_run_did_not_adopt_it_the_memo_leaves_it_off(tmp_path: Path) -> None:
    spec = SpecConfig(method="ngram", num_speculative_tokens=3)
    slow = replace(gains(1.4), step_s=lambda prompt_id, load: 0.014 if load.concurrency == 1 else 0.024)
    run = make_run(
        {"ngram k=3": slow},
        arms=[Arm(name="plain", setup=replace(SETUP, spec=None)), replace(arm(3), setup=replace(SETUP, spec=spec))],
        workloads=[workload(num_prompts=24, tokens=60)],
        conditions=closed(1, 4),
        context={**CONTEXT, "model": {"name": SETUP.target, "dtype": "bfloat16"}},
    )
    save_run(tmp_path / "run", run)
    words = ["deploy", str(tmp_path / "run"), "--to", "compose", "--candidate", "ngram k=3"]
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    memo = (tmp_path / "out/MEMO.md").read_text()
    assert "Traffic like code, 4 concurrent requests: the run says reject (0." in memo
    assert "Traffic like code, one request" not in memo


def deployed(tmp_path: Path, *more: str, setup: Setup = SETUP) -> tuple[int, str]:
    assert setup.spec is not None
    words = ["deploy", str(setup.target), "--vllm", "0.26.0", "--gpu", "H200", "-sc", setup.spec.to_json()]
    words += ["--to", "kubernetes", "--out", str(tmp_path / "out"), *more]
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.output


def test_deadlines_come_from_the_log_of_a_start(tmp_path: Path) -> None:
    code, told = deployed(tmp_path, "--start-log", str(LOGS / "cpu_0.32.0_ngram.txt"))
    assert code == 0, told
    assert "guess" not in told
    # 14 s from the first line to the last before it answers: 1.5 times that, in looks 10 s apart.
    assert "Startup deadline: 30 s" in (tmp_path / "out/MEMO.md").read_text()
    assert "failureThreshold: 3\n" in (tmp_path / "out/spec.yaml").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--start-log", str(LOGS / "port_taken.txt")], "does not show how long the start took"),
        (["--start-log", str(LOGS / "port_taken.txt"), "--cold-start-s", "9"], "exclude each other"),
        (["--start-log", "gone.txt"], "gone.txt"),
    ],
)
def test_a_log_that_tells_no_time_is_refused(options: list[str], words: str, tmp_path: Path) -> None:
    code, told = deployed(tmp_path, *options)
    assert code != 0
    assert words in told
    assert not (tmp_path / "out").exists()
