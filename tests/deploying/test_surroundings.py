"""The law of carrying over: what stands around a source's server is in the files, or is named as not in them."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.adopted import IMAGES

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying import TARGETS
from draftwise.deploying.api_server import read_quantity
from draftwise.deploying.surroundings import read_surroundings
from draftwise.verbs.deploy import DeployRequest, WrittenFolder, deploy
from draftwise.verbs.sources import find_sources

SPEC = '{"method": "ngram", "num_speculative_tokens": 5}'
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
VOLUMES = ("shm", "cache", "data")
TOLD = ("apiVersion", "kind", "image", "command", "args", "name", "modelFormat", "nvidia.com/gpu", "modelURL", "tag")
"""Last keys of what a setup tells, or what only names the source's own objects."""


class Maker:
    """Draws manifests in which every text is found again: no two leaves are alike."""

    def __init__(self, seed: int) -> None:
        self.random, self.count = random.Random(seed), 0

    def text(self) -> str:
        self.count += 1
        return f"mark{self.count}x"

    def some(self, options: dict[str, Any]) -> dict[str, Any]:
        chosen = [name for name in options if self.random.random() < 0.6]
        self.random.shuffle(chosen)
        return {name: options[name] for name in chosen}

    def env(self) -> list[dict[str, Any]]:
        ref = {"name": self.text(), "key": self.text()}
        every: list[dict[str, Any]] = [
            {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": ref}},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": self.text(), "key": self.text()}}},
            {"name": "NCCL_DEBUG", "value": self.text()},
            {"name": "OMP_NUM_THREADS", "value": self.text()},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": self.text()}}},
            {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": self.text(), "key": self.text()}}},
        ]
        return [each for each in every if self.random.random() < 0.7]

    def probe(self) -> dict[str, Any]:
        return {"httpGet": {"path": f"/{self.text()}", "port": 8000}, "periodSeconds": 5}

    def container(self) -> dict[str, Any]:
        volumes = [{"name": name, "mountPath": f"/{self.text()}"} for name in VOLUMES]
        return self.some({
            "env": self.env(),
            "envFrom": [{"secretRef": {"name": self.text()}}, {"configMapRef": {"name": self.text()}}],
            "ports": [{"name": self.text()[:14], "containerPort": 8000}, {"name": self.text(), "containerPort": 9}],
            "startupProbe": self.probe(), "readinessProbe": self.probe(), "livenessProbe": self.probe(),
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "77Gi"}, "requests": {"cpu": "7"}},
            "volumeMounts": self.random.sample(volumes, 2),
            "securityContext": {"seLinuxOptions": {"level": self.text()}},
            "workingDir": f"/{self.text()}", "lifecycle": {"preStop": {"exec": {"command": [self.text()]}}},
            "imagePullPolicy": "Always",
        })  # fmt: skip

    def pod(self) -> dict[str, Any]:
        return self.some({
            "tolerations": [{"key": self.text(), "operator": "Exists"}, {"key": self.text(), "operator": "Exists"}],
            "nodeSelector": {"zone": self.text()}, "priorityClassName": self.text(), "serviceAccountName": self.text(),
            "initContainers": [{"name": self.text(), "image": "busybox", "env": [{"name": "A", "value": self.text()}]}],
            "imagePullSecrets": [{"name": self.text()}], "terminationGracePeriodSeconds": 301,
            "runtimeClassName": self.text(), "hostIPC": True,
            "volumes": [{"name": each, "persistentVolumeClaim": {"claimName": self.text()}} for each in VOLUMES],
        })  # fmt: skip

    def marks(self) -> dict[str, Any]:
        own = {"app": "chat", "team": self.text()}
        return {"labels": own, "annotations": {"note": self.text(), "prometheus.io/scrape": "true"}}

    def server(self) -> dict[str, Any]:
        return {"image": "vllm/vllm-openai:v0.26.0", "args": [MODEL, "--max-model-len=8192"], **self.container()}

    def deployment(self) -> list[dict[str, Any]]:
        pod = {"containers": [{"name": "s", **self.server()}, {"name": self.text(), "image": "envoy"}], **self.pod()}
        spec = {"selector": {"matchLabels": {"app": "chat"}}, **self.some({"replicas": 3, "minReadySeconds": 17})}
        metadata = {"name": "chat", "namespace": self.text(), **self.marks()}
        template = {"metadata": self.marks(), "spec": pod}
        return [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata,
                "spec": {**spec, "template": template},
            },
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.text()}, "data": {"a": self.text()}},
        ]

    def inference_service(self) -> list[dict[str, Any]]:
        model = {
            "modelFormat": {"name": "vLLM"},
            "runtime": "own",
            "args": ["--max-model-len=8192"],
            **self.container(),
        }
        predictor = {"model": {**model, "storageUri": f"hf://{MODEL}"}, "minReplicas": 2, **self.pod(), **self.marks()}
        runtime = {"name": "kserve-container", **self.server(), "command": ["vllm", "serve"]}
        runtime = {
            key: value for key, value in runtime.items() if key == "args" or key not in model
        }  # which goes over it
        runtime["args"] = ["--model=/mnt/models"]
        return [
            {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
             "metadata": {"name": "chat", **self.marks()}, "spec": {"predictor": predictor}},
            {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ServingRuntime", "metadata": {"name": "own"},
             "spec": {"containers": [runtime]}},
        ]  # fmt: skip

    def compose(self) -> list[dict[str, Any]]:
        service = self.some({
            "environment": {"VLLM_API_KEY": "${VLLM_API_KEY}", "HF_TOKEN": "${OTHER:-}", "NCCL_DEBUG": self.text()},
            "env_file": [f"{self.text()}.env"],
            "volumes": [f"/{self.text()}:/root/.cache", {"source": "named", "target": f"/{self.text()}"}],
            "ports": [{"target": 8000, "published": 8000}, "9:9"], "ipc": "host",
            "networks": ["front"], "restart": "always",
            "healthcheck": {"test": ["CMD", self.text()]}, "labels": {"team": self.text()}, "ulimits": {"memlock": -1},
            "deploy": {"replicas": 2, "resources": {"limits": {"memory": "77g"}, "reservations": {
                "devices": [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]}}},
        })  # fmt: skip
        server = {"image": "vllm/vllm-openai:v0.26.0", "command": ["--model", MODEL], **service}
        beside = {"image": self.text()}
        return [{"services": {"chat": server, "beside": beside}, "networks": {"front": {"driver": self.text()}}}]

    def stack(self) -> list[dict[str, Any]]:
        entry = {"name": "chat", "repository": "vllm/vllm-openai", "tag": "v0.26.0", "modelURL": MODEL, "requestGPU": 1,
                 "vllmConfig": {"maxModelLen": 8192}, "replicaCount": 2, "env": self.env(), **self.some({
                     "tolerations": [{"key": self.text()}], "pvcStorage": self.text(), "hf_token": {
                         "secretName": self.text()}})}  # fmt: skip
        return [
            {
                "servingEngineSpec": {"runtimeClassName": self.text(), "modelSpec": [entry]},
                "routerSpec": {"a": self.text()},
            }
        ]


