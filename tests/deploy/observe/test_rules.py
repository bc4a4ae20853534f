"""The rules of a deployed service, judged by promtool: silent in a healthy day, and each alert where it belongs."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.production import BREAK_EVEN, CROSSOVER, MEASURED, SCENARIOS, Scenario

from draftwise.core import (
    ClosedLoop,
    Condition,
    Device,
    InvalidSetup,
    Relation,
    Rollback,
    RollbackBasis,
    Setup,
    SpecConfig,
)
from draftwise.deploy import Evidence, make_order
from draftwise.deploy.observe.naming import VLLM, name_for
from draftwise.deploy.observe.rules import ALERTS, make_rules
from draftwise.facts.findings import get_finding
from draftwise.facts.vllm import releases

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SETUP = Setup(
    target=MODEL,
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="H200", kind="cuda"),
    spec=SpecConfig(method="eagle3", num_speculative_tokens=3, model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
)
SPEED = Rollback(
    workload="code",
    arm="eagle3 k=3",
    metric="tokens_per_step",
    relation=Relation.BELOW,
    value=BREAK_EVEN,
    for_s=3600,
    basis=RollbackBasis.BREAK_EVEN,
    condition=Condition(load=ClosedLoop(concurrency=32)),
    loads=(0, CROSSOVER),
    measured=MEASURED,
)
LOAD = replace(
    SPEED,
    metric="requests_in_flight",
    relation=Relation.ABOVE,
    value=CROSSOVER,
    basis=RollbackBasis.BAND_END,
    loads=None,
    measured=None,
)
FOUND = "Adopt eagle3 k=3 for code: 1.39x (1.31-1.47)."
EVIDENCE = Evidence(run="2026-11-22", headline=FOUND, rollback=(SPEED, LOAD), wanted_gain=0.03)
ORDER = make_order(SETUP, evidence=EVIDENCE)


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
        for sample, values in write_values(scenario, (pool, instance)).items():
            name, _, label = sample.partition("{")
            matchers = ",".join(
                [*(f'{key}="{value}"' for key, value in own.items()), *filter(None, [label.rstrip("}")])]
            )
            start = "" if name.startswith("process_") else prefix
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
            else {**server.read_gauges(), "process_start_time_seconds": 60.0 * past * phase.restarted}
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


def judge(path: Path, series: list[dict[str, str]], minutes: int, **tests: Any) -> None:
    """Fail unless promtool sees what is expected."""
    test = {"interval": "1m", "input_series": series, **tests}
    file = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}
    (path / "test.yaml").write_text(yaml.safe_dump(file))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expect(codes: frozenset[str], minutes: int) -> list[dict[str, Any]]:
    """Return the test that just these findings were reported, at any time."""
    samples = [{"labels": f'{{rule="{code}"}}', "value": 1} for code in sorted(codes)]
    expr = 'group by (rule) (max_over_time(ALERTS{alertstate="firing"}[2d]))'
    return [{"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}]


def count_minutes(scenario: Scenario) -> int:
    return sum(phase.minutes for phase in scenario.phases) - 1


@needs_promtool
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_a_scenario_raises_its_alerts_and_no_other(scenario: Scenario, tmp_path: Path) -> None:
    write_rules(tmp_path)
    series = list(write_series(scenario, {"model_name": MODEL}, VLLM))
    minutes = count_minutes(scenario)
    judge(tmp_path, series, minutes, promql_expr_test=expect(scenario.findings, minutes))


def test_every_alert_has_its_scenario() -> None:
    told = set().union(*(scenario.findings for scenario in SCENARIOS))
    assert told == {alert.code for alert in ALERTS}
    assert len(ALERTS) == 14
