"""KServe: an InferenceService with its own ServingRuntime, so that release and flags are those of the setup.

In addition to the manifests, this module writes the files that stage the weights, and the canary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from shlex import quote
from typing import Any

from packaging.version import InvalidVersion, Version

from draftwise.core import Finding
from draftwise.deploying.deployment_folder import CANARY, MODELCAR, STAGE, StepFile
from draftwise.deploying.observe import Observation
from draftwise.deploying.order import ServiceOrder, find_lull_s
from draftwise.deploying.targets.target_rows import TARGETS, DeployTarget, Hooks
from draftwise.deploying.templating import dump_yaml, fill, fill_part, to_gib
from draftwise.deploying.weights_layout import (
    LAYOUTS,
    CheckpointRef,
    Layout,
    LayoutRow,
    choose_layout,
    find_drafter,
    place,
)
from draftwise.knowledge.kinds import list_kinds
from draftwise.knowledge.messages import note, refusal, warning
from draftwise.knowledge.models import names_directory

_ROW = TARGETS["kserve"]
_TEMPLATE, _PARTS = _ROW.template, "kserve_parts.yaml"
_CONTAINER = "kserve-container"
"""The container that KServe brings weights and arguments to."""
_OLD_MODES = {"Standard": "RawDeployment", "Knative": "Serverless"}
"""Names of the modes in releases before `mode-names`."""
_ACCOUNT, _CLAIM = "account.yaml", "claim.yaml"
_HUB = {"secret": "hf-secret", "token": "HF_TOKEN"}
"""The secret that KServe finds by its account, and its key: a token of the hub (pkg/credentials/hf)."""
_PERCENT = 10
_DOWNLOAD = """\
import sys, huggingface_hub
name, folder, revision = sys.argv[1:]
huggingface_hub.snapshot_download(name, local_dir=folder, revision=revision)
"""
_STAGING = "/models"
_SPARE = 1.25
"""Size of a claim over that of the weights: a download needs room next to the files that are there already."""


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    mode, is_scaled = order.platform.mode, order.platform.scale is not None
    has_names = _ROW.has("mode-names", Version(order.platform.release or str(_list_releases()[-1])))
    return {
        "container_name": _CONTAINER,
        "port_name": "http" if mode == "Standard" else "http1",  # Knative takes no other names of ports than its own
        "runtime_probes": _make_probes(order),
        "mode_name": mode if has_names else _OLD_MODES[mode],
        # The ScaledObject knows more than the fields of KServe's own autoscaler say.
        "autoscaler": "external" if is_scaled and mode == "Standard" else None,
        "predictor": _make_predictor(order),
    }


def _make_probes(order: ServiceOrder) -> dict[str, Any]:
    probes: dict[str, Any] = fill_part("probes", order, {"probe_port": order.port})
    if order.platform.mode == "Knative":
        del probes["startupProbe"]  # Knative waits for readiness until its progress deadline
        probes["livenessProbe"]["initialDelaySeconds"] = order.startup_s
    return probes


def _make_predictor(order: ServiceOrder) -> dict[str, Any]:
    weights, scale = order.placement, order.platform.scale
    uris = [{"uri": mount.uri, "mountPath": mount.path} for mount in (*weights.mounts, *weights.drafts)]
    values = {
        "knative": _make_knative(order) if order.platform.mode == "Knative" else {},
        "max_replicas": scale.most if scale else 1,
        "uris": uris or None,
        "uri": weights.whole or None,
    }
    predictor: dict[str, Any] = fill_part("predictor", order, values, of=_PARTS)
    return predictor


def _make_knative(order: ServiceOrder) -> dict[str, Any]:
    """Return how long Knative waits for a start, and by what it scales: requests in flight, those that wait, too."""
    annotations, scale = {"serving.knative.dev/progress-deadline": f"{order.startup_s + 60}s"}, order.platform.scale
    if scale is None:
        return {"annotations": annotations}
    annotations |= {
        # By default it adds a replica at 70 % of the target, and takes it away after a minute.
        "autoscaling.knative.dev/target-utilization-percentage": "100",
        "autoscaling.knative.dev/scale-down-delay": f"{find_lull_s(order)}s",
    }
    return {"annotations": annotations, "scaleMetric": "concurrency", "scaleTarget": scale.per_replica}


def _has_canaries(order: ServiceOrder) -> bool:
    """Say whether KServe shares the traffic of one service between two versions of it."""
    return order.platform.mode == "Knative" or _ROW.has("canary", Version(order.platform.release))


def _render_canary(spec: ServiceOrder, plain: ServiceOrder) -> str:
    """Return the plain service with a share of its requests answered with speculation."""
    runtime, service = fill(_TEMPLATE, plain, _list_values(plain))
    canary = _make_predictor(spec)
    canary["model"]["runtime"] = plain.name
    if spec.platform.mode == "Knative":
        # A new revision of the service that runs; the rest of the traffic stays with the revision before.
        service["spec"]["predictor"] = {"canaryTrafficPercent": _PERCENT, **canary}
    else:
        canary.pop("maxReplicas")
        canary["model"] = {"name": _CONTAINER, **canary["model"]}
        service["spec"]["canary"] = [{"trafficPercent": _PERCENT, "predictor": {"name": "spec", **canary}}]
    return dump_yaml(runtime, service)


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return an order with its weights placed."""
    release = _read_release(order.platform.release)
    takes_several, since = _ROW.has("storage-uris", release), _ROW.since["storage-uris"]
    layout = order.platform.layout or choose_layout(order.setup, release, several_since=since)
    if not (takes_several or LAYOUTS[layout.kind].single_uri):
        raise refusal("layout-too-new", kind=layout.kind, since=since)
    setup, placement = place(order.setup, layout)
    platform = replace(order.platform, release=str(release), layout=layout)
    return replace(order, setup=setup, placement=placement, platform=platform)


