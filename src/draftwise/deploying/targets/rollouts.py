"""Argo Rollouts: a Rollout in place of a Deployment, and a canary that an analysis judges.

A canary is a change to a Rollout's pods. So `canary.yaml` is the twin's Rollout with speculative pods, in steps; the
twin's own file has no steps, and applying it rolls back at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Finding
from draftwise.deploying.deployment_folder import CANARY, StepFile
from draftwise.deploying.observe import ANALYSIS, Observation
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import dump_yaml, fill, fill_part
from draftwise.knowledge.messages import note

_TEMPLATE = "argo_rollouts.yaml"
_WEIGHTS = (10, 50)
"""Percent of the requests in the steps of a canary."""


def _list_values(order: ServiceOrder) -> dict[str, object]:
    return {"selector": {"app": order.name}}


def _write_more(spec: ServiceOrder, plain: ServiceOrder, watched: Observation) -> Mapping[str, StepFile]:
    is_judged = ANALYSIS in watched.files
    judge = "an analysis" if is_judged else f"`kubectl argo rollouts promote {plain.name}`"
    weights = " and ".join(f"{weight} %" for weight in _WEIGHTS)
    first = f"kubectl apply -f {ANALYSIS} && " if is_judged else ""
    return {
        CANARY: StepFile(
            text=_render_canary(spec, plain, is_judged=is_judged),
            about=f"the Rollout with speculation, at {weights} of the requests until {judge} lets it pass",
            does=(
                "Try it on a service that runs without speculation. To end the trial, apply `rollback.yaml`. "
                f"`kubectl argo rollouts abort {plain.name}` ends it at once, until the next apply"
            ),
            command=f"{first}kubectl apply -f {CANARY} && kubectl argo rollouts status {plain.name}",
        )
    }


def _render_canary(spec: ServiceOrder, plain: ServiceOrder, *, is_judged: bool) -> str:
    """Return the plain side's Rollout with pods that speculate. Without an analysis a person decides each step."""
    (rollout, _), (speculating, _) = (fill(_TEMPLATE, each, _list_values(each)) for each in (plain, spec))
    pods = speculating["spec"]["template"]
    rollout["metadata"]["annotations"] = dict(spec.annotations)
    pods["metadata"]["labels"] |= {"app": plain.name}
    rollout["spec"]["template"] = pods
    services = {role: f"{plain.name}-{role}" for role in ("stable", "canary")}
    rollout["spec"]["strategy"]["canary"] |= {
        **{f"{role}Service": name for role, name in services.items()},
        "steps": [
            step
            for weight in _WEIGHTS
            for step in ({"setWeight": weight}, _judge(spec, services) if is_judged else {"pause": {}})
        ],
    }
    named = ({**_list_values(plain), "service_name": name} for name in services.values())
    return dump_yaml(rollout, *(fill_part("service_object", plain, values) for values in named))


def _judge(spec: ServiceOrder, services: Mapping[str, str]) -> dict[str, Any]:
    urls = [{"name": f"{role}-url", "value": f"http://{name}"} for role, name in services.items()]
    # The template asks for the URLs only where a job of it sends requests there.
    args = {"args": urls} if spec.platform.verifier else {}
    return {"analysis": {"templates": [{"templateName": spec.service}], **args}}


def _find_limits(_order: ServiceOrder) -> Iterator[Finding]:
    yield note("canary-by-replicas")


HOOKS = Hooks(list_values=_list_values, write_more=_write_more, find_limits=_find_limits)
