"""What else watches a service: scraping, notifications, the dashboard, the analysis of a canary, and its memo."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft7Validator
from tests.support.adopted import EVIDENCE, FOUND, IMAGES, MODEL, ORDER, SETUP, SPEED

from draftwise.cli import main
from draftwise.core import Condition, OpenLoop
from draftwise.deploying import TARGETS, Platform, deploy, make_order
from draftwise.deploying.observe import observe
from draftwise.deploying.observe.analysis import find_window
from draftwise.deploying.observe.promise import VLLM, Promise, find_promise, name_for

GRAFANA = Path(__file__).with_name("grafana-dashboard.schema.json")
"""Of grafana/grafana-foundation-sdk f178d5a42a89 (Apache-2.0), jsonschema/dashboard.jsonschema.json."""
ALWAYS = {"rules.yaml", "alertmanager.yaml", "dashboard.json"}
IN_CLUSTER = {"prometheusrule.yaml", "podmonitor.yaml"}
ANALYSES = {"analysis.yaml", "flagger.yaml"}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")


def read(name: str, order: Any = ORDER) -> Any:
    return yaml.safe_load(observe(order, in_cluster=name != "scrape.yaml").files[f"observe/{name}"][1])


@pytest.mark.parametrize("to", TARGETS)
def test_every_platform_is_watched_and_the_memo_lists_it(to: str) -> None:
    order = replace(ORDER, image=IMAGES.get(to, ORDER.image), platform=Platform(verifier="registry/draftwise:1"))
    files = deploy(order, to).files
    written = {name.removeprefix("observe/") for name in files if name.startswith("observe/")}
    assert written == ALWAYS | (IN_CLUSTER | ANALYSES if TARGETS[to].in_cluster else {"scrape.yaml"})
    assert all(f"- `{name}`: " in files["MEMO.md"] for name in files if name != "MEMO.md")
    assert "## Not watched" not in files["MEMO.md"]


def test_what_is_not_watched_without_a_run_is_said() -> None:
    files = deploy(make_order(SETUP), "kubernetes").files
    assert not {f"observe/{name}" for name in ANALYSES} & set(files)
    told = files["MEMO.md"].partition("## Not watched\n")[2].partition("\n## ")[0]
    for text in (
        "There is no alert DraftwiseBelowBreakEven, because",
        "There is no alert DraftwiseAboveCrossover, because",
        "There is no canary analysis",
    ):
        assert text in told


def test_watching_is_refused_by_name(tmp_path: Path) -> None:
    spec = '{"method": "ngram", "num_speculative_tokens": 3}'
    command = ["deploy", MODEL, "-sc", spec, "--vllm", "0.26.0", "--gpu", "H200", "--to", "compose", "--out"]
    result = CliRunner().invoke(main, [*command, str(tmp_path / "with"), "--metrics-prefix", "ray_vllm_"])
    assert result.exit_code == 0, result.output
    assert "ray_vllm_generation_tokens_total" in (tmp_path / "with" / "observe" / "rules.yaml").read_text()
    result = CliRunner().invoke(main, [*command, str(tmp_path / "without"), "--no-observe"])
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "without" / "observe").exists()
    assert "## Not watched" in (tmp_path / "without" / "MEMO.md").read_text()


def test_the_operator_gets_the_rules_that_prometheus_gets() -> None:
    assert read("prometheusrule.yaml")["spec"] == read("rules.yaml")


def test_both_twins_are_scraped_with_their_pool() -> None:
    spec = read("podmonitor.yaml")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    for side in (ORDER, ORDER.without_speculation()):
        assert spec["selector"]["matchLabels"].items() <= side.labels.items()
    port, *labelings = endpoint["relabelings"]
    assert (port["regex"], port["action"]) == ("8000", "keep")
    labels = {re.sub(r"\W", "_", f"__meta_kubernetes_pod_label_{name}"): name for name in ORDER.labels}
    found = {each["targetLabel"]: labels[each["sourceLabels"][0]].rpartition("/")[2]
             for each in labelings if each["sourceLabels"][0] in labels}  # fmt: skip
    assert found == {"service": "name", "deployment": "instance", "pool": "pool", "revision": "revision"}
    others = [each["sourceLabels"] for each in labelings if each["sourceLabels"][0] not in labels]
    assert others == [[f"__meta_kubernetes_pod_annotation_draftwise_dev_{name}"] for name in ("pool", "revision")]
    (job,) = read("scrape.yaml")["scrape_configs"]
    assert [each["labels"]["pool"] for each in job["static_configs"]] == ["spec", "plain"]


@needs_promtool
def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yaml").write_text(observe(ORDER, in_cluster=False).files["observe/scrape.yaml"][1])
    subprocess.run(["promtool", "check", "config", "prometheus.yaml"], cwd=tmp_path, check=True, capture_output=True)


@needs_amtool
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"rule": "zero-acceptance", "action": "drain"}, "draftwise-pager"),
        ({"rule": "fell-below-break-even", "action": "rollback"}, "draftwise-pager"),
        ({"rule": "tail-dead", "action": "lower-k"}, "draftwise-tickets"),
        ({"alertname": "NodeDown"}, "default"),
        ({"rule": "tail-dead", "action": "lower-k", "service": "other"}, "default"),
    ],
)
def test_alerts_go_to_whom_they_concern(labels: dict[str, str], receiver: str, tmp_path: Path) -> None:
    (tmp_path / "am.yaml").write_text(observe(ORDER, in_cluster=True).files["observe/alertmanager.yaml"][1])
    words = [f"{name}={value}" for name, value in ({"service": ORDER.service} | labels).items()]
    command = ["amtool", "config", "routes", "test", "--config.file=am.yaml", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == receiver
    subprocess.run(["amtool", "check-config", "am.yaml"], cwd=tmp_path, check=True, capture_output=True)


@needs_amtool
def test_slack_and_the_pager_show_the_decision(tmp_path: Path) -> None:
    receivers = {each["name"]: each for each in read("alertmanager.yaml")["receivers"]}
    slack = receivers["draftwise-tickets"]["slack_configs"][0]["text"]
    pager = receivers["draftwise-pager"]["pagerduty_configs"][0]["details"]["what"]
    alert = {"annotations": {"summary": "It is slow.", "description": "Go back."}, "labels": {}}
    data = {"alerts": [alert], "commonAnnotations": {"decision": FOUND, "run": "r1"}, "commonLabels": {}}
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "empty.tmpl").write_text("")
    for text in (slack, pager):
        command = ["amtool", "template", "render", "--template.glob=*.tmpl", "--template.data=data.json"]
        done = subprocess.run(
            [*command, f"--template.text={text}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"It is slow. Go back.\nMeasured before: {FOUND} (run r1)"


def test_no_secret_is_written() -> None:
    text = observe(ORDER, in_cluster=True).files["observe/alertmanager.yaml"][1]
    assert not re.search(r"^\s*-? ?(api_url|routing_key|service_key|password|token):", text, re.M)


def read_dashboard(order: Any = ORDER) -> Any:
    return json.loads(observe(order, in_cluster=True).files["observe/dashboard.json"][1])


def test_the_dashboard_is_one_for_grafana() -> None:
    dashboard = read_dashboard()
    assert list(Draft7Validator(json.loads(GRAFANA.read_text())).iter_errors(dashboard)) == []
    assert dashboard["schemaVersion"] == 42
    assert "vllm" in dashboard["links"][0]["tags"]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert all(above["y"] < place["y"] or above["x"] < place["x"] for above, place in pairwise(places))


def test_every_panel_reads_what_is_recorded_or_exported() -> None:
    naming = name_for(ORDER, VLLM)
    recorded = {rule.get("record") for group in read("rules.yaml")["groups"] for rule in group["rules"]}
    queries = [target["expr"] for panel in read_dashboard()["panels"] for target in panel.get("targets", ())]
    for query in queries:
        assert naming.find_missing(query) == ""
        assert set(re.findall(r"draftwise:[\w:]+", query)) <= recorded
        assert query.count("revision=~") == len(re.findall(r"(?:draftwise|vllm):", query))
    shown = {name for query in queries for name in re.findall(r"draftwise:[\w:]+", query)}
    assert {
        "draftwise:tokens_per_step:5m",
        "draftwise:breakeven_tokens_per_step",
        "draftwise:crossover_in_flight",
    } <= shown


@needs_promtool
def test_every_query_is_promql(tmp_path: Path) -> None:
    dashboard = read_dashboard()
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [each["expr"] for each in dashboard["annotations"]["list"]]
    queries += [each["provider"]["prometheus"]["query"] for each in read("analysis.yaml")["spec"]["metrics"]]
    queries.append(read("flagger.yaml")["spec"]["query"])
    rules = [{"record": f"q:{index}", "expr": query} for index, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", "rules.yaml"], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("source", ["zero-acceptance", "replica-outlier"])
def test_lower_acceptance_of_a_dead_drafter_is_no_second_alert(source: str) -> None:
    rules = read("alertmanager.yaml")["inhibit_rules"]
    (targets,) = (str(each["target_matchers"]) for each in rules if source in str(each["source_matchers"]))
    assert "fell-below-break-even" in targets
    assert "fades-with-uptime" in targets


def judge(metric: Any, result: list[float]) -> str:
    """Return what Argo Rollouts makes of a result, going by the conditions (expr-lang)."""

    def holds(condition: str) -> bool:
        text = condition.replace("&&", "and").replace("!isNaN", "not isNaN")
        scope = {"result": result, "len": len, "isNaN": isnan}
        return bool(eval(text, {"__builtins__": {}}, scope))

    failed, passed = holds(metric["failureCondition"]), holds(metric["successCondition"])
    assert not (failed and passed)
    return "failed" if failed else "passed" if passed else "inconclusive"


@pytest.mark.parametrize(
    ("result", "verdict"),
    [([1.34], "failed"), ([1.36], "inconclusive"), ([1.40], "passed"), ([], "inconclusive"), ([nan], "inconclusive")],
)
def test_a_canary_fails_under_the_break_even_and_passes_from_the_wanted_gain(result: list[float], verdict: str) -> None:
    metric = read("analysis.yaml")["spec"]["metrics"][0]
    assert judge(metric, result) == verdict
    assert int(metric["initialDelay"].removesuffix("s")) > ORDER.startup_s


@pytest.mark.parametrize(
    ("result", "verdict"),
    [([0.9], "passed"), ([1.0], "inconclusive"), ([1.03], "failed"), ([], "inconclusive"), ([nan], "inconclusive")],
)
def test_a_canary_is_held_against_the_plain_pool(result: list[float], verdict: str) -> None:
    metric = read("analysis.yaml")["spec"]["metrics"][1]
    assert judge(metric, result) == verdict


def test_flagger_rolls_back_under_the_break_even() -> None:
    text = observe(ORDER, in_cluster=True).files["observe/flagger.yaml"][1]
    (metric,) = yaml.safe_load("".join(f"{line[2:]}\n" for line in text.splitlines()[1:] if line.startswith("# ")))
    assert metric["thresholdRange"] == {"min": 1.35}
    assert metric["templateRef"]["name"] == yaml.safe_load(text)["metadata"]["name"]


@pytest.mark.parametrize(("measured", "requests"), [(1.88, 17), (1.45, 274)])
def test_the_nearer_the_break_even_the_more_requests_a_window_needs(measured: float, requests: int) -> None:
    promise = Promise(break_even=1.35, measured=measured, wanted_gain=0.03, rate_per_s=None)
    assert find_window(promise).requests == requests
    assert find_window(promise).seconds == 600
    assert find_window(replace(promise, rate_per_s=0.2)).seconds == max(300, 60 * -(-requests // 12))


def test_the_rate_that_was_measured_gives_the_window() -> None:
    rule = replace(SPEED, condition=Condition(load=OpenLoop.steady(0.01)))
    promise = find_promise(replace(ORDER, evidence=replace(EVIDENCE, rollback=(rule,))))
    assert promise is not None
    assert find_window(promise).seconds == 1740


def test_the_series_that_rules_record_are_said() -> None:
    """A service with four speculating replicas and a plain one records 28 + 5 series at most."""
    about = observe(ORDER, in_cluster=True).files["observe/rules.yaml"][0]
    series = re.search(r"at most (\d+) series and (\d+) more per replica", about)
    assert series is not None
    rules = yaml.safe_load(observe(ORDER, in_cluster=True).files["observe/rules.yaml"][1])["groups"]
    recorded = [rule for group in rules for rule in group["rules"] if "record" in rule]
    by_replica = [rule for rule in recorded if rule["record"].startswith("draftwise:replica_")]
    assert int(series[2]) == len(by_replica) == 1
    constants = [rule for rule in recorded if rule["expr"].startswith("vector(")]
    pooled = len(recorded) - len(constants) - len(by_replica) - 1  # one is by position
    assert int(series[1]) == len(constants) + 2 * pooled + 3
