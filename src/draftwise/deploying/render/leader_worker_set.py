"""LeaderWorkerSet: a server whose ranks lie on several hosts, as a group of pods that start and end together.

The first pod answers; the others run vLLM's workers without an API (`--headless`) and find it by the name that the
controller puts into their environment (lws 0.9: pkg/utils/pod/pod_utils.go). From `--nnodes`, `--node-rank` and
`--master-addr` vLLM derives which ranks are whose (vllm 0.26.0: engine/arg_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying.order import Order, refuse_other_hosts
from draftwise.deploying.render.kubernetes import make_container, make_metadata, make_pod, make_service
from draftwise.deploying.render.words import dump_yaml
from draftwise.deploying.twin import count_hosts

__all__ = ["find_limits", "prepare", "render"]

_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label of the controller's that tells a group's pods apart; 0 is the one that answers."""
_LEADER, _RANK, _OWN = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)", "$(POD_IP)"
_OF_HOST = (
    *("node_rank", "headless", "master_addr", "data_parallel_address"),
    *("data_parallel_rank", "data_parallel_start_rank", "data_parallel_size_local"),
)
_EACH_ANSWERS = ("data_parallel_external_lb", "data_parallel_hybrid_lb")
_ONLY_WITH_API = "api_server_count"
"""A flag that workers without an API refuse."""


def prepare(order: Order) -> Order:
    """Return an order whose ranks can be dealt out to a group.

    Raises:
        InvalidSetup: it says itself which host it is for, has ranks elsewhere and not how many hosts there are, or has
            every host answer.
    """
    args = order.setup.args
    if count_hosts(order.setup) == 1:
        refuse_other_hosts(order.setup, fix="Leave it out, and say how many hosts there are, e.g. --nnodes 2.")
        return order
    _refuse(args, _OF_HOST, "is for one host of several, whose place its number in the group takes")
    _refuse(args, _EACH_ANSWERS, "has each host answer, and of a group one does")
    return order


def _refuse(args: Mapping[str, Any], flags: Iterable[str], why: str) -> None:
    for flag in (f"--{name.replace('_', '-')}" for name in flags if args.get(name, False) is not False):
        raise InvalidSetup.because(
            "host-of-group-given", f"{flag} {why}.", where=flag, fix="Leave it out: --nnodes spreads the ranks."
        )


def render(order: Order) -> str:
    """Return the manifest of a server; the controller's own Service has the set's name, so this one has another."""
    selector = {**order.labels, _INDEX: "0"}
    return dump_yaml(_make_set(order), make_service(f"{order.name}-http", order, selector))


def _make_set(order: Order) -> dict[str, Any]:
    size = count_hosts(order.setup)
    labels = {"metadata": {"labels": dict(order.labels)}}
    pods = {"workerTemplate": {**labels, "spec": make_pod(order, make_container(order))}}
    if size > 1:
        pods = {
            "leaderTemplate": {**labels, "spec": make_pod(order, _make_leader(order))},
            "workerTemplate": {**labels, "spec": make_pod(order, _make_worker(order))},
        }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": make_metadata(order),
        "spec": {
            **({} if order.platform.scale else {"replicas": 1}),
            # The old group goes on until the new one answers; that takes free hosts for one more.
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "leaderWorkerTemplate": {"size": size, "restartPolicy": "RecreateGroupOnPodRestart", **pods},
        },
    }


def _make_leader(order: Order) -> dict[str, Any]:
    container = make_container(order)
    # Its name resolves for others; what listens takes an address.
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {
        **container,
        "args": [*container["args"], *_meet_at(order, _OWN)],
        "env": [own, *container.get("env", ())],
    }


def _make_worker(order: Order) -> dict[str, Any]:
    args = {name: value for name, value in order.setup.args.items() if name != _ONLY_WITH_API}
    container = make_container(replace(order, setup=replace(order.setup, args=args)))
    container = {name: value for name, value in container.items() if name != "ports" and not name.endswith("Probe")}
    return {**container, "args": [*container["args"], f"--node-rank={_RANK}", *_meet_at(order, _LEADER), "--headless"]}


def _meet_at(order: Order, address: str) -> Iterator[str]:
    yield f"--master-addr={address}"
    if order.setup.args.get("data_parallel_size", 1) != 1:
        yield f"--data-parallel-address={address}"


def find_limits(order: Order) -> Iterator[Finding]:
    """Yield what the files leave to the cluster."""
    if count_hosts(order.setup) > 1:
        yield Finding.warning(
            "hosts-over-pod-network",
            "The hosts of a group talk over the network of the pods: no RDMA device is asked for, as its name is the "
            "cluster's, and without one each step waits for that network.",
            where="--nnodes",
            fix="Add the resource of your RDMA devices to both containers, e.g. rdma/ib.",
        )
