"""Scales both twins with KEDA by requests in flight, which distinguish speed from demand.

A speculative service produces more tokens per second at the same demand, so scaling by a token rate would add replicas
because it is fast. Requests in flight fall if answers come sooner, and grow after a rollback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor
from typing import Any

from draftwise.deploying.deployment_folder import StepFile
from draftwise.deploying.observe.naming import PROMETHEUS, Naming
from draftwise.deploying.observe.promise import find_crossover
from draftwise.deploying.order import Scale, ServiceOrder, find_lull_s
from draftwise.deploying.templating import dump_yaml, fill
from draftwise.knowledge.messages import refusal

SCALING = "scaling.yaml"
NAMESPACE = "default"
"""Namespace in which queries count requests, because others may have the same service; no data, no scaling."""
_IN_FLIGHT = "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)"


def settle(order: ServiceOrder, scaled: str) -> ServiceOrder:
    """Return an order with its requests in flight per replica, if it is scaled.

    Args:
        order: one of the twins.
        scaled: scaled object: apiVersion, kind and name with `{name}`; empty if the platform scales by its own fields.

    Raises:
        InvalidSetup: the platform scales by itself, or the requests per replica are unknown.
    """
    wanted = order.platform.scale
    if wanted is None:
        return order
    if not scaled:
        raise refusal("scales-otherwise")
    known = replace(wanted, per_replica=wanted.per_replica or _find_threshold(order))
    return replace(order, platform=replace(order.platform, scale=known))


def _find_threshold(order: ServiceOrder) -> int:
    """Return the requests in flight that a replica takes, as far as it was measured and pays."""
    evidence = order.evidence
    arm = evidence.plain_arm if order.pool == "plain" else evidence.arm
    measured = [count for count, _ in evidence.curve_ms.get(arm, ())]
    pays = find_crossover(order) if order.pool == "spec" else None
    known = [max(measured)] if measured else []
    found = min([*known, *([pays] if pays else [])], default=0)
    if found < 1:
        raise refusal("replica-not-measured")
    return floor(found)


def scale(orders: Sequence[ServiceOrder], naming: Naming, scaled: str) -> Mapping[str, StepFile]:
    """Return the objects that scale both twins; empty if Knative scales them, or without scaling."""
    scales = [(each, each.platform.scale) for each in orders if each.platform.mode != "Knative"]
    objects = [_make_scaler(each, wanted, naming, scaled) for each, wanted in scales if wanted is not None]
    if not objects:
        return {}
    told = " and ".join(f"{wanted.per_replica} for {each.name}" for each, wanted in scales if wanted is not None)
    most = objects[0]["spec"]["maxReplicaCount"]
    return {
        SCALING: StepFile(
            text=dump_yaml(*objects),
            about=f"KEDA scaling: up to {most} replicas by requests in flight, one replica for every {told}",
            does=f"Scale both (first set Prometheus' address, and the namespace if it is not {NAMESPACE})",
            command=f"kubectl apply -f {SCALING}",
        )
    }


def _make_scaler(order: ServiceOrder, wanted: Scale, naming: Naming, scaled: str) -> dict[str, Any]:
    version, kind, name = scaled.format(name=order.name).split()
    values = {
        "scaled_version": version,
        "scaled_kind": kind,
        "scaled_name": name,
        "max_replicas": wanted.most,
        "threshold": str(wanted.per_replica),
        "lull_s": find_lull_s(order),
        "prometheus": PROMETHEUS,
        "query": naming.write(_IN_FLIGHT, f'namespace="{NAMESPACE}"', f'deployment="{order.name}"'),
    }
    (scaler,) = fill("scaling.yaml", order, values)
    return dict(scaler)
