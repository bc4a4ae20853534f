"""KServe: an InferenceService with a ServingRuntime of its own, so that release and flags are those of the setup.

The runtime has the container without arguments: KServe appends the service's arguments to the runtime's, and those of
its own runtimes differ from release to release.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from draftwise.deploying.order import Order
from draftwise.deploying.render.kubernetes import (
    find_lull_s,
    list_env,
    list_resources,
    list_volumes,
    make_metadata,
    make_probes,
)
from draftwise.deploying.render.words import PROGRAM, dump_yaml, list_args

__all__ = ["CONTAINER", "get_release", "has_canaries", "render", "render_canary"]

CONTAINER = "kserve-container"
"""The container that KServe brings weights and arguments to."""
_FORMAT = {"name": "vLLM", "version": "1"}
_MODES = {"Standard": "RawDeployment", "Knative": "Serverless"}
"""Names that the modes had before `_RENAMED`."""
_RENAMED = Version("0.16")
_CANARIES = Version("0.20")
"""First release with canaries of a Deployment."""


def get_release(order: Order) -> Version:
    """Return the release of KServe that takes the files."""
    from draftwise.knowledge.kinds import get_newest

    return Version(order.platform.release or get_newest("serving.kserve.io/v1beta1", "InferenceService"))


def has_canaries(order: Order) -> bool:
    """Say whether KServe shares the traffic of one service between two versions of it."""
    return order.platform.mode == "Knative" or get_release(order) >= _CANARIES


def render(order: Order) -> str:
    """Return the manifest of a service."""
    return dump_yaml(_make_runtime(order), _make_service(order, _make_predictor(order)))


def render_canary(spec: Order, plain: Order, percent: int) -> str:
    """Return the plain service with a share of its requests answered with speculation.

    Args:
        spec: the side with speculation.
        plain: its twin, whose running service takes the canary.
        percent: of the requests.
    """
    canary = _make_predictor(spec)
    if spec.platform.mode == "Knative":
        # A new revision of the service that runs; what is left of the traffic stays with the one before.
        service = _make_service(plain, {"canaryTrafficPercent": percent, **canary})
    else:
        stable = _make_predictor(plain)
        canary.pop("maxReplicas")
        canary["model"] = {"name": CONTAINER, **canary["model"]}
        service = _make_service(plain, stable)
        service["spec"]["canary"] = [{"trafficPercent": percent, "predictor": {"name": "spec", **canary}}]
    runtime = plain.name
    for each in (service["spec"]["predictor"], *(each["predictor"] for each in service["spec"].get("canary", ()))):
        each["model"]["runtime"] = runtime
    return dump_yaml(_make_runtime(plain), service)


def _make_runtime(order: Order) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": order.image,
        "command": list(PROGRAM),
        # Knative takes no other names of ports than its own.
        "ports": [{"name": "http" if order.platform.mode == "Standard" else "http1", "containerPort": order.port}],
        **_make_probes(order),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": "/root/.cache"}],
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": order.name, "labels": dict(order.labels)},
        "spec": {
            "annotations": {"prometheus.kserve.io/port": str(order.port), "prometheus.kserve.io/path": "/metrics"},
            "supportedModelFormats": [_FORMAT],
            "containers": [container],
            "volumes": list_volumes(order),
        },
    }


def _make_probes(order: Order) -> dict[str, Any]:
    probes = make_probes(order, port=order.port)
    if order.platform.mode == "Knative":
        del probes["startupProbe"]  # Knative waits for readiness until its progress deadline
        probes["livenessProbe"]["initialDelaySeconds"] = order.startup_s
    return probes


def _make_service(order: Order, predictor: dict[str, Any]) -> dict[str, Any]:
    mode = order.platform.mode
    metadata = make_metadata(order)
    metadata["annotations"] = {
        "serving.kserve.io/deploymentMode": mode if get_release(order) >= _RENAMED else _MODES[mode],
        "serving.kserve.io/enable-prometheus-scraping": "true",
        # No autoscaler of KServe's own beside the ScaledObject that is written, which knows more than its fields say.
        **({"serving.kserve.io/autoscalerClass": "external"} if order.platform.scale and mode == "Standard" else {}),
        **metadata["annotations"],
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"predictor": predictor},
    }


def _make_predictor(order: Order) -> dict[str, Any]:
    place, platform = order.placement, order.platform
    model: dict[str, Any] = {
        "modelFormat": dict(_FORMAT),
        "runtime": order.name,
        **({"storageUri": place.whole} if place.whole else {}),
        "args": list_args(order),
        **list_env(order),
        "resources": list_resources(order),
    }
    uris = [{"uri": mount.uri, "mountPath": mount.path} for mount in (*place.mounts, *place.drafts)]
    return {
        "labels": dict(order.labels),
        **(_make_knative(order) if platform.mode == "Knative" else {}),
        "minReplicas": 1,
        "maxReplicas": platform.scale.most if platform.scale else 1,
        **({"serviceAccountName": platform.service_account} if platform.service_account else {}),
        **({"nodeSelector": {"nvidia.com/gpu.product": order.gpu_product}} if order.gpu_product else {}),
        **({"storageUris": uris} if uris else {}),
        "model": model,
    }


def _make_knative(order: Order) -> dict[str, Any]:
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
