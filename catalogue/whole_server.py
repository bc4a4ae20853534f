"""Feeds Kubernetes' own kinds that `deploy` writes to a whole API server, and shows what `rollout undo` leaves behind.

    python -m catalogue.whole_server TOOLS OBJECTS > catalogue/platform/whole_server.json

TOOLS holds the programs that `catalogue/platform/whole_server.sh` builds. OBJECTS gets what kubectl says of a
Deployment and its pods on the way: starting, applied, undone, and applied again. A kubelet is played here; the
controllers are Kubernetes'.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.support.adopted import ORDER

from catalogue.api_server import ApiServer, check_one, is_custom, list_documents, name_kind
from draftwise.core import Severity
from draftwise.deploying import deploy
from draftwise.deploying.edit import edit_as
from draftwise.deploying.verify.cluster_objects import read_objects, verify_object
from draftwise.knowledge.kinds import find_kind
from draftwise.setups.read import SourceText

__all__ = ["WholeServer", "check_whole"]

_RELEASES = ("0.15", "0.20")
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "https://127.0.0.1:{port}", insecure-skip-tls-verify: true}}}}]
users: [{{name: admin, user: {{client-certificate: "{folder}/client.crt", client-key: "{folder}/client.key"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
current-context: here
"""


class WholeServer(ApiServer):
    """An API server with Kubernetes' own kinds, and the controllers of Deployments; no kubelet and no scheduler."""

    program = "kube-apiserver"

    def __enter__(self) -> WholeServer:
        super().__enter__()
        config = self.folder / "kubeconfig"
        config.write_text(_KUBECONFIG.format(port=self.port, folder=self.folder), encoding="utf-8")
        self.start(
            "kube-controller-manager",
            *(f"--kubeconfig={config}", "--controllers=deployment,replicaset", "--leader-elect=false"),
            *("--bind-address=127.0.0.1", "--port=0", "--secure-port=0"),
        )
        return self

    def list_flags(self, store: int) -> list[str]:
        """Return the server's flags; `store` is the port of its etcd."""
        own = {
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": "https://none.invalid",
            "service-account-key-file": "client.crt",
            "service-account-signing-key-file": "client.key",
            "endpoint-reconciler-type": "none",
            "disable-admission-plugins": "ServiceAccount",
        }
        return self.write_flags(store, own)

    def is_ready(self) -> bool:
        """Say whether the server answers, and objects have a place."""
        return self.call("GET", "/api/v1/namespaces/default")[0] == 200

    def locate(self, document: Mapping[str, Any], release: str) -> tuple[str, str]:
        """Return the apiVersion of a document, and the path of the objects of its kind."""
        del release  # of a project that defines kinds
        version = document["apiVersion"]
        root = "/api" if version == "v1" else "/apis"
        return version, f"{root}/{version}/namespaces/default/{document['kind'].lower()}s"

    def run_kubectl(self, *words: str, given: str = "") -> str:
        """Return what kubectl prints."""
        env = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}
        return subprocess.run(
            ["kubectl", *words], input=given, env=env, check=True, capture_output=True, text=True
        ).stdout


def check_whole(tools: Path, objects: Path) -> dict[str, Any]:
    """Return what the server makes of all documents of Kubernetes' own kinds, and of undoing a roll-out."""
    began = time.monotonic()
    documents = list_documents(_RELEASES, _is_core)
    with WholeServer(tools) as server:
        rows = [check_one(server, each) for each in documents]
        steps = [*undo(server, objects)]
        examples = [*apply_examples(server)]
    return {
        "server": "kube-apiserver and kube-controller-manager of Kubernetes 1.20.2, from Debian's source package",
        "documents": len(rows),
        "kinds": dict(sorted(Counter(name_kind(document) for _, document in documents).items())),
        "refused_or_changed": [row for row in rows if row["found"]],
        "undo": steps,
        "examples": examples,
        "total_s": round(time.monotonic() - began, 1),
    }


