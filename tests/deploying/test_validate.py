"""Reduced schemas: what an API server would refuse or drop is found, and nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from tests.support.planted_faults import FAULTS, plant

from catalogue import schemas
from draftwise.deploying.api_server import validate
from draftwise.knowledge.kinds import find_kind, list_kinds, read_schema

SERVICE = yaml.safe_load("""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama, annotations: {serving.kserve.io/deploymentMode: Standard}}
spec:
  predictor:
    storageUris:
    - {uri: "hf://meta-llama/Llama-3.1-8B-Instruct", mountPath: /mnt/models/target}
    model:
      modelFormat: {name: vLLM}
      args: ["--model=/mnt/models/target"]
      resources: {limits: {nvidia.com/gpu: 1, memory: 40Gi}}
""")
MODEL = {"name": "kserve-container", "modelFormat": {"name": "vLLM"}}
CANARY = {"predictor": {"name": "spec", "model": MODEL}, "trafficPercent": 10}
UNNAMED = {"predictor": {"name": "spec", "model": {"modelFormat": {"name": "vLLM"}}}, "trafficPercent": 10}
ANALYSIS = yaml.safe_load("""
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: tokens-per-step}
spec:
  metrics:
  - {name: tokens-per-step, interval: 5m, count: 12, failureCondition: "result[0] < 1.35", provider: {prometheus: {query: up}}}
""")  # noqa: E501
MONITOR = yaml.safe_load("""
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: llama}}
  podTargetLabels: [pool]
  podMetricsEndpoints: [{port: http, interval: 15s}]
""")
DEPLOYMENT = yaml.safe_load("""
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, creationTimestamp: null}
spec:
  replicas: 1
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.26.0
        ports: [{containerPort: 8000}]
        startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 10}
        resources: {limits: {nvidia.com/gpu: 1, memory: 40Gi}}