KINDS = ("deployment", "inference_service", "compose", "stack")


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path as findings write it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from walk(each, f"{path}[{index}]")
    else:
        yield path, value


def list_lost(documents: list[Any], written: str, named: list[str]) -> Iterator[str]:
    """Yield the leaves that are neither written nor named."""
    for number, document in enumerate(documents):
        name = f"{document.get('kind', '')} {document.get('metadata', {}).get('name', '')}"
        for path, leaf in walk(document):
            marked = str(leaf)
            last = path.rpartition(".")[2] if "nvidia.com/gpu" not in path else "nvidia.com/gpu"
            if "mark" not in marked and marked not in ("77Gi", "77g", "301", "17", "7"):
                continue
            is_named = any(path.startswith(each.partition(" (")[0]) for each in named) or (number and name in named)
            if marked not in written and not is_named and last.partition("[")[0] not in TOLD:
                yield path


@pytest.mark.parametrize("to", TARGETS)
def test_nothing_of_a_source_is_lost_in_silence(to: str, tmp_path: Path) -> None:
    tried = 0
    for seed in range(8):
        kind = KINDS[seed % len(KINDS)]
        documents = getattr(Maker(seed), kind)()
        source = tmp_path / f"{seed}.yaml"
        source.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        out = tmp_path / f"out{seed}"
        request = DeployRequest(
            str(source), to=to, out=out, speculative_config=SPEC, gpu="H100", image=IMAGES.get(to, ""), observe=False
        )
        asks = "VLLM_API_KEY" in source.read_text()
        if asks and "literals" in TARGETS[to].carries:
            # A platform without a place for the key says so, instead of starting a server that asks for none.
            with pytest.raises(InvalidSetup, match="requires a key"):
                deploy.run(request)
            assert not out.exists()
            continue
        answer = deploy.run(request).answer
        assert isinstance(answer, WrittenFolder)
        tried += 1
        named = [each.where for each in answer.limits if each.code == "not-carried"]
        files = {path.name: path.read_text() for path in out.iterdir() if path.name.startswith(("spec", "plain"))}
        memo = (out / "MEMO.md").read_text()
        assert all(where in memo for where in named)
        for name, text in files.items():
            assert list(list_lost(documents, text + memo, named)) == [], (name, seed)
        assert all(not asks or "VLLM_API_KEY" in text or "EnvironmentFile" in text for text in files.values())
    assert tried >= 3


