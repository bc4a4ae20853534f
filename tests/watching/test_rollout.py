"""Before and after a roll-out, by what was recorded and by what `upgrade` says; and counters that mislead."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.gateway import running
from tests.support.production import SPEC
from tests.support.web import Answer, serving_answers
from tests.watching.test_prometheus import NOW_S, record

from draftwise.cli import main
from draftwise.core import Counters, InvalidSetup, ServerLoad, SpecStats, Sums, Window
from draftwise.watching.rollout import LAST, RollOut, compare_setups, find_rollout, parse_time, tell_rollout
from draftwise.watching.yardstick import find_misleading

ROLLED_S = NOW_S - 400
FALLEN = replace(SPEC, positions=(0.1, 0.02, 0.01))


def serve(path: str, _: dict[str, str]) -> Answer:
    """Answer as a Prometheus whose servers were replaced by such as draft worse."""
    asked = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
    if asked["query"].startswith("process_start"):
        labels = {"instance": "new:8000", "pool": "spec"}
        result = [{"metric": labels, "value": [NOW_S, str(ROLLED_S)]}]
    elif asked["query"].startswith("up{"):
        result = []  # no target is down
    elif asked["query"].startswith("vector("):
        result = [{"metric": {}, "value": [NOW_S, str(NOW_S)]}]
    elif "time" in asked:
        assert float(asked["time"]) == ROLLED_S
        result = record(SPEC, "spec", "old:8000")
    else:
        result = record(FALLEN, "spec", "new:8000", restart_s=ROLLED_S)
    return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_now_is_held_against_the_time_before_the_roll_out() -> None:
    with serving_answers(serve) as url:
        arguments = ["watch", "--prometheus", url, "--model", "m", "--since-rollout", "last", "--json"]
        done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1, done.output
    findings = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "tokens per step 1.87, 1.13" in findings["rolled-out"]["message"]
    assert "acceptance-fell" in findings  # without a baseline: the time before is what is expected


def test_a_probe_and_upgrade_tell_what_a_roll_out_brought(tmp_path: Path) -> None:
    good = FakeScript(first_token_s=1e-4, step_s=1e-5, model="m", k=3, accepted=(3, 1, 0))
    baseline, setups = tmp_path / "baseline.json", [tmp_path / f"{version}.sh" for version in ("0.13.0", "0.33.0")]
    for setup in setups:
        setup.write_text(
            f"docker run vllm/vllm-openai:v{setup.stem} --model meta-llama/Llama-3.1-8B-Instruct "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'\n'
        )

    def watch(script: FakeScript, *more: object) -> dict[str, str]:
        server = FakeBackend("server", script, real_time=True)
        with running(server):
            words = ["watch", server.url, "--json", "--interval", "0.2", *map(str, more)]
            done = CliRunner().invoke(main, words, catch_exceptions=False)
        return {finding["code"]: finding["message"] for finding in json.loads(done.stdout)["findings"]}

    assert "baseline-recorded" in watch(good, "--record-baseline", baseline)
    with serving_answers(serve) as url:
        recorded = ("--prometheus", url, "--model", "m", "--since-rollout", "last")
        known = ("--baseline", baseline, "--setup-before", setups[0], "--setup", setups[1])
        same = watch(good, *recorded, "--probe", *known)
        other = watch(replace(good, accepted=(1, 0, 0)), *recorded, "--probe", *known)
    for seen in (same, other):
        assert "tokens per step 1.87, 1.13" in seen["rolled-out"]
        assert "from vLLM 0.13.0 to 0.33.0" in seen["defaults-changed"]
    assert "probe-same" in same
    assert "after-upgrade" not in same
    assert "when vLLM 0.33.0 replaced 0.13.0" in other["after-upgrade"]


def test_a_roll_out_is_when_the_servers_of_now_were_started() -> None:
    assert find_rollout([], None) is None
    assert find_rollout([100.0, 5000.0, 5300.0], None) == RollOut(began_s=5000.0, ended_s=5300.0, num_servers=2)
    assert find_rollout([100.0, 5000.0], 4000.0) == RollOut(began_s=4000.0, ended_s=5000.0, num_servers=1)
    assert find_rollout([100.0], 4000.0) == RollOut(began_s=4000.0, ended_s=4000.0, num_servers=0)


def test_a_time_is_iso_or_the_last_one() -> None:
    assert parse_time(LAST) is None
    assert parse_time("2026-11-22T20:31Z") == parse_time("2026-11-22T21:31+01:00") == parse_time("2026-11-22T20:31")
    with pytest.raises(InvalidSetup, match="'yesterday' is not a time"):
        parse_time("yesterday")


def test_what_is_not_known_of_a_side_is_said() -> None:
    rollout = RollOut(began_s=0.0, ended_s=60.0, num_servers=2)
    window = Window(pool="spec", instance="a", start_s=0.0, duration_s=1.0, counters=Counters())
    assert "Nothing is known about the time before it" in tell_rollout(rollout, None, window).message
    assert "Nothing is known about the time after it" in tell_rollout(rollout, window, None).message
    assert "Neither side had traffic" in tell_rollout(rollout, window, window).message
    assert "1970-01-01T00:00:00Z to 1970-01-01T00:01:00Z" in tell_rollout(rollout, None, None).message


def test_starts_that_nobody_recorded_are_no_roll_out() -> None:
    assert tell_rollout(None, None, None).code == "rollout-unknown"


def test_upgrade_says_what_the_step_changes(tmp_path: Path) -> None:
    setups = []
    for version in ("0.13.0", "0.33.0"):
        setups.append(tmp_path / f"{version}.sh")
        setups[-1].write_text(
            f"docker run vllm/vllm-openai:v{version} --model meta-llama/Llama-3.1-8B-Instruct "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'\n'
        )
    step = compare_setups(*setups)
    assert "Defaults that changed from vLLM 0.13.0 to 0.33.0:" in step.findings[-1].message
    assert step.releases == ("0.13.0", "0.33.0")
    setups[-1].write_text(setups[-1].read_text().replace('": 3', '": 5'))
    assert compare_setups(*setups).releases is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://a", "--since-rollout", "last"], "give --prometheus"),
        (["http://a", "--prometheus", "http://p", "--since-rollout", "last"], "Only --since-rollout with --probe"),
        (["http://a", "--setup-before", "a.sh"], "compared with --setup"),
    ],
)
def test_what_a_comparison_needs_is_said(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["watch", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def window(first_tokens: int | None, generated: int = 400) -> Window:
    """Return one in which 60 tokens of answers were accepted from drafts."""
    spec = SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=60)
    return Window(pool="spec", instance="a", start_s=0.0, duration_s=1.0, sums=Sums(first_tokens=first_tokens),
                  counters=Counters(spec=spec, generation_tokens=generated))  # fmt: skip


def test_short_answers_are_told_to_lower_tokens_per_step() -> None:
    found, *_ = find_misleading(window(100))
    assert found.code == "first-tokens-count"
    assert "emits the first token of each answer: 100 of 400 tokens here" in found.message
    assert "1.18 with them and 1.25 in decoding alone" in found.message
    assert [*find_misleading(window(10)), *find_misleading(window(None))] == []


def test_acceptance_length_is_told_to_be_of_the_steps_that_have_a_draft() -> None:
    lookups = SpecStats(num_drafts=600, num_draft_tokens=1800, num_accepted_tokens=1200)
    (found,) = find_misleading(replace(window(None), counters=Counters(spec=lookups, generation_tokens=2200)))
    assert found.code == "drafts-on-some-steps"
    assert "Only 60% of the steps" in found.message
    assert "Acceptance length 3.00" in found.message
    assert "All steps together give 2.20 tokens each" in found.message
    half = replace(window(None), counters=Counters(spec=lookups, generation_tokens=2200))
    assert [*find_misleading(half, half)] == []  # it was measured so
    assert [*find_misleading(replace(half, sums=Sums(finished=3.0)))] == []
    none_left = Counters(spec=lookups, generation_tokens=1850)
    assert [*find_misleading(replace(window(None), counters=none_left))] == []


def test_what_is_not_judged_in_bursts_is_said_once() -> None:
    stats = SpecStats(num_drafts=900, num_draft_tokens=2700, num_accepted_tokens=900)
    steady = Window(pool="spec", instance="a", start_s=0.0, duration_s=300.0, sums=Sums(engine_steps=30.0),
                    counters=Counters(spec=stats, generation_tokens=1800), load=ServerLoad(running=30.0))  # fmt: skip
    assert [*find_misleading(steady)] == []
    (found,) = find_misleading(replace(steady, load=ServerLoad(running=3.0)))
    assert found.code == "bursts-not-judged"
    assert "on average 3.0 run, but a step has 30 of them" in found.message
    assert "not judged" in found.message


def test_a_prometheus_that_fails_in_between_ends_with_a_message() -> None:
    asked: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        asked.append(path)
        return serve(path, headers) if "&time=" not in path else (503, "")

    with serving_answers(answer) as url:
        done = CliRunner().invoke(main, ["watch", "--prometheus", url, "--model", "m", "--since-rollout", "last"])
    assert done.exit_code == 3
    assert "answers 503" in done.output
    assert len(asked) == 11
