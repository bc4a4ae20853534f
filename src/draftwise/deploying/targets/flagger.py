"""Writes Flagger objects: a Deployment, and a Canary that splits requests between the running and the changed one.

Flagger copies the Deployment as `NAME-primary` and creates the Services, so no Service is written. It selects pods by
the label `app`, which it rewrites for the copy (pkg/canary/deployment_controller.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Finding
from draftwise.deploying.deployment_folder import CANARY, StepFile
from draftwise.deploying.observe import FLAGGER, Observation
from draftwise.deploying.observe.analysis import make_canary_metric
from draftwise.deploying.observe.promise import find_promise
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import dump_yaml, fill, write_template
from draftwise.knowledge.messages import note

_SHARES = "flagger-canary.yaml"
_MINUTES = 10
"""Minutes between two steps, if no run says how long a reading takes."""


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    return {"selector": {"app": order.name}}


def _write_more(spec: ServiceOrder, plain: ServiceOrder, watched: Observation) -> Mapping[str, StepFile]:
    """Return the Canary of the plain side's Deployment, and the Deployment with pods that speculate."""
    promise = find_promise(spec) if FLAGGER in watched.files else None
    metric = None if promise is None else make_canary_metric(spec, promise)
    analysis = {"interval": metric["interval"] if metric else f"{_MINUTES}m", "metrics": [metric] if metric else []}
    first = f"kubectl apply -f {FLAGGER} && " if metric else ""
    judge = "while tokens per step stay above the break-even" if metric else "while no request fails"
    return {
        _SHARES: StepFile(
            text=write_template("flagger_canary.yaml", plain, analysis),
            about=f"Flagger's Canary of the service: it shifts requests in steps of 10 %, {judge}",
            does=(
                "Hand the service that runs from `rollback.yaml` over to Flagger, and wait until Flagger has copied it"
            ),
            command=f"{first}kubectl apply -f {_SHARES} && "
            f"kubectl wait --for=condition=Promoted canary/{plain.name} --timeout={2 * plain.startup_s}s",
        ),
        CANARY: StepFile(
            text=_render_changed(spec, plain),
            about="the Deployment with speculation, which Flagger then tries",
            does=(
                "Try it on the service that runs without speculation. Flagger rolls back by itself; to stay there, "
                "apply `rollback.yaml`"
            ),
            command=f"kubectl apply -f {CANARY}",
        ),
    }


def _render_changed(spec: ServiceOrder, plain: ServiceOrder) -> str:
    (deployment,), (speculating,) = (fill("flagger.yaml", each, _list_values(each)) for each in (plain, spec))
    pods = speculating["spec"]["template"]
    deployment["metadata"]["annotations"] = dict(spec.annotations)
    pods["metadata"]["labels"] |= {"app": plain.name}
    deployment["spec"]["template"] = pods
    return dump_yaml(deployment)


def _find_limits(_order: ServiceOrder) -> Iterator[Finding]:
    yield note("canary-provider")


HOOKS = Hooks(list_values=_list_values, write_more=_write_more, find_limits=_find_limits)