def _list_releases() -> list[Version]:
    return [Version(each.since) for each in list_kinds() if each.kind == _ROW.kind]


def _read_release(text: str) -> Version:
    known = _list_releases()
    try:
        release = Version(text or str(known[-1]))
        if known[0] <= release and release.release[:2] <= known[-1].release[:2]:
            return release
    except InvalidVersion:
        pass
    raise refusal("platform-release-unknown", text=text, oldest=known[0], newest=known[-1])


def _write_more(spec: ServiceOrder, plain: ServiceOrder, _watched: Observation) -> Mapping[str, StepFile]:
    """Return the files that stage the weights, and the canary where KServe shares traffic."""
    steps: dict[str, StepFile] = {}
    layout, account = spec.platform.layout, spec.platform.service_account
    if account:
        steps[_ACCOUNT] = _make_account(spec)
    if layout is not None and layout.kind == "modelcar":
        steps[MODELCAR] = _build_modelcar(spec, layout.store)
    elif layout is not None and list(_list_fetched(spec)):
        if spec.host.weights_bytes:
            steps[_CLAIM] = _make_claim(spec, layout.store)
        steps[STAGE] = _fill_claim(spec, layout.store)
    if _has_canaries(spec):
        steps[CANARY] = StepFile(
            text=_render_canary(spec, plain),
            about=f"the service with {_PERCENT} % of its requests answered with speculation",
            does=(
                f"Try it on {_PERCENT} % of the requests, while the service runs from `rollback.yaml`. To end the "
                "trial, apply `rollback.yaml` again"
            ),
            command=f"kubectl apply -f {CANARY}",
        )
    return steps


def _make_account(order: ServiceOrder) -> StepFile:
    name = order.platform.service_account
    return StepFile(
        text=dump_yaml(fill_part("account_object", order, _HUB, of=_PARTS)),
        about=f"the account {name}, which names the hub secret, for a namespace without one",
        does=f"If it does not exist, create the account {name}, with a hub token from a file",
        command=f"kubectl create secret generic {_HUB['secret']} --from-file={_HUB['token']}=TOKEN-FILE\n"
        f"kubectl get serviceaccount {name} || kubectl apply -f {_ACCOUNT}",
    )


def _build_modelcar(order: ServiceOrder, image: str) -> StepFile:
    """Return the Dockerfile of an image with the weights below /models, from where KServe links them."""
    names = [each.directory for each in order.placement.staged]
    copies = [json.dumps([name, f"{_STAGING}/{name}"]) for name in names]
    lines = ["# The weights are next to this file, each in its directory.", "FROM busybox:1.37"]
    fetch = [
        f"hf download {each.name} --local-dir {quote(each.directory)}"
        + (f" --revision {quote(each.revision)}" if each.revision else "")
        for each in _list_fetched(order)
    ]
    return StepFile(
        text="\n".join([*lines, *(f"COPY {copy}" for copy in copies), ""]),
        about=f"the image {image}, which holds the weights",
        does="Build the image of the weights",
        command="\n".join([*fetch, f"docker build -f {MODELCAR} -t {image} . && docker push {image}"]),
    )


