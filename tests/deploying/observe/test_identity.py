"""Rules tell services apart by what the deployment puts on its targets: no alert about one for another's sake."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.deploying.observe.identity_cases import CASES, SERVICE, Case, Part
from tests.deploying.observe.test_rules import LABELS, REVISIONS, judge, needs_promtool, write_rules, write_values
from tests.support.adopted import IMAGES, ORDER
from tests.support.production import Scenario

from draftwise.deploying import TARGETS, deploy
from draftwise.deploying.observe.promise import VLLM

SHOWN = ("namespace", "service", "deployment", "pool", "revision")


def write_series(part: Part) -> Iterator[dict[str, str]]:
    scenario = Scenario(name="", phases=part.list_phases())
    for phase in scenario.phases:
        for pool, instance in phase.servers:
            own = LABELS | {"job": "draftwise", "instance": instance, "pool": pool, "revision": REVISIONS[pool]}
            labels = {name: value for name, value in (own | dict(part.labels)).items() if value}
            for sample, values in write_values(scenario, (pool, instance)).items():
                name, _, more = sample.partition("{")
                pairs = [f'{key}="{value}"' for key, value in labels.items()]
                matchers = ",".join([*pairs, *filter(None, [more[:-1]])])
                shown = part.start if part.start and name == "process_start_time_seconds" else values
                prefix = "" if name in ("process_start_time_seconds", "up") else VLLM
                yield {"series": f"{prefix}{name}{{{matchers}}}", "values": shown}


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)
def test_each_is_told_of_itself_alone(case: Case, tmp_path: Path) -> None:
    assert ORDER.service == SERVICE
    write_rules(tmp_path)
    minutes = max(sum(part.minutes) for part in case.parts) - 1
    series = [each for part in case.parts for each in write_series(part)]
    alerts = 'ALERTS{alertstate="firing",alertname=~"Draftwise.*"}'
    ever = f"group by (rule, namespace, instance) (max_over_time({alerts}[2d]))"
    samples = []
    for code, namespace, instance in sorted(case.said):
        found = {"rule": code, "namespace": namespace, "instance": instance}
        labels = ",".join(f'{name}="{value}"' for name, value in found.items() if value)
        samples.append({"labels": f"{{{labels}}}", "value": 1})
    tests = [{"expr": ever, "eval_time": f"{minutes}m", "exp_samples": samples}]
    if case.ends:
        tests.append({"expr": alerts, "eval_time": f"{minutes}m", "exp_samples": []})
    judge(tmp_path, series, promql_expr_test=tests)


@pytest.mark.parametrize("to", ["kubernetes", "compose"])
def test_the_scrape_gives_every_label_that_rules_select_by(to: str) -> None:
    files = deploy(ORDER, to).files
    name = "podmonitor" if TARGETS[to].in_cluster else "scrape"
    text = files[f"observe/{name}.yaml"]
    found = yaml.safe_load(text)
    if TARGETS[to].in_cluster:
        (endpoint,) = found["spec"]["podMetricsEndpoints"]
        given = {each.get("targetLabel") for each in endpoint["relabelings"]} | {"namespace"}  # the operator's own
    else:
        (given,) = {tuple(each["labels"]) for each in found["scrape_configs"][0]["static_configs"]}
    assert set(SHOWN) <= set(given)


@pytest.mark.parametrize("to", [name for name, target in TARGETS.items() if target.in_cluster])
def test_nothing_is_scraped_a_second_time_by_annotations(to: str) -> None:
    files = deploy(replace(ORDER, image=IMAGES.get(to, ORDER.image)), to).files
    assert not any("prometheus-scraping" in text or "prometheus.io/scrape" in text for text in files.values())
