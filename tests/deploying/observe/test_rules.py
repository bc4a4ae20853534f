"""The rules of a deployed service, judged by promtool: silent in a healthy day, and each alert where it belongs."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploying.observe.identity_cases import CASES
from tests.support.adopted import EVIDENCE, FOUND, LOAD, MODEL, ORDER, SETUP, SPEED
from tests.support.production import BREAK_EVEN, MEASURED, SCENARIOS, Phase, Scenario

from draftwise.core import ClosedLoop, Condition, Counters, Expected, InvalidSetup, SpecConfig, SpecStats
from draftwise.deploying import make_order
from draftwise.deploying.observe.alert_rules import ALERTS, find_constants, make_rules
from draftwise.deploying.observe.promise import VLLM, name_for
from draftwise.deploying.order import Scale
from draftwise.deploying.surroundings import Surroundings
from draftwise.knowledge.findings import get_finding
from draftwise.knowledge.vllm import Release, get_release, releases

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
RELEASE = get_release(SETUP.engine_version)
LABELS = {"model_name": MODEL, "namespace": "prod", "service": ORDER.service}
REVISIONS = {"spec": ORDER.revision, "plain": ORDER.go_back().revision}
TARGET = ("process_start_time_seconds", "up")
"""What is known of a process, or of its scrape, whatever it serves."""


def write_rules(path: Path, prefix: str = VLLM) -> Path:
    rules = make_rules(ORDER, name_for(ORDER, prefix))
    assert rules.missing == {}
    (path / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules.groups)}))
    return path / "rules.yaml"


def write_series(
    scenario: Scenario, labels: Mapping[str, str], prefix: str, *, pools: bool = True
) -> Iterator[dict[str, str]]:
    """Yield the series of a scenario as promtool takes them, scraped once a minute."""
    names = {key for phase in scenario.phases for key in phase.servers}
    for pool, instance in sorted(names):
        own = {**labels, "job": "vllm", "instance": instance} | ({"pool": pool} if pools else {})
        own |= {} if "revision" in labels else {"revision": REVISIONS[pool]}
        for sample, values in write_values(scenario, (pool, instance)).items():
            name, _, label = sample.partition("{")
            matchers = ",".join(
                [*(f'{key}="{value}"' for key, value in own.items()), *filter(None, [label.rstrip("}")])]
            )
            start = "" if name in TARGET else prefix
            yield {"series": f"{start}{name}{{{matchers}}}", "values": values}


def write_values(scenario: Scenario, key: tuple[str, str]) -> Mapping[str, str]:
    """Return the values of each sample of a server: stretches in which it grows evenly, or is not there."""
    written: dict[str, list[str]] = {}
    level: dict[str, float] = {}
    past = 0
    for phase in scenario.phases:
        server = phase.servers.get(key)
        counts = {} if server is None else {name: 60 * growth for name, growth in server.count().items()}
        gauges = (
            {}
            if server is None
            else {
                **server.read_gauges(),
                "process_start_time_seconds": 60.0 * past * phase.restarted,
                "up": float(server.answers),
            }
        )
        level = {} if phase.restarted else level
        for name in {*written, *counts, *gauges}:
            parts = written.setdefault(name, [f"_x{past}"] if past else [])
            if name in counts:
                first = level.get(name, 0.0) + counts[name]
                parts.append(f"{first:.6f}+{counts[name]:.6f}x{phase.minutes - 1}")
                level[name] = level.get(name, 0.0) + phase.minutes * counts[name]
            else:
                parts.append(
                    f"{gauges[name]}x{phase.minutes - 1}" if name in gauges else f"stale _x{phase.minutes - 1}"
                )
        past += phase.minutes
    return {name: " ".join(parts) for name, parts in written.items()}


def judge(path: Path, series: list[dict[str, str]], **tests: Any) -> None:
    """Fail unless promtool sees what is expected."""
    test = {"interval": "1m", "input_series": series, **tests}
    file = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}
    (path / "test.yaml").write_text(yaml.safe_dump(file))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expect(codes: frozenset[str], minutes: int) -> list[dict[str, Any]]:
    """Return the test that just these findings were reported, at any time; the decision's own rules are left aside."""
    samples = [{"labels": f'{{rule="{code}"}}', "value": 1} for code in sorted(codes)]
    expr = 'group by (rule) (max_over_time(ALERTS{alertstate="firing",alertname=~"Draftwise.*"}[2d]))'
    return [{"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}]


def count_minutes(scenario: Scenario) -> int:
    return sum(phase.minutes for phase in scenario.phases) - 1


@needs_promtool
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_a_scenario_raises_its_alerts_and_no_other(scenario: Scenario, tmp_path: Path) -> None:
    write_rules(tmp_path)
    series = list(write_series(scenario, LABELS, VLLM))
    minutes = count_minutes(scenario)
    judge(tmp_path, series, promql_expr_test=expect(scenario.findings, minutes))


@needs_promtool
def test_rates_by_position_are_not_empty_as_the_form_that_guides_print_is(tmp_path: Path) -> None:
    """One side has the label `position`, which the other one lacks: divided plainly, nothing matches."""
    write_rules(tmp_path)
    names = ("accepted_tokens_per_pos", "drafts")
    printed = " / ".join(f"rate(vllm:spec_decode_num_{name}_total[5m])" for name in names)
    series = list(write_series(SCENARIOS[0], LABELS, VLLM))
    tests = [
        {"expr": f"count({expr})", "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": 3}] if found else []}
        for expr, found in ((printed, False), ('draftwise:position_rate:5m{pool="spec"}', True))
    ]
    judge(tmp_path, series, promql_expr_test=tests)


