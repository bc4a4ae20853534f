"""KEDA's objects: both twins are scaled by their own requests in flight, and by nothing that nobody measured."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.adopted import EVIDENCE, IMAGES, LOAD, ORDER, SPEED
from tests.support.production import CROSSOVER

from draftwise.core import InvalidSetup
from draftwise.deploying import TARGETS, Platform, deploy, read_layout
from draftwise.deploying.order import RunEvidence, Scale, ServiceOrder

MEASURED = replace(
    EVIDENCE,
    arm="eagle3 k=3",
    plain_arm="plain",
    curve_ms={"eagle3 k=3": ((1, 9.0), (64, 20.0)), "plain": ((96, 12.0),)},
)


def scaled(evidence: RunEvidence = MEASURED, *, per_replica: int | None = None) -> ServiceOrder:
    return replace(ORDER, evidence=evidence, platform=Platform(scale=Scale(most=8, per_replica=per_replica)))


def read_triggers(order: ServiceOrder, to: str = "kubernetes") -> dict[str, dict[str, Any]]:
    """Return what scales each object, by its name."""
    objects = yaml.safe_load_all(deploy(order, to).files["scaling.yaml"])
    return {each["spec"]["scaleTargetRef"]["name"]: each["spec"]["triggers"][0]["metadata"] for each in objects}


def test_speculation_scales_where_it_stops_paying_and_its_twin_where_the_load_was_measured() -> None:
    found = read_triggers(scaled())
    assert [each["threshold"] for each in found.values()] == [str(CROSSOVER), "96"]
    only_measured = replace(MEASURED, rollback=(SPEED,))
    assert [each["threshold"] for each in read_triggers(scaled(only_measured)).values()] == ["64", "96"]
    assert [each["threshold"] for each in read_triggers(scaled(per_replica=50)).values()] == ["50", "50"]


@pytest.mark.parametrize("to", TARGETS)
def test_what_is_scaled_is_an_object_of_the_files_without_a_number_of_its_own(to: str) -> None:
    order = replace(scaled(), image=IMAGES.get(to, ORDER.image))
    if not TARGETS[to].scaled:
        with pytest.raises(InvalidSetup) as refused:
            deploy(order, to)
        assert [finding.code for finding in refused.value.findings] == ["scales-otherwise"]
        return
    files = deploy(order, to).files
    objects = [each for name in ("spec.yaml", "plain.yaml") for each in yaml.safe_load_all(files[name])]
    names = {(each["apiVersion"], each["kind"], each["metadata"]["name"]): each for each in objects}
    for scaler in yaml.safe_load_all(files["scaling.yaml"]):
        target = scaler["spec"]["scaleTargetRef"]
        if to == "kserve":  # whose controller makes the Deployment, with no number where the autoscaler is another's
            service = names["serving.kserve.io/v1beta1", "InferenceService", target["name"].removesuffix("-predictor")]
            assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "external"
        else:
            assert "replicas" not in names[target["apiVersion"], target["kind"], target["name"]]["spec"]
    assert f"`kubectl delete scaledobject {order.name}`" in files["MEMO.md"]


@pytest.mark.parametrize("release", ["0.15", "0.20"])
def test_knative_scales_both_twins_by_fields_of_their_own(release: str) -> None:
    order = scaled()
    platform = replace(order.platform, mode="Knative", release=release, layout=read_layout("pvc:models"))
    files = deploy(replace(order, platform=platform), "kserve").files
    assert "scaling.yaml" not in files
    assert "ScaledObject" not in files["MEMO.md"]
    for side, threshold in (("spec", CROSSOVER), ("plain", 96), ("canary", CROSSOVER)):
        _, service = yaml.safe_load_all(files[f"{side}.yaml"])
        predictor = service["spec"]["predictor"]
        assert (predictor["minReplicas"], predictor["maxReplicas"]) == (1, 8)
        assert (predictor["scaleMetric"], predictor["scaleTarget"]) == ("concurrency", threshold)
        # All of the target, which is what was measured; and a start's 1200 s before a replica goes.
        notes = {name.partition("/")[2]: value for name, value in predictor["annotations"].items()}
        assert notes["target-utilization-percentage"] == "100"
        assert notes["scale-down-delay"] == f"{order.startup_s}s"


@pytest.mark.parametrize(
    "evidence", [RunEvidence(), replace(MEASURED, curve_ms={}), replace(MEASURED, curve_ms={}, rollback=(LOAD,))]
)
def test_what_nobody_measured_scales_nothing(evidence: RunEvidence) -> None:
    """Also where speculation has a crossover and its twin was never seen under load."""
    with pytest.raises(InvalidSetup) as refused:
        deploy(scaled(evidence), "kubernetes")
    assert [finding.code for finding in refused.value.findings] == ["replica-not-measured"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_counts_the_requests_of_the_twin_alone(tmp_path: Path) -> None:
    """Two replicas that speculate, one that does not, another service's, and one in another namespace."""
    found = read_triggers(scaled())
    rules = [{"record": name.replace("-", "_"), "expr": each["query"]} for name, each in found.items()]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "scaling", "rules": rules}]}))
    names = {"spec": ORDER.name, "plain": ORDER.without_speculation().name}
    revisions = {"spec": ORDER.revision, "plain": ORDER.go_back().revision}
    pods = [
        ("spec", "a", ORDER.service, 40, 7),
        ("spec", "b", ORDER.service, 33, 0),
        ("plain", "c", ORDER.service, 5, 1),
        ("spec", "d", "other", 9, 9),
        ("spec", "e", ORDER.service, 9, 9),
    ]
    series = [
        {
            "series": f'vllm:num_requests_{what}{{service="{service}",deployment="{names[pool]}",'
            f'revision="{revisions[pool]}",pool="{pool}",namespace="{namespace}",instance="{pod}"}}',
            "values": f"{count}x3",
        }
        for pool, pod, service, *counts in pods
        for namespace in ["staging" if pod == "e" else "default"]
        for what, count in zip(("running", "waiting"), counts, strict=True)
    ]
    wanted = [
        {"expr": rule["record"], "eval_time": "2m", "exp_samples": [{"labels": rule["record"], "value": value}]}
        for rule, value in zip(rules, (80, 6), strict=True)
    ]
    tests = {
        "rule_files": ["rules.yaml"],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": wanted}],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