def _make_claim(order: ServiceOrder, claim: str) -> StepFile:
    values = {"claim": claim, "storage": to_gib(ceil(_SPARE * order.host.weights_bytes))}
    return StepFile(
        text=dump_yaml(fill_part("claim_object", order, values, of=_PARTS)),
        about=f"the claim {claim}, for a cluster without one",
        does=f"If it does not exist, create the claim {claim}",
        command=f"kubectl get pvc {claim} || kubectl apply -f {_CLAIM}",
    )


def _fill_claim(order: ServiceOrder, claim: str) -> StepFile:
    values = {**_HUB, "download": _DOWNLOAD, "staging": _STAGING}
    containers = [
        fill_part(
            "staging_container",
            order,
            {
                **values,
                "container_name": f"stage-{index}",
                "words": [each.name, f"{_STAGING}/{each.directory}", each.revision or "main"],
            },
            of=_PARTS,
        )
        for index, each in enumerate(_list_fetched(order))
    ]
    job = fill_part("job", order, {"claim": claim, "containers": containers}, of=_PARTS)
    return StepFile(
        text=dump_yaml(job),
        about=f"a Job that downloads the weights to the claim {claim}",
        does=f"Fill the claim {claim}",
        command=f"kubectl apply -f {STAGE} && "
        f"kubectl wait --for=condition=Complete job/{job['metadata']['name']} --timeout=2h",
    )


def _list_fetched(order: ServiceOrder) -> Iterator[CheckpointRef]:
    """Yield the checkpoints that come from the hub. The others are directories of the operator's."""
    return (each for each in order.placement.staged if not names_directory(each.name))


def warn_of_deadline(order: ServiceOrder, target: DeployTarget) -> Iterator[Finding]:
    """Yield a warning if a start may take longer than KServe gives a Deployment."""
    deadline_s = target.deadline_s or 0  # of the Deployment that KServe makes (deployment_reconciler.go)
    if order.platform.mode == "Standard" and order.startup_s > deadline_s:
        yield warning("progress-deadline-fixed", deadline_s=deadline_s, startup_s=order.startup_s)


def _find_limits(order: ServiceOrder) -> Iterator[Finding]:
    """Yield what KServe does not grant the service, or wants to be allowed first."""
    yield from warn_of_deadline(order, _ROW)
    features = list(_list_features(order))
    if features:
        yield note("knative-features", features=", ".join(features))
    own = [each for each in order.placement.staged if names_directory(each.name)]
    if own:
        yield note("stage-by-hand", copies=", ".join(f"{each.name} to {each.directory}" for each in own))


def _list_features(order: ServiceOrder) -> Iterator[str]:
    if order.platform.mode != "Knative":
        return
    if order.gpu_product:
        yield "kubernetes.podspec-nodeselector"
    uris = (order.placement.whole, *(each.uri for each in order.placement.mounts))
    if any(uri.startswith("pvc://") for uri in uris):
        yield "kubernetes.podspec-persistent-volume-claim"
    if order.placement.mounts:
        yield "kubernetes.podspec-init-containers"


def _describe_layout(order: ServiceOrder) -> Iterator[str]:
    """Yield what the layout is and what the others would be, a sentence each."""
    layout = order.platform.layout
    if layout is None:
        return
    yield f"`{layout}`: {LAYOUTS[layout.kind].about}."
    if layout.kind in ("one", "storage-uris"):
        yield "It needs only these files. Every start downloads the weights again, which takes its time."
    yield from (f"`--layout {row.shape}`: {row.about}." for row in _list_others(order, layout))
    if not _ROW.has("storage-uris", Version(order.platform.release)):
        yield f"KServe {_ROW.since['storage-uris']} could download several checkpoints."


def _list_others(order: ServiceOrder, layout: Layout) -> Iterator[LayoutRow]:
    """Yield the other layouts that would hold the weights of the service."""
    has_drafter = bool(find_drafter(order.setup))
    takes_several = _ROW.has("storage-uris", Version(order.platform.release))
    for kind, row in LAYOUTS.items():
        fits = {"one": not has_drafter, "storage-uris": has_drafter, "mixed": has_drafter}.get(kind, True)
        if fits and kind != layout.kind and (row.single_uri or takes_several):
            yield row


HOOKS = Hooks(
    list_values=_list_values,
    prepare=_prepare,
    write_more=_write_more,
    find_limits=_find_limits,
    describe=_describe_layout,
)
