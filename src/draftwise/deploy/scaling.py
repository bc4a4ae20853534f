"""Replicas of both twins by the requests in flight, which tell speed apart from demand as no rate of tokens does: KEDA.

A service that speculates gives more tokens per second at the same demand: by a rate of tokens, it would be scaled for
being fast. Requests in flight fall where requests are answered sooner, and grow after going back.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.deploy.files import Step
from draftwise.deploy.observe.naming import PROMETHEUS, Naming
from draftwise.deploy.observe.promise import find_crossover
from draftwise.deploy.order import Order, Scale
from draftwise.deploy.render.words import dump_yaml

__all__ = ["SCALING", "find_lull_s", "find_threshold", "scale"]

SCALING = "scaling.yaml"
_IN_FLIGHT = "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)"
_SHORTEST_S, _LONGEST_S = 300, 3600
"""Of lulls: Kubernetes' own, and the longest that its autoscalers and Knative's take."""


def scale(order: Order, naming: Naming, scaled: str, wanted: Scale) -> Mapping[str, Step]:
    """Return the objects that scale both twins.

    Args:
        order: of the side that speculates.
        naming: of its metrics.
        scaled: what is, as apiVersion, kind and name with `{name}` in it; empty where the platform scales by fields of
            its own.
        wanted: how far.

    Raises:
        InvalidSetup: the platform scales by itself, or nobody says what a replica takes.
    """
    if not scaled:
        raise InvalidSetup.because(
            "scales-otherwise",
            "The platform scales by fields of its own, and a ScaledObject beside them would be overruled.",
            where="--max-replicas",
            fix="Leave it out, and scale there by vllm:num_requests_running and vllm:num_requests_waiting.",
        )
    sides = (order, order.without_speculation())
    objects = [_make_scaler(each, naming, scaled, wanted) for each in sides]
    told = " and ".join(f"{find_threshold(each, wanted)} for {each.name}" for each in sides)
    return {
        SCALING: Step(
            text=dump_yaml(*objects),
            about=f"KEDA's: up to {wanted.most} replicas by requests in flight, a replica for every {told}",
            does="Let both scale (set where Prometheus is reached first)",
            command=f"kubectl apply -f {SCALING}",
        )
    }


def find_threshold(order: Order, wanted: Scale) -> int:
    """Return the requests in flight that a replica takes: as given, or as far as it was measured and pays.

    Raises:
        InvalidSetup: nobody says it.
    """
    evidence = order.evidence
    arm = evidence.plain_arm if order.pool == "plain" else evidence.arm
    measured = [count for count, _ in evidence.curve_ms.get(arm, ())]
    pays = find_crossover(order) if order.pool == "spec" else None
    known = [max(measured)] if measured else []
    found = wanted.per_replica or min([*known, *([pays] if pays else [])], default=0)
    if found < 1:
        raise InvalidSetup.because(
            "replica-not-measured",
            "How many requests in flight a replica takes is not known: no run measured it for this model, release and "
            "GPU.",
            where="--max-replicas",
            fix="Give --requests-per-replica, or deploy a run of `draftwise decide` with a load of several requests.",
        )
    return floor(found)


def find_lull_s(order: Order) -> int:
    """Return for how long fewer replicas have to do: one that took so long to come up is not given away for less."""
    return min(max(_SHORTEST_S, order.startup_s), _LONGEST_S)


def _make_scaler(order: Order, naming: Naming, scaled: str, wanted: Scale) -> dict[str, Any]:
    version, kind, name = scaled.format(name=order.name).split()
    trigger = {
        "type": "prometheus",
        # The sum over all replicas, for each of which there is the threshold.
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": PROMETHEUS,
            "query": naming.write(_IN_FLIGHT, f'pool="{order.pool}"'),
            "threshold": str(find_threshold(order, wanted)),
            # Without it, metrics that are gone count as no requests, and the service is scaled down under its load.
            "ignoreNullValues": "false",
        },
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": order.name, "labels": dict(order.labels)},
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": name},
            "minReplicaCount": 1,
            "maxReplicaCount": wanted.most,
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": find_lull_s(order)}}
                }
            },
            "triggers": [trigger],
        },
    }
