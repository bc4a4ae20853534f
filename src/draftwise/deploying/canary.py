"""Canaries by Argo Rollouts and Flagger: the files beside the twins', and what these tools do not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Finding
from draftwise.deploying.files import Step
from draftwise.deploying.kserve import CANARY
from draftwise.deploying.observe import ANALYSIS, FLAGGER, Observation
from draftwise.deploying.observe.analysis import make_canary_metric
from draftwise.deploying.observe.promise import find_promise
from draftwise.deploying.order import Order
from draftwise.deploying.render import flagger, rollouts

__all__ = ["SHARES", "name_provider", "warn_of_shares", "write_flagger", "write_rollout"]

SHARES = "flagger-canary.yaml"


def write_rollout(spec: Order, plain: Order, watched: Observation) -> Mapping[str, Step]:
    """Return the canary of a Rollout."""
    is_judged = ANALYSIS in watched.files
    judge = "an analysis" if is_judged else f"`kubectl argo rollouts promote {plain.name}`"
    weights = " and ".join(f"{weight} %" for weight in rollouts.WEIGHTS)
    first = f"kubectl apply -f {ANALYSIS} && " if is_judged else ""
    return {
        CANARY: Step(
            text=rollouts.render_canary(spec, plain, is_judged=is_judged),
            about=f"the twin's Rollout with pods that speculate, at {weights} of the requests until {judge} lets it "
            "pass",
            does="Try it on the running twin (applying `plain.yaml` ends that; "
            f"`kubectl argo rollouts abort {plain.name}` does at once, until the next apply)",
            command=f"{first}kubectl apply -f {CANARY} && kubectl argo rollouts status {plain.name}",
        )
    }


def warn_of_shares(order: Order) -> Iterator[Finding]:
    """Yield how Rollouts shares requests."""
    del order
    yield Finding.info(
        "canary-by-replicas",
        "Without a traffic router Argo Rollouts shares requests by the number of pods: of one replica, a "
        "canary of 10 % is a second pod and gets half of the requests.",
        where="strategy.canary",
        fix="Give the Rollout as many replicas as the share needs, or a router (strategy.canary.trafficRouting).",
    )


def write_flagger(spec: Order, plain: Order, watched: Observation) -> Mapping[str, Step]:
    """Return the Canary of a Deployment, and the Deployment with pods that speculate."""
    promise = find_promise(spec) if FLAGGER in watched.files else None
    metric = None if promise is None else make_canary_metric(spec, promise)
    shares, changed = flagger.render_canary(spec, plain, metric)
    first = f"kubectl apply -f {FLAGGER} && " if metric else ""
    judge = "while tokens per step stay over the break-even" if metric else "while no request fails"
    return {
        SHARES: Step(
            text=shares,
            about=f"Flagger's Canary of the twin: it shares the requests in steps of 10 %, {judge}",
            does="Hand the running twin to Flagger, and wait until it has copied it",
            command=f"{first}kubectl apply -f {SHARES} && "
            f"kubectl wait --for=condition=Promoted canary/{plain.name} --timeout={2 * plain.startup_s}s",
        ),
        CANARY: Step(
            text=changed,
            about="the twin's Deployment with pods that speculate, which Flagger then tries",
            does="Try it on the running twin (Flagger goes back by itself; applying `plain.yaml` makes that stay)",
            command=f"kubectl apply -f {CANARY}",
        ),
    }


def name_provider(order: Order) -> Iterator[Finding]:
    """Yield what Flagger has to be told beside the files."""
    del order
    yield Finding.info(
        "canary-provider",
        "Flagger shares requests through a mesh, an ingress or a gateway, which its own --mesh-provider names; "
        "with the provider kubernetes it switches all of them at once.",
        where="spec.provider",
        fix="Set spec.provider of the Canary where the cluster has several.",
    )