LLM_SERVICE = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llama}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-8B-Instruct"}
  template:
    serviceAccountName: reader
    containers:
    - name: main
      image: vllm/vllm-openai:v0.26.0
      command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct]
      env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: token-store, key: token-key}}}]
"""
GROUP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      spec:
        containers:
        - name: leader
          image: vllm/vllm-openai:v0.26.0
          command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct, --pipeline-parallel-size=2]
          resources: {limits: {nvidia.com/gpu: 1}}
    workerTemplate: {spec: {containers: [{name: worker, image: busybox, command: [sleep, infinity]}]}}
"""
PROJECT = """
name: lab
services:
  llama:
    image: vllm/vllm-openai:v0.26.0
    command: --model meta-llama/Llama-3.1-8B-Instruct
"""
RAY = """
applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: llama, model_source: meta-llama/Llama-3.1-8B-Instruct}
      engine_kwargs: {max_num_seqs: 64}
      runtime_env: {env_vars: {NCCL_DEBUG: INFO}}
"""
JOB = """job "llm" {
  config {
    image = "vllm/vllm-openai:v0.26.0"
    args  = ["--model", "meta-llama/Llama-3.1-8B-Instruct"]
  }
  env { NCCL_DEBUG = "INFO" }
}
"""
PROGRAM = """[program:llm]
command=vllm serve meta-llama/Llama-3.1-8B-Instruct
environment=NCCL_DEBUG="INFO"
"""
IMAGE = """FROM vllm/vllm-openai:v0.26.0
ENV NCCL_DEBUG=INFO
COPY template.jinja /
CMD ["--model", "meta-llama/Llama-3.1-8B-Instruct"]
"""
CONFIGURED = """
apiVersion: v1
kind: Pod
metadata: {name: llama}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.26.0
    args: [--model, meta-llama/Llama-3.1-8B-Instruct]
    envFrom: [{configMapRef: {name: map-of-settings}}]
"""


