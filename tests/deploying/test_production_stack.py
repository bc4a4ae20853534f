"""The production-stack: values that the chart turns into the server that was ordered."""

from dataclasses import replace
from typing import Any

import yaml
from tests.deploying.test_render import SETUP
from tests.support.adopted import ORDER

from draftwise.core import Setup
from draftwise.deploying import deploy, make_order


def model_of(setup: Setup, file: str = "spec.yaml") -> dict[str, Any]:
    files = deploy(make_order(setup), "production-stack").files
    (model,) = yaml.safe_load(files[file])["servingEngineSpec"]["modelSpec"]
    return dict(model)


def test_the_config_is_one_argument_and_the_way_back_leaves_it_out() -> None:
    args = model_of(SETUP)["vllmConfig"]["extraArgs"]
    assert args[-1] == '--speculative-config={"method":"ngram","num_speculative_tokens":5}'
    assert model_of(SETUP, "plain.yaml")["vllmConfig"]["extraArgs"] == args[:-1]


def test_prefixes_are_cached_as_vllm_does_unless_the_setup_says_otherwise() -> None:
    assert model_of(SETUP)["vllmConfig"]["enablePrefixCaching"] is True
    without = replace(SETUP, args={**SETUP.args, "enable_prefix_caching": False})
    assert model_of(without)["vllmConfig"]["enablePrefixCaching"] is False


def test_shared_memory_comes_with_the_key_that_the_chart_looks_at() -> None:
    model = model_of(SETUP)
    assert model["vllmConfig"]["tensorParallelSize"] == model["requestGPU"] == 2
    assert model["shmSize"] == "4Gi"


def test_the_image_is_pinned_and_a_start_has_its_time() -> None:
    engine = yaml.safe_load(deploy(make_order(SETUP, cold_start_s=431), "production-stack").files["spec.yaml"])
    engine = engine["servingEngineSpec"]
    assert engine["modelSpec"][0]["tag"] == "v0.26.0"
    assert engine["startupProbe"]["periodSeconds"] * engine["startupProbe"]["failureThreshold"] == 650


def test_what_the_operator_selects_by_stays_when_the_service_goes_back() -> None:
    """Its Deployment selects by all labels of the object, and a selector never changes; revisions are annotations."""
    files = deploy(ORDER, "vllmruntime").files
    spec, back = (yaml.safe_load(files[name]) for name in ("spec.yaml", "rollback.yaml"))
    assert spec["metadata"]["labels"] == back["metadata"]["labels"]
    marks = [each["spec"]["deploymentConfig"]["podAnnotations"] for each in (spec, back)]
    assert marks[0]["draftwise.dev/revision"] != marks[1]["draftwise.dev/revision"]
    assert [each["draftwise.dev/pool"] for each in marks] == ["spec", "plain"]
    (endpoint,) = yaml.safe_load(files["observe/podmonitor.yaml"])["spec"]["podMetricsEndpoints"]
    for label in ("pool", "revision"):  # the later one of those that match is kept
        read = [each for each in endpoint["relabelings"] if each.get("targetLabel") == label]
        assert [each["regex"] for each in read] == ["(.+)", "(.+)"]
        assert [each["sourceLabels"] for each in read] == [
            [f"__meta_kubernetes_pod_{kind}_draftwise_dev_{label}"] for kind in ("annotation", "label")
        ]
