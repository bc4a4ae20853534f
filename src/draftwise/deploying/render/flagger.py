"""Flagger: a Deployment and the Canary that shares its requests between what runs and what was changed.

Flagger copies the Deployment as `NAME-primary` and makes the Services itself, so that none is written here. It knows
pods by the label `app`, of which it writes the copy's anew (pkg/canary/deployment_controller.go).
"""

from __future__ import annotations

from typing import Any

from draftwise.deploying.order import Order
from draftwise.deploying.render.kubernetes import make_deployment, make_metadata
from draftwise.deploying.render.words import dump_yaml

__all__ = ["render", "render_canary"]

_MINUTES = 10
"""Between two steps, where no run says how long a reading takes."""


def render(order: Order) -> str:
    """Return the manifest of a server."""
    return dump_yaml(_make_deployment(order))


def render_canary(spec: Order, plain: Order, metric: dict[str, Any] | None) -> tuple[str, str]:
    """Return the Canary of the plain side's Deployment, and this Deployment with pods that speculate.

    Args:
        spec: the side with speculation.
        plain: its twin, whose running Deployment takes the canary.
        metric: item of the analysis that fails under the break-even; None where no run gives it.
    """
    deployment, pods = _make_deployment(plain), _make_deployment(spec)["spec"]["template"]
    deployment["metadata"]["annotations"] = dict(spec.annotations)
    pods["metadata"]["labels"] |= {"app": plain.name}
    deployment["spec"]["template"] = pods
    return dump_yaml(_make_canary(plain, metric)), dump_yaml(deployment)


def _make_deployment(order: Order) -> dict[str, Any]:
    return make_deployment(order, {"app": order.name})


def _make_canary(order: Order, metric: dict[str, Any] | None) -> dict[str, Any]:
    analysis = {
        "interval": metric["interval"] if metric else f"{_MINUTES}m",
        "threshold": 2,
        "maxWeight": 50,
        "stepWeight": 10,
        "metrics": [metric] if metric else [],
    }
    return {
        "apiVersion": "flagger.app/v1beta1",
        "kind": "Canary",
        "metadata": make_metadata(order),
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": order.name},
            "progressDeadlineSeconds": order.startup_s + 60,
            "service": {"port": 80, "targetPort": order.port},
            "analysis": analysis,
        },
    }