def test_every_alert_has_its_scenario() -> None:
    told = set().union(*(scenario.findings for scenario in SCENARIOS), *(each.codes for each in CASES))
    assert told == {alert.code for alert in ALERTS}


@needs_promtool
@pytest.mark.parametrize("prefix", [VLLM, "ray_vllm_"])
def test_another_model_or_exporter_does_not_change_what_is_said(prefix: str, tmp_path: Path) -> None:
    write_rules(tmp_path, prefix)
    scenario = next(each for each in SCENARIOS if "zero-acceptance" in each.findings)
    minutes = count_minutes(scenario)
    nothing = frozenset({"server-unread"})
    others = list(write_series(scenario, LABELS | {"service": "other"}, prefix))
    judge(tmp_path, others, promql_expr_test=expect(nothing, minutes))
    foreign = VLLM if prefix != VLLM else "ray_vllm_"
    judge(
        tmp_path,
        list(write_series(scenario, LABELS, foreign)),
        promql_expr_test=expect(frozenset(), minutes),
    )
    mine = list(write_series(scenario, LABELS, prefix))
    judge(tmp_path, mine, promql_expr_test=expect(scenario.findings, minutes))


@needs_promtool
def test_servers_without_a_pool_are_watched_all_the_same(tmp_path: Path) -> None:
    write_rules(tmp_path)
    (scenario,) = (each for each in SCENARIOS if each.name == "k too large")
    alone = replace(
        scenario,
        phases=[
            replace(phase, servers={key: server for key, server in phase.servers.items() if key[0] == "spec"})
            for phase in scenario.phases
        ],
    )
    series = list(write_series(alone, LABELS, VLLM, pools=False))
    judge(tmp_path, series, promql_expr_test=expect(scenario.findings, count_minutes(alone)))


@needs_promtool
def test_whoever_is_woken_reads_what_the_decision_said(tmp_path: Path) -> None:
    write_rules(tmp_path)
    (scenario,) = (each for each in SCENARIOS if each.name == "k too large")
    fact = get_finding("tail-dead")
    labels = {"severity": "info", "rule": "tail-dead", "action": "lower-k", "pool": "spec"}
    labels |= {name: LABELS[name] for name in ("namespace", "service")} | {"revision": ORDER.revision}
    texts = {
        "summary": f"{fact.title} ({ORDER.service}, namespace prod, pool spec).",
        "description": f"{fact.explains} {fact.fix}",
        "decision": FOUND,
        "run": "2026-11-22",
    }
    alert = {"exp_labels": labels, "exp_annotations": texts}
    test = {"eval_time": "170m", "alertname": "DraftwiseTailDead", "exp_alerts": [alert]}
    judge(tmp_path, list(write_series(scenario, LABELS, VLLM)), alert_rule_test=[test])


@needs_promtool
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("traffic that the drafter does not know", "fell-below-break-even"),
        ("more traffic than speculation pays for", "above-crossover"),
        ("restarted", ""),
    ],
)
def test_the_rules_of_the_decision_hold_for_an_hour_on_the_servers_that_speculate(
    name: str, code: str, tmp_path: Path
) -> None:
    write_rules(tmp_path)
    (scenario,) = (each for each in SCENARIOS if each.name == name)
    expr = 'group by (rule, action) (max_over_time(ALERTS{alertstate="firing",alertname="SpeculationRollback"}[2d]))'
    samples = [{"labels": f'{{rule="{code}",action="rollback"}}', "value": 1}] if code else []
    tests = [
        {"expr": expr, "eval_time": "75m", "exp_samples": []},
        {"expr": expr, "eval_time": "110m", "exp_samples": samples},
    ]
    judge(tmp_path, list(write_series(scenario, LABELS, VLLM)), promql_expr_test=tests)


