"""What KServe needs beyond a manifest: a layout of the weights, what fills it, a canary, and its limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from shlex import quote
from typing import Any

from packaging.version import InvalidVersion, Version

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying.files import Step
from draftwise.deploying.layout import (
    LAYOUTS,
    SINGLE,
    STORAGE_URIS,
    Checkpoint,
    Kind,
    Layout,
    choose_layout,
    find_drafter,
    name_layout,
    place,
)
from draftwise.deploying.observe import Observation
from draftwise.deploying.order import Order
from draftwise.deploying.render.kserve import get_release, has_canaries, render_canary
from draftwise.deploying.render.kubernetes import to_gib
from draftwise.deploying.render.words import dump_yaml
from draftwise.knowledge.kinds import list_kinds
from draftwise.knowledge.models import names_directory

__all__ = ["CANARY", "MODELCAR", "STAGE", "describe_layout", "find_limits", "prepare", "warn_of_deadline", "write_more"]

CANARY, MODELCAR = "canary.yaml", "Dockerfile.modelcar"
ACCOUNT, CLAIM, STAGE = "account.yaml", "claim.yaml", "stage-job.yaml"
_SECRET, _TOKEN = "hf-secret", "HF_TOKEN"
"""The secret that KServe finds by its account, and its key: a token of the hub (pkg/credentials/hf)."""
_PERCENT = 10
_DEADLINE_S = 600
"""Of a Deployment that KServe makes; no field of an InferenceService changes it (deployment_reconciler.go)."""
_DOWNLOAD = """\
import sys, huggingface_hub
name, folder, revision = sys.argv[1:]
huggingface_hub.snapshot_download(name, local_dir=folder, revision=revision)
"""
_STAGING = "/models"
_SPARE = 1.25
"""Room for weights, times what they take: what is downloaded is first put beside what is there."""


def prepare(order: Order) -> Order:
    """Return an order with its weights placed.

    Raises:
        InvalidSetup: KServe's release is not known here, or does not do what the layout needs.
    """
    release = _read_release(order.platform.release)
    layout = order.platform.layout or choose_layout(order.setup, release=release)
    if layout.kind not in SINGLE and release < STORAGE_URIS:
        raise InvalidSetup.because(
            "layout-too-new",
            f"The layout {layout.kind} needs storageUris, which KServe has from {STORAGE_URIS} on.",
            where="--layout",
            fix="Choose modelcar:IMAGE or pvc:CLAIM.",
        )
    setup, placement = place(order.setup, layout)
    platform = replace(order.platform, release=str(release), layout=layout)
    return replace(order, setup=setup, placement=placement, platform=platform)


def _read_release(text: str) -> Version:
    known = [Version(each.since) for each in list_kinds() if each.kind == "InferenceService"]
    try:
        release = Version(text or str(known[-1]))
        if known[0] <= release and release.release[:2] <= known[-1].release[:2]:
            return release
    except InvalidVersion:
        pass
    raise InvalidSetup.because(
        "platform-release-unknown",
        f"KServe {text} is not known here.",
        where="--kserve",
        fix=f"Known are {known[0]} to {known[-1]}.",
    )


def write_more(spec: Order, plain: Order, _watched: Observation) -> Mapping[str, Step]:
    """Return the files that stage the weights, and the canary where KServe shares traffic."""
    steps: dict[str, Step] = {}
    layout, account = spec.platform.layout, spec.platform.service_account
    if account:
        steps[ACCOUNT] = _make_account(account)
    if layout is not None and layout.kind == "modelcar":
        steps[MODELCAR] = _build_modelcar(spec, layout.store)
    elif layout is not None and list(_list_fetched(spec)):
        if spec.host.weights_bytes:
            steps[CLAIM] = _make_claim(spec, layout.store)
        steps[STAGE] = _fill_claim(spec, layout.store)
    if has_canaries(spec):
        steps[CANARY] = Step(
            text=render_canary(spec, plain, _PERCENT),
            about=f"the twin with {_PERCENT} % of its requests answered with speculation",
            does=f"Try it on {_PERCENT} % of the running twin's requests (applying `plain.yaml` ends that)",
            command=f"kubectl apply -f {CANARY}",
        )
    return steps


def _make_account(name: str) -> Step:
    secrets = [{"name": _SECRET}]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}, "secrets": secrets}
    return Step(
        text=dump_yaml(account),
        about=f"the account {name}, for a namespace that has none of that name; it names the secret, and holds none",
        does=f"Make the account {name} where there is none, with a token of the hub that lies in a file",
        command=f"kubectl create secret generic {_SECRET} --from-file={_TOKEN}=TOKEN-FILE\n"
        f"kubectl get serviceaccount {name} || kubectl apply -f {ACCOUNT}",
    )


def _build_modelcar(order: Order, image: str) -> Step:
    """Return the Dockerfile of an image with the weights below /models, from where KServe links them."""
    names = [each.directory for each in order.placement.staged]
    copies = [json.dumps([name, f"{_STAGING}/{name}"]) for name in names]
    lines = ["# Weights lie beside this file, each in its directory.", "FROM busybox:1.37"]
    fetch = [
        f"hf download {each.name} --local-dir {quote(each.directory)}"
        + (f" --revision {quote(each.revision)}" if each.revision else "")
        for each in _list_fetched(order)
    ]
    return Step(
        text="\n".join([*lines, *(f"COPY {copy}" for copy in copies), ""]),
        about=f"the image {image}, which holds the weights",
        does="Build the image of the weights",
        command="\n".join([*fetch, f"docker build -f {MODELCAR} -t {image} . && docker push {image}"]),
    )


def _make_claim(order: Order, claim: str) -> Step:
    spec = {
        # One Job writes, replicas on any node read.
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": to_gib(ceil(_SPARE * order.host.weights_bytes))}},
    }
    return Step(
        text=dump_yaml(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec}
        ),
        about=f"the claim {claim}, for a cluster that has none of that name",
        does=f"Make the claim {claim} where there is none",
        command=f"kubectl get pvc {claim} || kubectl apply -f {CLAIM}",
    )


def _fill_claim(order: Order, claim: str) -> Step:
    job = _make_job(order, claim)
    name = job["metadata"]["name"]
    return Step(
        text=dump_yaml(job),
        about=f"a Job that downloads the weights onto the claim {claim}",
        does=f"Fill the claim {claim}",
        command=f"kubectl apply -f {STAGE} && kubectl wait --for=condition=Complete job/{name} --timeout=2h",
    )


def _list_fetched(order: Order) -> Iterator[Checkpoint]:
    """Yield the checkpoints that come from the hub; the others are directories of the operator's."""
    return (each for each in order.placement.staged if not names_directory(each.name))


