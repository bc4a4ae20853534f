"""Argo Rollouts and Flagger: the running twin is changed in steps, judged by what the run promised, and goes back."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.support.adopted import IMAGES, ORDER, SETUP, limits_of

from draftwise.deploying import Folder, Platform, deploy, make_order
from draftwise.deploying.order import ServiceOrder
from draftwise.setups.read import SourceText, read_setups

JUDGED = replace(ORDER, platform=Platform(verifier="registry/draftwise:1"))


def documents(folder: Folder, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(folder.files[name]))


@pytest.mark.parametrize("to", ["argo-rollouts", "flagger"])
def test_the_canary_is_the_twin_with_pods_that_speculate(to: str) -> None:
    folder = deploy(ORDER, to)
    plain, canary = (documents(folder, name)[0] for name in ("rollback.yaml", "canary.yaml"))
    spec = documents(folder, "spec.yaml")[0]["spec"]["template"]
    assert (canary["kind"], canary["metadata"]["name"]) == (plain["kind"], plain["metadata"]["name"])
    assert canary["spec"]["selector"] == plain["spec"]["selector"]  # which no API server lets change
    assert canary["spec"]["template"]["spec"] == spec["spec"]
    labels = canary["spec"]["template"]["metadata"]["labels"]
    assert labels["draftwise.dev/pool"] == "spec"
    assert canary["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (reading,) = read_setups(SourceText(text=folder.files["canary.yaml"], name="canary.yaml"))
    assert (reading.setup.target, reading.setup.spec) == (SETUP.target, SETUP.spec)


def steps_of(order: ServiceOrder, *, prefix: str | None = "") -> list[dict[str, Any]]:
    rollout = documents(deploy(order, "argo-rollouts", metrics_prefix=prefix), "canary.yaml")[0]
    return list(rollout["spec"]["strategy"]["canary"]["steps"])


def test_each_step_of_a_rollout_waits_for_the_analysis_or_for_a_person() -> None:
    (first, judged, second, again) = steps_of(ORDER)
    assert (first, second) == ({"setWeight": 10}, {"setWeight": 50})
    assert judged == again == {"analysis": {"templates": [{"templateName": ORDER.service}]}}
    assert steps_of(make_order(SETUP))[1::2] == [{"pause": {}}] * 2  # no run gives limits
    assert steps_of(ORDER, prefix=None)[1::2] == [{"pause": {}}] * 2  # the template is not written


def test_the_twin_of_a_rollout_has_no_steps_so_that_applying_it_goes_back_at_once() -> None:
    for name in ("plain.yaml", "spec.yaml"):
        assert documents(deploy(ORDER, "argo-rollouts"), name)[0]["spec"]["strategy"] == {
            "canary": {"maxSurge": 1, "maxUnavailable": 0}
        }


def test_the_services_of_a_canary_are_those_that_the_rollout_names() -> None:
    rollout, *services = documents(deploy(JUDGED, "argo-rollouts"), "canary.yaml")
    canary = rollout["spec"]["strategy"]["canary"]
    assert [each["metadata"]["name"] for each in services] == [canary["stableService"], canary["canaryService"]]
    # The controller adds the hash of the pods that each is to find.
    assert all(each["spec"]["selector"] == rollout["spec"]["selector"]["matchLabels"] for each in services)
    args = {each["name"]: each["value"] for each in canary["steps"][1]["analysis"]["args"]}
    assert args == {f"{role}-url": f"http://{canary[f'{role}Service']}" for role in ("stable", "canary")}


def test_the_third_metric_verifies_the_canary_against_the_stable_side() -> None:
    setup, analysis = documents(deploy(JUDGED, "kubernetes"), "observe/analysis.yaml")
    job = analysis["spec"]["metrics"][2]["provider"]["job"]["spec"]["template"]["spec"]
    (container,) = job["containers"]
    assert container["image"] == "registry/draftwise:1"
    command = container["command"]
    assert command[:2] == ["draftwise", "verify"]
    given = {each["name"] for each in analysis["spec"]["args"]}
    assert {word[7:-2] for word in command if word.startswith("{{args.")} == {"canary-url", "stable-url"} <= given
    (mount,) = container["volumeMounts"]
    assert command[command.index("--setup") + 1] == f"{mount['mountPath']}/setup.json"
    assert job["volumes"][0]["configMap"]["name"] == setup["metadata"]["name"]
    (reading,) = read_setups(SourceText(text=setup["data"]["setup.json"], name="setup.json"))
    assert reading.setup.spec == SETUP.spec


def test_without_an_image_nothing_is_verified_and_the_memo_says_so() -> None:
    files = deploy(ORDER, "argo-rollouts").files
    assert "ConfigMap" not in files["observe/analysis.yaml"]
    assert "args" not in steps_of(ORDER)[1]["analysis"]
    assert "does not run `draftwise verify`" in files["MEMO.md"]


def test_flagger_holds_the_canary_against_the_break_even() -> None:
    folder = deploy(ORDER, "flagger")
    (canary,), (template,) = (documents(folder, name) for name in ("flagger-canary.yaml", "observe/flagger.yaml"))
    deployment = documents(folder, "rollback.yaml")[0]
    assert canary["spec"]["targetRef"]["name"] == deployment["metadata"]["name"]
    (metric,) = canary["spec"]["analysis"]["metrics"]
    assert metric["templateRef"]["name"] == template["metadata"]["name"]
    assert metric["thresholdRange"] == {"min": 1.35}
    # Flagger copies the Deployment and renames this label of the copy; by the others both are scraped.
    assert list(deployment["spec"]["selector"]["matchLabels"]) == ["app"]
    assert (
        documents(deploy(make_order(SETUP), "flagger"), "flagger-canary.yaml")[0]["spec"]["analysis"]["metrics"] == []
    )


def test_the_memo_has_the_canary_and_the_way_back() -> None:
    memo = deploy(ORDER, "argo-rollouts").files["MEMO.md"]
    name = ORDER.service
    assert f"kubectl apply -f canary.yaml && kubectl argo rollouts status {name}" in memo
    assert f"kubectl argo rollouts abort {name}" in memo
    assert "canary of 10 % is a second pod" in memo


def test_the_operator_of_the_production_stack_is_told_what_it_would_turn_off() -> None:
    folder = deploy(ORDER, "vllmruntime")
    config = documents(folder, "spec.yaml")[0]["spec"]["vllmConfig"]
    assert (config["v1"], config["enablePrefixCaching"], config["enableChunkedPrefill"]) == (True, True, True)
    assert [each.code for each in limits_of(folder)] == ["program-fixed"]
    slow = deploy(replace(ORDER, image="lmcache/vllm-openai:v0.26.0", startup_s=3000), "vllmruntime")
    assert [each.code for each in limits_of(slow)] == ["progress-deadline-fixed"]


RAY = IMAGES["ray-serve"]


def test_ray_names_the_model_and_shows_the_metrics_by_itself() -> None:
    setup = replace(SETUP, args={"served_model_name": ["llama"], "max_num_seqs": 64}, env={"VLLM_X": "1"})
    folder = deploy(make_order(setup, image=RAY), "ray-serve")
    spec = documents(folder, "spec.yaml")[0]["spec"]
    (config,) = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]["llm_configs"]
    assert config["model_loading_config"] == {"model_id": "llama", "model_source": SETUP.target}
    assert set(config["engine_kwargs"]) == {"max_num_seqs", "speculative_config"}
    assert config["runtime_env"] == {"env_vars": {"VLLM_X": "1"}}
    assert spec["rayClusterConfig"]["rayVersion"] == "2.60.0"
    assert "ray_vllm_generation_tokens_total" in folder.files["observe/rules.yaml"]
    (endpoint,) = documents(folder, "observe/podmonitor.yaml")[0]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0]["regex"] == "8080"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"served_model_name": ["a", "b"]}, "names the model once"),
        ({"distributed_executor_backend": "mp"}, "starts the workers itself"),
        ({"disable_log_stats": True}, "reports the metrics"),
    ],
)
def test_what_ray_refuses_is_refused_before(args: dict[str, Any], told: str) -> None:
    order = replace(make_order(SETUP, image=RAY), setup=replace(SETUP, args=args))
    with pytest.raises(Exception, match=told):
        deploy(order, "ray-serve")
