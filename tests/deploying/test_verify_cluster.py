"""`draftwise verify --kubectl`: what runs in a cluster is what was ordered, and ready, or it is said what is not so."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.support.adopted import ORDER

from draftwise.cli import main
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import Folder, deploy, make_order

SETUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="GPU", kind="cuda"),
    spec=SpecConfig(method="ngram", num_speculative_tokens=5),
    args={"max_num_seqs": 64},
)
FOLDER = deploy(make_order(SETUP, name="llama"), "kubernetes")
ORDERED = deploy(ORDER, "kubernetes")
OBJECTS = Path(__file__).parents[1] / "support/kubectl"
RESULTS = Path(__file__).parents[2] / "catalogue/platform/whole_server.json"
READY = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "vllm", "ready": True, "restartCount": 0, "state": {"running": {}}}],
}


def deployment(side: str = "spec") -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in yaml.safe_load_all(FOLDER.files[f"{side}.yaml"]) if each["kind"] == "Deployment"
    )
    found["metadata"] |= {"namespace": "models", "generation": 2}
    wanted = found["spec"].setdefault("replicas", 1)
    found["status"] = {"observedGeneration": 2, "availableReplicas": wanted, "replicas": wanted}
    return found


def pod(side: str = "spec") -> dict[str, Any]:
    """Return what a cluster makes of the Deployment's template."""
    template = deployment(side)["spec"]["template"]
    metadata = {**template["metadata"], "name": f"llama-{side}-7d9f", "namespace": "models"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template["spec"],
        "status": deepcopy(READY),
    }


def run(folder: Path, text: str, *more: str, ordered: Folder = FOLDER) -> Result:
    (folder / "setup.json").write_text(ordered.files["setup.json"])
    words = ["verify", "--kubectl", "-", "--setup", str(folder / "setup.json"), *more]
    return CliRunner().invoke(main, words, input=text, catch_exceptions=False)


def found(folder: Path, *objects: dict[str, Any], ordered: Folder = FOLDER) -> list[tuple[str, str]]:
    whole = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    result = run(folder, yaml.safe_dump(whole), "--json", ordered=ordered)
    findings = [each for row in json.loads(result.stdout) for each in row["findings"]]
    assert result.exit_code == any(each["severity"] == "error" for each in findings)
    return [(each["code"], each["message"]) for each in findings if each["severity"] != "info"]


@pytest.mark.parametrize("make", [deployment, pod])
@pytest.mark.parametrize("sides", [("spec",), ("plain", "spec")])
def test_what_runs_as_it_was_ordered_has_no_finding(tmp_path: Path, make: Any, sides: tuple[str, ...]) -> None:
    assert found(tmp_path, *map(make, sides)) == []


@pytest.mark.parametrize("make", [deployment, pod])
def test_the_twin_alone_is_not_what_was_ordered(tmp_path: Path, make: Any) -> None:
    ((code, said),) = found(tmp_path, make("plain"), make("plain"))
    assert code == "runs-otherwise"
    assert "only the twin without speculation serves" in said


def args(value: dict[str, Any]) -> list[str]:
    words: list[str] = value["spec"]["containers"][0]["args"]
    return words


def lose_the_flag(value: dict[str, Any]) -> None:
    args(value)[:] = [word for word in args(value) if "speculative" not in word]


def change_a_flag(value: dict[str, Any]) -> None:
    args(value)[:] = [word.replace("64", "32") for word in args(value)]