def _make_job(order: Order, claim: str) -> dict[str, Any]:
    """Return the Job that downloads the weights onto a claim."""
    mounts = [{"name": "models", "mountPath": _STAGING}]
    token = {
        "name": _TOKEN,
        "valueFrom": {"secretKeyRef": {"name": _SECRET, "key": _TOKEN, "optional": True}},
    }
    containers = [
        {
            "name": f"stage-{index}",
            "image": order.image,
            "command": ["python3", "-c", _DOWNLOAD],
            "args": [each.name, f"{_STAGING}/{each.directory}", each.revision or "main"],
            "env": [token],
            "resources": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
            "volumeMounts": mounts,
        }
        for index, each in enumerate(_list_fetched(order))
    ]
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim}}
    pod: dict[str, Any] = {"restartPolicy": "OnFailure", "containers": containers, "volumes": [volume]}
    if order.platform.service_account:
        pod = {"serviceAccountName": order.platform.service_account, **pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{order.service}-stage", "labels": {"app.kubernetes.io/name": f"{order.service}-stage"}},
        "spec": {"backoffLimit": 3, "template": {"spec": pod}},
    }


def warn_of_deadline(order: Order) -> Iterator[Finding]:
    """Yield a warning where a start may take longer than KServe gives a Deployment."""
    if order.platform.mode == "Standard" and order.startup_s > _DEADLINE_S:
        yield Finding.warning(
            "progress-deadline-fixed",
            f"KServe gives a Deployment {_DEADLINE_S} s to come up, and no field changes that; a start may "
            f"take {order.startup_s} s here, and is reported as failed until it ends.",
            where="progressDeadlineSeconds",
            fix="Keep the compilation cache and the weights on the node so that starts take less; an InferenceService "
            "has its own deadline with --mode Knative.",
        )


def find_limits(order: Order) -> Iterator[Finding]:
    """Yield what KServe does not grant the service, or wants to be allowed first."""
    yield from warn_of_deadline(order)
    features = list(_list_features(order))
    if features:
        yield Finding.info(
            "knative-features",
            f"Knative takes the service only if its ConfigMap config-features enables {', '.join(features)}.",
            fix="Ask who runs the cluster, or choose --mode Standard.",
        )
    own = [each for each in order.placement.staged if names_directory(each.name)]
    if own:
        yield Finding.info(
            "stage-by-hand",
            "A checkpoint is a directory of yours: nothing downloads it to where the service looks for it.",
            fix="Copy it there: " + ", ".join(f"{each.name} to {each.directory}" for each in own) + ".",
        )


def _list_features(order: Order) -> Iterator[str]:
    if order.platform.mode != "Knative":
        return
    if order.gpu_product:
        yield "kubernetes.podspec-nodeselector"
    uris = (order.placement.whole, *(each.uri for each in order.placement.mounts))
    if any(uri.startswith("pvc://") for uri in uris):
        yield "kubernetes.podspec-persistent-volume-claim"
    if order.placement.mounts:
        yield "kubernetes.podspec-init-containers"


def describe_layout(order: Order) -> Iterator[str]:
    """Yield what the layout is and what the others would be, a sentence each."""
    layout = order.platform.layout
    if layout is None:
        return
    yield f"`{layout}`: {LAYOUTS[layout.kind]}."
    if layout.kind in ("one", "storage-uris"):
        yield "It needs nothing but these files; every start downloads the weights again, as long as that takes."
    yield from (f"`--layout {name_layout(kind)}`: {LAYOUTS[kind]}." for kind in _list_others(order, layout))
    if get_release(order) < STORAGE_URIS:
        yield f"KServe {STORAGE_URIS} could download several checkpoints."


def _list_others(order: Order, layout: Layout) -> Iterator[Kind]:
    """Yield the layouts that would hold the service's weights, too."""
    has_drafter = bool(find_drafter(order.setup))
    for kind in LAYOUTS:
        fits = {"one": not has_drafter, "storage-uris": has_drafter, "mixed": has_drafter}.get(kind, True)
        if fits and kind != layout.kind and (kind in SINGLE or get_release(order) >= STORAGE_URIS):
            yield kind
