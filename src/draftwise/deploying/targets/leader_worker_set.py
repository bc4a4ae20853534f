"""LeaderWorkerSet: a server with ranks on several hosts, as a group of pods that start and stop together.

The first pod answers; the others run vLLM's workers without an API (`--headless`) and find it by the name that the
controller sets in their environment (lws 0.9: pkg/utils/pod/pod_utils.go). vLLM assigns ranks from `--nnodes`,
`--node-rank` and `--master-addr` (vllm 0.26.0: engine/arg_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Finding
from draftwise.deploying.order import ServiceOrder, refuse_other_hosts
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import fill_part
from draftwise.deploying.twin import count_hosts
from draftwise.knowledge.messages import refusal, warning

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


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return an order whose ranks can be dealt out to a group."""
    args = order.setup.args
    if count_hosts(order.setup) == 1:
        refuse_other_hosts(order.setup, fix="Leave it out, and set the number of hosts, e.g. --nnodes 2.")
        return order
    _refuse(args, _OF_HOST, "is the rank of one host, but here the host's place in the group sets it")
    _refuse(args, _EACH_ANSWERS, "makes each host answer, but only one host of a group answers")
    return order


def _refuse(args: Mapping[str, Any], flags: Iterable[str], why: str) -> None:
    for flag in (f"--{name.replace('_', '-')}" for name in flags if args.get(name, False) is not False):
        raise refusal("host-of-group-given", flag=flag, why=why)


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    size, container = count_hosts(order.setup), fill_part("container", order)
    pods = {"workerTemplate": container}
    if size > 1:
        pods = {"leaderTemplate": _make_leader(order, container), "workerTemplate": _make_worker(order)}
    templates = {role: _make_template(order, each) for role, each in pods.items()}
    selector = {**order.selector, _INDEX: "0"}
    return {"size": size, "pods": templates, "service_name": f"{order.name}-http", "selector": selector}


def _make_template(order: ServiceOrder, container: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": dict(order.labels)}, "spec": fill_part("pod", order, {"container": container})}


def _make_leader(order: ServiceOrder, container: Mapping[str, Any]) -> dict[str, Any]:
    # Its name resolves for others; what listens takes an address.
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {**container, "args": [*container["args"], *_meet_at(order, _OWN)], "env": [own, *container.get("env", ())]}


def _make_worker(order: ServiceOrder) -> dict[str, Any]:
    args = {name: value for name, value in order.setup.args.items() if name != _ONLY_WITH_API}
    container = fill_part("container", replace(order, setup=replace(order.setup, args=args)))
    container = {name: value for name, value in container.items() if name != "ports" and not name.endswith("Probe")}
    return {**container, "args": [*container["args"], f"--node-rank={_RANK}", *_meet_at(order, _LEADER), "--headless"]}


def _meet_at(order: ServiceOrder, address: str) -> Iterator[str]:
    yield f"--master-addr={address}"
    if order.setup.args.get("data_parallel_size", 1) != 1:
        yield f"--data-parallel-address={address}"


def _find_limits(order: ServiceOrder) -> Iterator[Finding]:
    if count_hosts(order.setup) > 1:
        yield warning("hosts-over-pod-network")


HOOKS = Hooks(list_values=_list_values, prepare=_prepare, find_limits=_find_limits)
