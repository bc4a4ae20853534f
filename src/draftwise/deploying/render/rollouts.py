"""Argo Rollouts: a Rollout in the place of a Deployment, and a canary of it that an analysis lets pass.

A canary is a change of a Rollout's pods. So `canary.yaml` is the twin's Rollout with pods that speculate, in steps; the
twin's own file has no steps, and applying it goes back at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.deploying.order import Order
from draftwise.deploying.render.kubernetes import make_deployment, make_service
from draftwise.deploying.render.words import dump_yaml

__all__ = ["WEIGHTS", "render", "render_canary"]

WEIGHTS = (10, 50)
"""Percent of the requests in the steps of a canary."""


def render(order: Order) -> str:
    """Return the manifest of a server."""
    return dump_yaml(_make_rollout(order), make_service(order.name, order, _select(order)))


def render_canary(spec: Order, plain: Order, *, is_judged: bool) -> str:
    """Return the plain side's Rollout with pods that speculate.

    Args:
        spec: the side with speculation.
        plain: its twin, whose running Rollout takes the canary.
        is_judged: whether there is an AnalysisTemplate; else a person decides after each step.
    """
    rollout, pods = _make_rollout(plain), _make_rollout(spec)["spec"]["template"]
    rollout["metadata"]["annotations"] = dict(spec.annotations)
    pods["metadata"]["labels"] |= _select(plain)
    rollout["spec"]["template"] = pods
    services = {role: f"{plain.name}-{role}" for role in ("stable", "canary")}
    rollout["spec"]["strategy"]["canary"] |= {
        **{f"{role}Service": name for role, name in services.items()},
        "steps": [
            step
            for weight in WEIGHTS
            for step in ({"setWeight": weight}, _judge(spec, services) if is_judged else {"pause": {}})
        ],
    }
    return dump_yaml(rollout, *(make_service(name, plain, _select(plain)) for name in services.values()))


def _select(order: Order) -> Mapping[str, str]:
    """Return the label that stays while the pool of the pods changes."""
    return {"app": order.name}


def _make_rollout(order: Order) -> dict[str, Any]:
    deployment = make_deployment(order, _select(order))
    strategy = deployment["spec"].pop("strategy")["rollingUpdate"]
    deployment["spec"] |= {"strategy": {"canary": strategy}, "progressDeadlineAbort": True}
    return {**deployment, "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}


def _judge(spec: Order, services: Mapping[str, str]) -> dict[str, Any]:
    urls = [{"name": f"{role}-url", "value": f"http://{name}"} for role, name in services.items()]
    # The template asks for the URLs only where a job of it sends requests there.
    args = {"args": urls} if spec.platform.verifier else {}
    return {"analysis": {"templates": [{"templateName": spec.service}], **args}}