@pytest.mark.parametrize("empty", [True, False])
@needs_promtool
def test_a_service_that_may_have_no_replica_is_silent_without_a_target(empty: bool, tmp_path: Path) -> None:
    order = replace(ORDER, around=Surroundings(may_be_empty=empty))
    rules = make_rules(order, name_for(order, VLLM))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules.groups)}))
    steady = replace(SCENARIOS[0].phases[0], minutes=30)
    served = Scenario(name="", phases=(steady, Phase(minutes=60, servers={}), steady))
    found = frozenset[str]() if empty else frozenset({"server-unread"})
    judge(tmp_path, list(write_series(served, LABELS, VLLM)), promql_expr_test=expect(found, count_minutes(served)))
    assert set(rules.missing) == ({"DraftwiseNothingRead"} if empty else set())
    scaled = replace(order, platform=replace(order.platform, scale=Scale(most=4, per_replica=8)))
    assert make_rules(scaled, name_for(scaled, VLLM)).missing == {}


def test_a_tail_that_was_adopted_so_is_no_alert() -> None:
    stats = SpecStats(num_drafts=1000, num_draft_tokens=3000, num_accepted_tokens=940, accepted_per_pos=(600, 300, 40))
    expected = Expected(workload="chat", condition=SPEED.condition, counters=Counters(spec=stats))
    order = replace(ORDER, evidence=replace(EVIDENCE, expected=expected))
    assert "DraftwiseTailDead" in make_rules(order, name_for(order, VLLM)).missing


def test_without_a_run_only_alerts_that_need_no_number_of_it_are_written() -> None:
    order = make_order(SETUP)
    rules = make_rules(order, name_for(order, VLLM))
    assert set(rules.missing) == {"DraftwiseBelowBreakEven", "DraftwiseAboveCrossover", "DraftwiseCoverageLost"}
    assert "`draftwise decide`" in rules.missing["DraftwiseBelowBreakEven"]
    text = str(rules.groups)
    assert "breakeven" not in text
    assert "configured_k" in text  # the setup gives it
    assert [group["name"].rpartition("-")[2] for group in rules.groups] == ["constants", "readings", "alerts"]


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        (SpecConfig(method="suffix", num_speculative_tokens=16), {"DraftwiseDraftsShortened"}),
        (
            SpecConfig(
                method="ngram",
                num_speculative_tokens=3,
                options={"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]},
            ),
            {"DraftwiseDraftsShortened", "DraftwiseCoverageLost"},
        ),
    ],
    ids=["suffix", "schedule"],
)
def test_drafts_of_a_length_that_varies_are_held_against_none(spec: SpecConfig, missing: set[str]) -> None:
    order = replace(ORDER, setup=replace(SETUP, spec=spec))
    assert set(make_rules(order, name_for(order, VLLM)).missing) == missing


@pytest.mark.parametrize("release", releases(), ids=str)
def test_every_release_exports_what_the_rules_read(release: Release) -> None:
    order = replace(ORDER, setup=replace(SETUP, engine_version=str(release)))
    assert make_rules(order, name_for(order, VLLM)).missing == {}


def test_what_a_release_does_not_export_is_left_out_with_all_that_rests_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {name: row for name, row in Release.table(RELEASE, "metrics").items() if "prefix_cache" not in name}
    monkeypatch.setattr(Release, "table", lambda _self, _topic: rest)
    rules = make_rules(ORDER, name_for(ORDER, VLLM))
    reason = "vLLM 0.26.0 does not export vllm:prefix_cache_hits_total"
    assert rules.missing == {"DraftwisePrefixCacheLoss": reason}
    assert "prefix_cache" not in str([group["rules"] for group in rules.groups if "readings" in group["name"]])


def test_the_promise_is_the_strictest_of_all_that_was_adopted() -> None:
    light = replace(SPEED, value=1.2, condition=Condition(load=ClosedLoop(concurrency=1)), measured=2.0)
    chat_end = replace(LOAD, workload="chat", value=24)
    evidence = replace(EVIDENCE, rollback=(light, SPEED, LOAD, chat_end))
    order = replace(ORDER, evidence=evidence)
    constants = {each.record: each.value for each in find_constants(order)}
    assert constants["draftwise:breakeven_tokens_per_step"] == BREAK_EVEN
    assert constants["draftwise:expected_tokens_per_step"] == MEASURED
    assert constants["draftwise:crossover_in_flight"] == 24


@pytest.mark.parametrize(
    ("served", "label"), [(["chat", "llama"], "chat"), ("chat", "chat"), (None, MODEL), ([], MODEL)]
)
def test_the_model_is_known_by_the_first_name_that_it_is_served_under(served: Any, label: str) -> None:
    args = {} if served is None else {"served_model_name": served}
    assert name_for(replace(ORDER, setup=replace(SETUP, args=args)), VLLM).model == label


@pytest.mark.parametrize("prefix", ["", "9x", "a b", 'x"'])
def test_a_prefix_that_no_metric_has_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSetup) as refused:
        name_for(ORDER, prefix)
    assert refused.value.findings[0].code == "metrics-prefix"


def test_text_is_no_template() -> None:
    order = replace(ORDER, evidence=replace(EVIDENCE, headline="{{ $x }} pays"))
    (found,) = {rule["annotations"]["decision"] for rule in make_rules(order, name_for(order, VLLM)).groups[2]["rules"]}
    assert found == '{{ "{{" }} $x }} pays'