def apply_examples(server: WholeServer) -> Iterator[dict[str, Any]]:
    """Yield what the server answers to each object of examples/kubernetes; its release has CronJobs in v1beta1 only."""
    for path in sorted(Path("examples/kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            version = "batch/v1beta1" if document["kind"] == "CronJob" else document["apiVersion"]
            given = {**document, "apiVersion": version}
            code, answer = server.call("POST", server.locate(given, "")[1], given)
            yield {"file": path.name, "kind": f"{version} {document['kind']}", "status": code, **_keep(answer)}


def _keep(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"message": answer["message"]} if "message" in answer else {}


def _is_core(document: Mapping[str, Any]) -> bool:
    known = find_kind(str(document.get("apiVersion")), str(document.get("kind")))
    return known is not None and not is_custom(document)


def undo(server: WholeServer, objects: Path) -> Iterator[dict[str, Any]]:
    """Yield, step by step, whether a Deployment speculates and what `verify --kubectl` says of it and of its pods."""
    text = deploy(ORDER, "kubernetes").files["spec.yaml"]
    plain = edit_as(SourceText(text=text, name="spec.yaml"), ORDER.without_speculation().setup).text
    apply = partial(server.run_kubectl, "apply", "--validate=false", "-f", "-")
    steps: Mapping[str, Callable[[], Any]] = {
        "starting": partial(apply, given=plain),
        "applied": partial(apply, given=text),
        "undone": partial(server.run_kubectl, "rollout", "undo", f"deployment/{ORDER.name}"),
        "applied-again": partial(apply, given=text),
    }
    for step, act in steps.items():
        act()
        server.await_that(partial(_is_settled, server, "updatedReplicas"))
        if step == "starting":
            yield _look(server, step, objects)
        _play_kubelet(server)
        server.await_that(partial(_is_settled, server, "availableReplicas"))
        if step != "starting":
            yield _look(server, step, objects)


def _look(server: WholeServer, step: str, objects: Path) -> dict[str, Any]:
    """Keep what kubectl says, and return what `verify --kubectl` makes of it."""
    printed = server.run_kubectl("get", "deployment,pods", "-o", "yaml")
    (objects / f"{step}.yaml").write_text(printed, encoding="utf-8")
    values = read_objects(SourceText(text=printed, name=f"{step}.yaml"))
    said = (finding for value in values for finding in verify_object(value, ORDER.setup))
    (found,) = (each for each in values if each["kind"] == "Deployment")
    words = found["spec"]["template"]["spec"]["containers"][0]["args"]
    return {
        "step": step,
        "speculates": any("--speculative-config" in word for word in words),
        "found": [f"{each.code} {each}" for each in said if each.severity is not Severity.INFO],
    }


def _is_settled(server: WholeServer, count: str) -> bool:
    """Say whether the controllers have seen the last change, and one replica, the new one, is counted and no other."""
    value = json.loads(server.run_kubectl("get", f"deployment/{ORDER.name}", "-o", "json"))
    status, pods = value.get("status", {}), json.loads(server.run_kubectl("get", "pods", "-o", "json"))["items"]
    is_seen = status.get("observedGeneration") == value["metadata"]["generation"] and status.get("updatedReplicas") == 1
    return is_seen and status.get(count) == 1 and (count == "updatedReplicas" or len(pods) == 1)


def _play_kubelet(server: WholeServer) -> None:
    """Say of every pod that it runs and is ready, as a kubelet does."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for pod in json.loads(server.run_kubectl("get", "pods", "-o", "json"))["items"]:
        container = {key: pod["spec"]["containers"][0][key] for key in ("name", "image")}
        running = {"ready": True, "restartCount": 0, "imageID": "", "state": {"running": {"startedAt": now}}}
        conditions = [
            {"type": each, "status": "True", "lastTransitionTime": now}
            for each in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [{**container, **running}]}
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
        code, answer = server.call("PUT", path, {**pod, "status": {**pod["status"], **status}})
        if code != 200:
            raise RuntimeError(answer.get("message"))


if __name__ == "__main__":
    json.dump(check_whole(Path(sys.argv[1]), Path(sys.argv[2])), sys.stdout, indent=1)
    print()