@pytest.mark.parametrize(
    ("source", "to", "said"),
    [
        (LLM_SERVICE, "kubernetes", ("token-store", "token-key", "reader")),
        (LLM_SERVICE, "compose", ("token-store", "spec.template.serviceAccountName")),
        (GROUP, "leaderworkerset", ("spec.leaderWorkerTemplate.workerTemplate", "spec.leaderWorkerTemplate.size")),
        (PROJECT, "compose", ("The files do not include name of the source",)),
        (RAY, "kubernetes", ("The files do not include everything but engine_kwargs of the source",)),
        (JOB, "compose", ("The files do not include everything but image, command and args of the source",)),
        (PROGRAM, "kubernetes", ("The files do not include everything but command of the source",)),
        (IMAGE, "compose", ("NCCL_DEBUG", "The files do not include everything but FROM, ENV")),
        (CONFIGURED, "compose", ("configMap map-of-settings",)),
        (CONFIGURED, "systemd", ("configMap map-of-settings",)),
    ],
    ids=[
        "llm service",
        "llm service to compose",
        "group",
        "project",
        "Ray",
        "Nomad",
        "supervisor",
        "Dockerfile",
        "config map to compose",
        "config map to systemd",
    ],
)
def test_what_a_platform_cannot_hold_is_named(source: str, to: str, said: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "source").write_text(source)
    request = DeployRequest(
        str(tmp_path / "source"),
        to=to,
        out=tmp_path / "out",
        speculative_config=SPEC,
        gpu="H100",
        observe=False,
        vllm="0.26.0",
    )
    deploy.run(request)
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir() if path.is_file())
    assert [each for each in said if each not in written] == []


_CONTAINER = {"name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": ["--model", MODEL]}
_KEDA = {"scaleTargetRef": {"name": "chat"}, "maxReplicaCount": 4}


def _deployment(**spec: object) -> dict[str, Any]:
    pod = {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [_CONTAINER]}}
    own = {"selector": {"matchLabels": {"app": "chat"}}, "template": pod, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": own}


def _scaler(kind: str = "ScaledObject", **spec: object) -> list[dict[str, Any]]:
    return [
        _deployment(),
        {"apiVersion": "keda.sh/v1alpha1", "kind": kind, "metadata": {"name": "scaler"}, "spec": {**_KEDA, **spec}},
    ]


def _kserve(marks: dict[str, str] | None = None, **predictor: object) -> list[dict[str, Any]]:
    metadata = {"name": "chat", "annotations": marks or {}}
    spec = {"predictor": {"containers": [_CONTAINER], **predictor}}
    return [{"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": spec}]


def _knative(least: str) -> list[dict[str, Any]]:
    marks = {"annotations": {"autoscaling.knative.dev/min-scale": least}}
    template = {"metadata": marks, "spec": {"containers": [_CONTAINER]}}
    kind = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "chat"}}
    return [{**kind, "spec": {"template": template}}]


def _stack(**model: object) -> list[dict[str, Any]]:
    spec = {"name": "chat", "repository": "vllm/vllm-openai", "tag": "v0.33.0", "modelURL": MODEL, **model}
    return [{"servingEngineSpec": {"modelSpec": [spec]}, "routerSpec": {"replicaCount": 0}}]


def _ray(**deployment: Any) -> list[dict[str, Any]]:
    engine = {"engine_kwargs": {"max_num_seqs": 8}, "deployment_config": deployment}
    model = {"model_loading_config": {"model_id": "llama", "model_source": "meta-llama/Llama-3.1-8B-Instruct"}}
    return [{"applications": [{"name": "llm", "args": {"llm_configs": [model | engine]}}]}]