status: {}
""")
CLAIM = yaml.safe_load("""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Gi}}}
""")
GOOD = [SERVICE, ANALYSIS, MONITOR, DEPLOYMENT, CLAIM]

MISSING = object()


@pytest.mark.parametrize("good", GOOD, ids=lambda each: each["kind"])
def test_what_is_right_is_taken(good: dict[str, Any]) -> None:
    assert list(validate(good)) == []


@pytest.mark.parametrize(
    ("document", "path", "value", "code"),
    [
        (SERVICE, "predictor.storageURIs", [], "field-unknown"),
        (SERVICE, "predictor.model.storageUris", [], "field-unknown"),
        (SERVICE, "predictor.minReplicas", "1", "field-of-wrong-type"),
        (SERVICE, "predictor.minReplicas", True, "field-of-wrong-type"),
        (SERVICE, "predictor.storageUris.0.mountPath", "x", "field-value-refused"),
        (SERVICE, "predictor.storageUris.0.mountPath", 256 * "/", "field-value-refused"),
        (SERVICE, "predictor.storageUris.0.uri", MISSING, "field-missing"),
        (SERVICE, "canary", [{**CANARY, "trafficPercent": 101}], "field-value-refused"),
        (SERVICE, "canary", [UNNAMED], "field-missing"),
        (ANALYSIS, "metrics.0.succesCondition", "x", "field-unknown"),
        (MONITOR, "podTargetLabel", ["pool"], "field-unknown"),
        (MONITOR, "podMetricsEndpoints.0.interval", "soon", "field-value-refused"),
        (DEPLOYMENT, "progressDeadline", 600, "field-unknown"),
        (DEPLOYMENT, "template.spec.containers.0.startUpProbe", {}, "field-unknown"),
        (DEPLOYMENT, "template.spec.containers.0.ports.0.containerPort", "8000", "field-of-wrong-type"),
        (DEPLOYMENT, "template.spec.containers.0.name", MISSING, "field-missing"),
        (DEPLOYMENT, "selector", MISSING, "field-missing"),
        (CLAIM, "accessMode", "ReadWriteMany", "field-unknown"),
    ],
)
def test_what_is_wrong_is_found_where_it_is(document: dict[str, Any], path: str, value: Any, code: str) -> None:
    faulty = deepcopy(document)
    *keys, last = path.split(".")
    parent = reduce(lambda each, key: each[int(key) if key.isdecimal() else key], keys, faulty["spec"])
    if value is MISSING:
        del parent[last]
    else:
        parent[last] = value
    (finding,) = validate(faulty)
    assert finding.code == code
    assert finding.where.replace("[0]", ".0").startswith(f"spec.{path}")


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from paths_in(each, (*path, key))


@pytest.mark.parametrize("good", GOOD, ids=lambda each: each["kind"])
def test_the_answer_is_that_of_a_whole_implementation_of_json_schema(good: dict[str, Any]) -> None:
    kind = find_kind(good["apiVersion"], good["kind"])
    assert kind is not None
    reference = Draft7Validator(read_schema(kind))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.sampled_from(sorted(paths_in(good), key=str)),
        st.sampled_from(["drop", "rename", "", "x", -1, 500, True, [], {}, None]),
    )
    def law(path: tuple[Any, ...], change: Any) -> None:
        document = deepcopy(good)
        parent = reduce(lambda each, key: each[key], path[:-1], document)
        if change == "drop":
            del parent[path[-1]]
        elif change == "rename" and isinstance(parent, dict):
            parent[f"{path[-1]}s"] = parent.pop(path[-1])
        else:
            parent[path[-1]] = change
        if find_kind(str(document.get("apiVersion")), str(document.get("kind"))) == kind:
            found = [each for each in validate(document) if each.code.startswith("field-")]
            assert bool(found) == (not reference.is_valid(document))

    law()


def test_a_slip_is_named_with_the_field_that_was_meant() -> None:
    faulty = deepcopy(SERVICE)
    faulty["spec"]["predictor"]["storageURIs"] = []
    (finding,) = validate(faulty)
    assert (
        str(finding) == "spec.predictor.storageURIs is not a field here, so the API server drops it. Write storageUris."
    )


@pytest.mark.parametrize(
    ("release", "codes"), [("0.15.2", ["field-unknown"]), ("0.16", []), ("0.19", []), ("0.20", [])]
)
def test_a_field_is_known_from_its_release_on(release: str, codes: list[str]) -> None:
    assert [each.code for each in validate(SERVICE, release)] == codes


def test_canaries_come_with_0_20() -> None:
    document = deepcopy(SERVICE)
    document["spec"]["canary"] = [CANARY]
    assert list(validate(document, "0.20")) == []
    assert [each.where for each in validate(document, "0.19")] == ["spec.canary"]


def test_every_schema_has_its_source_and_can_be_read() -> None:
    words = {"type", "properties", "required", "enum", "pattern", "items", "additionalProperties", "minimum", "maximum"}
    words |= {"minLength", "maxLength", "minItems", "maxItems"}

    def walk(schema: dict[str, Any]) -> None:
        assert set(schema) <= words
        for each in schema.get("properties", {}).values():
            walk(each)
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                walk(schema[key])

    for kind in list_kinds():
        assert kind.licence == "Apache-2.0"
        assert "@" in kind.source
        walk(dict(read_schema(kind)))


def test_a_release_before_the_first_is_not_known() -> None:
    assert find_kind("serving.kserve.io/v1beta1", "InferenceService", "0.14") is None
    assert find_kind("example.org/v1", "InferenceService") is None


def test_schemas_are_not_read_before_they_are_needed() -> None:
    code = "import draftwise.deploying, draftwise.knowledge.kinds as kinds; print(kinds.list_kinds.cache_info().misses)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_schema_is_reduced_to_what_decides() -> None:
    full = {
        "type": "object",
        "description": "x",
        "required": ["a"],
        "properties": {
            "a": {"x-kubernetes-int-or-string": True, "type": "string", "default": 1},
            "b": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"c": {"type": "string"}},
            },
            "d": {"type": "string", "nullable": True, "format": "date"},
            "e": {"type": "object", "additionalProperties": {"type": "string", "description": "y"}},
        },
    }
    assert schemas.reduce(full) == {
        "type": "object",
        "required": ["a"],
        "additionalProperties": False,
        "properties": {
            "a": {},
            "b": {"type": "object", "properties": {"c": {"type": "string"}}},
            "d": {"type": ["string", "null"]},
            "e": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_without_a_server(name: str) -> None:
    """`catalogue.api_server` asks a real one the same."""
    assert list(validate(plant(name)))


def test_what_an_api_server_sets_is_known_in_every_object() -> None:
    """Files that kubectl printed have it."""
    for document in (SERVICE, DEPLOYMENT):
        changed = deepcopy(document)
        changed["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": "1", "generation": 1}
        assert list(validate(changed)) == list(validate(document))
        changed["metadata"]["creationTimestmp"] = ""
        assert "field-unknown" in {each.code for each in validate(changed)}
