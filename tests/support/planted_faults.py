"""Faults that people write into objects of custom kinds: four that a server refuses, four that it drops in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import yaml

_SERVICE = yaml.safe_load("""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama, annotations: {serving.kserve.io/deploymentMode: Standard}}
spec:
  predictor:
    storageUris:
    - {uri: "hf://meta-llama/Llama-3.1-8B-Instruct", mountPath: /mnt/models/target}
    - {uri: "hf://yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", mountPath: /mnt/models/eagle3-draft}
    model:
      modelFormat: {name: vLLM}
      args: ["--model=/mnt/models/target"]
      resources: {limits: {nvidia.com/gpu: "1"}}
""")
_ANALYSIS = yaml.safe_load("""
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: tokens-per-step}
spec:
  metrics:
  - {name: tokens-per-step, interval: 5m, count: 12, failureCondition: "result[0] < 1.35",
     provider: {prometheus: {address: "http://prometheus", query: up}}}
""")
_RULE = yaml.safe_load("""
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: llama}
spec: {groups: [{name: spec, rules: [{alert: SpecOff, expr: "up == 0", for: 5m}]}]}
""")
_LLM_SERVICE = yaml.safe_load("""
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llama}
spec: {model: {uri: "hf://meta-llama/Llama-3.1-8B-Instruct"}, replicas: 1}
""")


def _misspell(spec: dict[str, Any]) -> None:
    spec["predictor"]["storageURIs"] = spec["predictor"].pop("storageUris")


def _put_inside(spec: dict[str, Any]) -> None:
    spec["predictor"]["model"]["storageUris"] = spec["predictor"].pop("storageUris")


def _make_relative(spec: dict[str, Any]) -> None:
    spec["predictor"]["storageUris"][0]["mountPath"] = "mnt/models"


def _write_a_word(spec: dict[str, Any]) -> None:
    spec["predictor"]["minReplicas"] = "two"


def _leave_unnamed(spec: dict[str, Any]) -> None:
    spec["canary"] = [{"predictor": {"name": "spec", "model": {"modelFormat": {"name": "vLLM"}}}, "trafficPercent": 10}]


def _misspell_condition(spec: dict[str, Any]) -> None:
    spec["metrics"][0]["succesCondition"] = "result[0] >= 1.6"


def _write_out_minutes(spec: dict[str, Any]) -> None:
    spec["groups"][0]["rules"][0]["for"] = "5 minutes"


def _speculate(spec: dict[str, Any]) -> None:
    spec["speculator"] = {"model": {"uri": "hf://yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, "config": {"method": "eagle3"}}


FAULTS: Mapping[str, tuple[Mapping[str, Any], Callable[[dict[str, Any]], None]]] = {
    "a field is misspelled": (_SERVICE, _misspell),
    "a field is in the wrong place": (_SERVICE, _put_inside),
    "a path is relative": (_SERVICE, _make_relative),
    "a number is a word": (_SERVICE, _write_a_word),
    "a canary's container has no name": (_SERVICE, _leave_unnamed),
    "a condition is misspelled": (_ANALYSIS, _misspell_condition),
    "a duration is written out": (_RULE, _write_out_minutes),
    "a field is of a release to come": (_LLM_SERVICE, _speculate),
}


def plant(name: str) -> dict[str, Any]:
    """Return an object with a fault."""
    document, change = FAULTS[name]
    faulty = deepcopy(dict(document))
    change(faulty["spec"])
    return faulty