def change_the_image(value: dict[str, Any]) -> None:
    value["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.25.0"


def crash(value: dict[str, Any]) -> None:
    (status,) = value["status"]["containerStatuses"]
    status |= {
        "ready": False,
        "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }


def fail_to_fetch(value: dict[str, Any]) -> None:
    value["status"]["initContainerStatuses"] = [
        {"name": "storage-initializer", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    ]


def be_another_model(value: dict[str, Any]) -> None:
    args(value)[:] = [word.replace("Llama-3.1-8B", "Llama-3.2-1B") for word in args(value)]


@pytest.mark.parametrize(
    ("change", "codes", "said"),
    [
        (lose_the_flag, {"runs-otherwise"}, "has the speculative config none"),
        (change_a_flag, {"runs-otherwise"}, "has max_num_seqs 32, but the order has 64"),
        (change_the_image, {"runs-otherwise"}, "runs vLLM 0.25.0, but the order has 0.26.0"),
        (be_another_model, {"runs-otherwise"}, "serves meta-llama/Llama-3.2-1B"),
        (crash, {"not-ready", "restarted"}, "CrashLoopBackOff"),
        (crash, {"not-ready", "restarted"}, "OOMKilled with exit code 137"),
        (fail_to_fetch, {"not-ready"}, "storage-initializer ended with exit code 1"),
    ],
)
def test_what_runs_otherwise_is_named(tmp_path: Path, change: Any, codes: set[str], said: str) -> None:
    value = pod()
    change(value)
    findings = found(tmp_path, value)
    assert {code for code, _ in findings} == codes
    assert any(said in message for _, message in findings)


def test_one_replica_of_several_is_told_apart(tmp_path: Path) -> None:
    odd = pod()
    odd["metadata"]["name"] = "llama-odd"
    lose_the_flag(odd)
    ((code, message),) = found(tmp_path, pod(), odd)
    assert (code, message.partition(" ")[0]) == ("runs-otherwise", "pod/llama-odd")


def test_a_rollout_that_was_undone_comes_back_with_the_next_apply(tmp_path: Path) -> None:
    applied, value = deployment(), deployment()
    lose_the_flag(value["spec"]["template"])
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    value["metadata"]["annotations"] = annotations
    assert {code for code, _ in found(tmp_path, value)} == {"runs-otherwise", "applied-otherwise"}


@pytest.mark.parametrize(
    ("step", "codes"),
    [
        ("starting", {"runs-otherwise", "not-ready"}),  # without the config, and no kubelet has the pod yet
        ("applied", set()),
        ("undone", {"runs-otherwise", "applied-otherwise"}),
        ("applied-again", set()),
    ],
)
def test_what_kubectl_printed_of_a_real_cluster_is_read(step: str, codes: set[str], tmp_path: Path) -> None:
    """`make whole-apiserver` recorded it: Kubernetes' controllers made the pods and said when the Deployment was up."""
    objects = yaml.safe_load((OBJECTS / f"{step}.yaml").read_text(encoding="utf-8"))["items"]
    assert {each["kind"] for each in objects} == {"Deployment", "Pod"}
    assert {code for code, _ in found(tmp_path, *objects, ordered=ORDERED)} == codes


def test_undoing_a_roll_out_lasts_until_the_next_apply() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [step["speculates"] for step in results["undo"]] == [False, True, False, True]
    assert results["refused_or_changed"] == []
    assert {"v1 ServiceAccount", "v1 PersistentVolumeClaim", "batch/v1 Job", "apps/v1 Deployment"} <= set(
        results["kinds"]
    )


def test_a_pod_that_no_kubelet_has_taken_is_not_ready(tmp_path: Path) -> None:
    value = pod()
    value["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    assert found(tmp_path, value) == [("not-ready", "pod/llama-spec-7d9f is not ready: its phase is Pending.")]
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU is free"}
    value["status"]["conditions"] = [unscheduled]
    ((_, message),) = found(tmp_path, value)
    assert "no GPU is free" in message


def test_without_a_condition_it_is_not_said_to_be_ready(tmp_path: Path) -> None:
    value = pod()
    value["status"] = {"phase": "Running"}
    result = run(tmp_path, yaml.safe_dump(value))
    assert "is ready." not in result.stdout
    assert "no condition shows it" in result.stdout


def test_a_roll_out_that_is_not_done_is_not_ready(tmp_path: Path) -> None:
    value = deployment()
    value["status"] = {
        "observedGeneration": 1,
        "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}],
    }
    said = " ".join(message for _, message in found(tmp_path, value))
    assert "ProgressDeadlineExceeded" in said
    assert "0 of 1 replicas" in said
    assert "has not processed the last change" in said


def test_a_pod_of_kserve_says_where_the_model_lies(tmp_path: Path) -> None:
    value = pod()
    words = args(value)
    words[words.index(SETUP.target)] = "/mnt/models/meta-llama/Llama-3.1-8B-Instruct"
    assert found(tmp_path, value) == []


def test_commands_to_look_further_have_the_names_filled_in(tmp_path: Path) -> None:
    value = pod()
    assert "The weights" not in run(tmp_path, yaml.safe_dump(value)).stdout  # they are in a cache, under other names
    words = args(value)
    words[words.index(SETUP.target)] = f"/mnt/models/{SETUP.target}"
    words.append("--port=8080")
    shown = run(tmp_path, yaml.safe_dump(value)).stdout
    for line in (
        "kubectl describe pod/llama-spec-7d9f -n models",
        "kubectl exec pod/llama-spec-7d9f -n models -- python3 -c 'import vllm; print(vllm.__version__)'",
        "cd /mnt/models && if [ -f CHECKSUMS ]; then sha256sum -c CHECKSUMS; fi",
        "draftwise verify http://localhost:8080 --setup setup.json",
        "kubectl logs pod/llama-spec-7d9f -n models --previous",
    ):
        assert line in shown
    assert "describe" not in run(tmp_path, yaml.safe_dump(pod()), "--format", "sarif").stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Read its standard error"),
        ('Error from server (Forbidden): pods "llama" is forbidden: User "dev" cannot get resource', "Forbidden"),
        ("bash: kubectl: command not found", "command not found"),
        ("The connection to the server localhost:8080 was refused", "was refused"),
        ("a: 1\n", "holds no object"),
        ("kind: List\nitems: []\n", "holds no object"),
        ("kind: PodList\nitems: null\n", "holds no object"),
        ("No resources found in models namespace.", "No resources found"),
        ('{"kind": "Status", "status": "Failure", "message": "pods is forbidden", "code": 403}', "pods is forbidden"),
        ("kind: Service\nmetadata: {name: llama}\nError from server (Forbidden): no pods for you", "no pods for you"),
        ("kind: Service\nmetadata: {name: llama}\n", "No object in stdin starts vLLM (service/llama)"),
        ("kind: ConfigMap\nmetadata: {name: a}\n---\nkind: Service\n", "(configmap/a, service/)"),
        ("kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: nginx}]}\n", "(pod/web)"),
    ],
)
def test_without_an_object_it_is_said_why(tmp_path: Path, text: str, said: str) -> None:
    result = run(tmp_path, text)
    assert result.exit_code == 2
    assert said in result.output


def test_an_object_without_a_server_decides_nothing(tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "llama"}, "spec": {"ports": []}}
    assert [code for code, _ in found(tmp_path, service, pod())] == ["not-told"]


@pytest.mark.parametrize(
    ("make", "said", "change"),
    [
        (deployment, "scaled to 0", lambda value: value["spec"].update(replicas=0)),
        (deployment, "has no status", lambda value: value.update(status={})),
        (pod, "has no status", lambda value: value.pop("status")),
        (pod, "being deleted", lambda value: value["metadata"].update(deletionTimestamp="2026-11-22T10:00:00Z")),
        (pod, "no condition shows it", lambda value: value["status"].update(conditions=[])),
        (deployment, "0 of 1 replicas have the last", lambda value: value["status"].update(updatedReplicas=0)),
        (deployment, "0 of 1 replicas are", lambda value: value.update(kind="StatefulSet", status={"replicas": 1})),
        (deployment, "no condition", lambda value: value.update(kind="ReplicaSet", status={"replicas": 1})),
    ],
)
def test_what_is_not_known_to_serve_is_an_error(tmp_path: Path, make: Any, said: str, change: Any) -> None:
    value = make()
    change(value)
    assert any(said in message for code, message in found(tmp_path, value) if code in ("not-ready", "not-told"))
    assert run(tmp_path, yaml.safe_dump(value)).exit_code == 1