@pytest.mark.parametrize(
    ("documents", "empty"),
    [
        ([_deployment()], False),
        ([_deployment(replicas=0)], True),
        (_scaler(), True),  # KEDA's default
        (_scaler(minReplicaCount=0), True),
        (_scaler(minReplicaCount=1), False),
        (_scaler(minReplicaCount=2, idleReplicaCount=0), True),
        (_scaler(scaleTargetRef={"name": "other"}), False),
        (_scaler("HTTPScaledObject", replicas={"min": 0}), True),
        (_scaler("HTTPScaledObject", replicas={"min": 1}), False),
        (_scaler("HorizontalPodAutoscaler"), False),
        (_scaler("HorizontalPodAutoscaler", minReplicas=0), True),
        (_kserve(), False),
        (_kserve(minReplicas=0), True),
        (_kserve(minReplicas=1), False),
        (_kserve({"autoscaling.knative.dev/min-scale": "0"}), True),
        (_knative("0"), True),
        (_knative("1"), False),
        (_stack(replicaCount=1), False),
        (_stack(replicaCount=1, keda={"enabled": True, "minReplicaCount": 0}), True),
        (_stack(replicaCount=1, keda={"enabled": False, "minReplicaCount": 0}), False),
        (_ray(autoscaling_config={"min_replicas": 0, "max_replicas": 4}), True),
        (_ray(autoscaling_config={"min_replicas": 1}), False),
        (_ray(num_replicas=0), True),
        (_ray(num_replicas="auto"), False),
    ],
)
def test_a_source_that_scales_to_zero_is_known(documents: list[dict[str, Any]], empty: bool, tmp_path: Path) -> None:
    source = tmp_path / "source.yaml"
    source.write_text(yaml.safe_dump_all(documents))
    reading = find_sources(DeployRequest(str(source))).read(None).require_one()
    assert read_surroundings(reading).may_be_empty == empty


@pytest.mark.parametrize(
    ("deployment", "empty"),
    [
        ("dict(autoscaling_config=dict(min_replicas=0, max_replicas=2))", True),
        ('{"autoscaling_config": {"min_replicas": FEWEST}}', True),
        ('{"autoscaling_config": {"min_replicas": 1}}', False),
        ('{"autoscaling_config": {"min_replicas": int(os.environ["FEWEST"])}}', False),
    ],
)
def test_ray_in_python_scales_to_zero_too(deployment: str, empty: bool, tmp_path: Path) -> None:
    source = tmp_path / "serve.py"
    model = 'model_loading_config={"model_id": "llama", "model_source": "meta-llama/Llama-3.1-8B-Instruct"}'
    source.write_text(
        f"import os\nfrom ray.serve.llm import LLMConfig\nFEWEST = 0\n"
        f'config = LLMConfig({model}, deployment_config={deployment}, engine_kwargs={{"max_num_seqs": 8}})\n'
    )
    reading = find_sources(DeployRequest(str(source))).read(None).require_one()
    assert read_surroundings(reading).may_be_empty == empty


@pytest.mark.parametrize("to", ["kubernetes", "leaderworkerset", "argo-rollouts"])
@pytest.mark.parametrize(
    ("name", "path", "resources"),
    [
        ("shm", "/dev/shm", {"limits": {"memory": "16Gi", "cpu": "2"}}),
        ("dshm", "/dev/shm", {"requests": {"memory": "640Gi", "cpu": "90"}}),
        ("cache", "/root/.cache", {"limits": {"memory": "160Gi"}, "requests": {"memory": "64Gi"}}),
    ],
)
def test_no_path_is_mounted_twice_and_no_request_is_above_its_limit(
    name: str, path: str, resources: dict[str, dict[str, str]], to: str, tmp_path: Path
) -> None:
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.26.0", "args": ["--model", MODEL],
        "volumeMounts": [{"mountPath": path, "name": name}], "resources": resources,
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": name, "emptyDir": {"medium": "Memory"}}]}
    source, out = tmp_path / "source.yaml", tmp_path / "out"
    source.write_text(yaml.safe_dump(_deployment(template={"metadata": {"labels": {"app": "chat"}}, "spec": pod})))
    deploy.run(DeployRequest(str(source), to=to, out=out, speculative_config=SPEC, gpu="H200", observe=False))
    texts = [file.read_text() for file in out.glob("*.yaml")]
    found = [each for text in texts for document in yaml.safe_load_all(text) for each in _find_mounting(document)]
    assert found
    for each in found:
        paths = [mount["mountPath"] for mount in each["volumeMounts"]]
        assert sorted(set(paths)) == sorted(paths)
        given, most = each["resources"]["requests"], each["resources"]["limits"]
        for kind in given.keys() & most.keys():
            assert (read_quantity(given[kind]) or 0) <= (read_quantity(most[kind]) or 0), kind
        for part, wanted in resources.items():
            assert wanted.items() <= each["resources"][part].items()


RUNTIME = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {{name: own}}
spec:
  containers:
  - name: kserve-container
    image: vllm/vllm-openai:v0.26.0
    args: [--model, {MODEL}]
    volumeMounts: [{{name: shm, mountPath: /run/shm}}, {{name: cache, mountPath: /data}}]
  volumes: [{{name: shm, emptyDir: {{}}}}, {{name: cache, emptyDir: {{}}}}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: llama}}
spec:
  predictor:
    model: {{runtime: own, modelFormat: {{name: vLLM}}, volumeMounts: [{{name: cache, mountPath: /root/.cache/vllm}}]}}
    volumes: [{{name: cache, persistentVolumeClaim: {{claimName: compiled}}}}]
"""


@pytest.mark.parametrize(("to", "layout"), [("kubernetes", None), ("kserve", "storage-uris")])
def test_the_files_own_volumes_have_names_that_no_source_has(to: str, layout: str | None, tmp_path: Path) -> None:
    source, out = tmp_path / "source.yaml", tmp_path / "out"
    source.write_text(RUNTIME)
    request = DeployRequest(str(source), to=to, layout=layout, out=out, speculative_config=SPEC, gpu="H200")
    deploy.run(replace(request, observe=False))
    written = list(yaml.safe_load_all((out / "spec.yaml").read_text()))
    volumes = [each for document in written for each in _find_volumes(document)]
    of_source = {"shm": "emptyDir", "cache": "persistentVolumeClaim"}  # of two with one name, the service's counts
    assert [of_source[each["name"]] in each for each in volumes if not each["name"].startswith("draftwise-")] == [
        True, True
    ]  # fmt: skip
    mounts = {mount["mountPath"]: mount["name"] for document in written for each in _find_mounting(document)
              for mount in each["volumeMounts"]}  # fmt: skip
    assert (mounts["/run/shm"], mounts["/data"], mounts["/root/.cache/vllm"]) == ("shm", "cache", "cache")
    assert mounts["/dev/shm"] == "draftwise-shm"


def _find_volumes(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        yield from value.get("volumes", ()) if isinstance(value.get("volumes"), list) else ()
        for each in value.values():
            yield from _find_volumes(each)


@pytest.mark.parametrize(
    ("name", "limits", "told"),
    [
        ("pod.yaml", "limits: {memory: 8Gi, cpu: 500m}", {"memory to 8Gi": "27 GiB.", "CPUs to 500m": "4."}),
        ("pod.yaml", "limits: {memory: 64Gi, cpu: 16}", {}),
        ("pod.yaml", "requests: {memory: 8Gi, cpu: 1}", {}),
        ("compose.yaml", "mem_limit: 900m", {"memory to 900m": "27 GiB."}),
        ("compose.yaml", "cpus: 1.5", {"CPUs to 1.5": "4."}),
        ("compose.yaml", "mem_limit: ${MEM:-8g}", {"memory to ${MEM:-8g}": "27 GiB."}),
        ("compose.yaml", "mem_limit: ${MEM:-64g}", {}),
        ("compose.yaml", "deploy: {resources: {limits: {memory: 8gb, cpus: '64'}}}", {"memory to 8gb": "27 GiB."}),
        ("compose.yaml", "mem_limit: 640g", {}),
        ("vllm.service", "MemoryMax=8G", {"memory to 8G": "27 GiB."}),
        ("vllm.service", "CPUQuota=150%", {"CPUs to 150%": "4."}),
        ("vllm.service", "MemoryMax=80%", {}),
        ("vllm.service", "MemoryMax=infinity", {}),
    ],
)
def test_a_limit_below_what_the_server_needs_is_told(
    name: str, limits: str, told: dict[str, str], tmp_path: Path
) -> None:
    platforms = {"pod.yaml": "kubernetes", "compose.yaml": "compose", "vllm.service": "systemd"}
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.26.0", "args": ["--model", MODEL]}
    service = f"image: {container['image']}\n    command: [--model, {MODEL}]"
    texts = {
        "compose.yaml": f"services:\n  vllm:\n    {service}\n    {limits}",
        "vllm.service": f"[Service]\nExecStart=/usr/bin/vllm serve {MODEL}\n{limits}",
    }
    if name == "pod.yaml":
        small = {"name": "logs", "image": "log:1", "resources": {"limits": {"memory": "9Mi", "cpu": "10m"}}}
        pod = {"containers": [{**container, "resources": yaml.safe_load(limits)}, small]}
        texts[name] = yaml.safe_dump(_deployment(template={"metadata": {"labels": {"app": "chat"}}, "spec": pod}))
    source = tmp_path / name
    source.write_text(texts[name] + "\n")

    def find(to: str) -> list[Finding]:
        out = tmp_path / to
        request = DeployRequest(str(source), to=to, out=out, speculative_config=SPEC, gpu="H200", vllm="0.26.0")
        answer = deploy.run(replace(request, observe=False)).answer
        assert isinstance(answer, WrittenFolder)
        return [each for each in answer.limits if each.code == "limit-too-small"]

    found = {
        each.message.split(" (")[0].split("limits ")[1]: each.fix.split("it, to ")[1] for each in find(platforms[name])
    }
    assert found == told
    assert name != "compose.yaml" or not find("kubernetes")  # whose files do not carry it, as another warning says


@pytest.mark.parametrize(
    ("given", "told"),
    [("", ["limit-open"]), ("MEM=8", ["limit-too-small"]), ("MEM=64", []), ("MEM=0", []), ("MEM=", ["limit-open"])],
)
def test_a_limit_in_a_variable_is_read_or_told(given: str, told: list[str], tmp_path: Path) -> None:
    source = tmp_path / "compose.yaml"
    command = f"image: vllm/vllm-openai:v0.26.0, command: [--model, {MODEL}]"
    source.write_text(f'services: {{vllm: {{{command}, mem_limit: "${{MEM:?set it}}g"}}}}\n')
    (tmp_path / ".env").write_text(given)
    request = DeployRequest(str(source), to="compose", out=tmp_path / "out", speculative_config=SPEC, gpu="H200")
    answer = deploy.run(replace(request, observe=False)).answer
    assert isinstance(answer, WrittenFolder)
    assert [each.code for each in answer.limits if each.code.startswith("limit-")] == told


@pytest.mark.parametrize("to", TARGETS)
def test_draftwises_own_files_have_no_limit_that_is_too_small(to: str, tmp_path: Path) -> None:
    request = DeployRequest(MODEL, to=to, out=tmp_path / "own", speculative_config=SPEC, gpu="H200", vllm="0.26.0")
    request = replace(request, image=IMAGES.get(to, ""), observe=False)
    deploy.run(request)
    (own,) = (tmp_path / "own").glob("spec.[ys]*")
    answer = deploy.run(replace(request, sources=str(own), out=tmp_path / "out")).answer
    assert isinstance(answer, WrittenFolder)
    assert [each for each in answer.limits if each.code == "limit-too-small"] == []


def test_a_mount_inside_another_one_of_the_source_stays(tmp_path: Path) -> None:
    mounts = [{"mountPath": "/models/a", "name": "a"}, {"mountPath": "/models", "name": "b"}]
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.26.0",
        "args": ["--model", MODEL],
        "volumeMounts": mounts,
    }
    pod = {"containers": [container], "volumes": [{"name": name, "emptyDir": {}} for name in "ab"]}
    source, out = tmp_path / "source.yaml", tmp_path / "out"
    source.write_text(yaml.safe_dump(_deployment(template={"metadata": {"labels": {"app": "chat"}}, "spec": pod})))
    deploy.run(DeployRequest(str(source), to="kubernetes", out=out, speculative_config=SPEC, gpu="H200", observe=False))
    (found, *_) = _find_mounting(yaml.safe_load((out / "spec.yaml").read_text().partition("\n---")[0]))
    assert all(each in found["volumeMounts"] for each in mounts)


def _find_mounting(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "volumeMounts" in value:
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _find_mounting(each)
