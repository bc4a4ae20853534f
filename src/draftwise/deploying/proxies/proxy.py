"""Describes one proxy in front of both twins: its file, the commands that share and drain, and its limits.

Both read headers but no bodies: a client or gateway in front must set a header for what depends on the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from draftwise.core import Finding
from draftwise.deploying.deployment_folder import StepFile
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.proxies import envoy, haproxy_config
from draftwise.deploying.proxies.pool_policy import (
    POOL_HEADER,
    Front,
    Policy,
    Pools,
    ProxyKind,
    ProxyOptions,
    judge_split,
)
from draftwise.deploying.templating import dump_yaml, fill_part
from draftwise.knowledge.messages import note, refusal, warning


def _set_route_share(percent: int, service: str) -> str:
    """Return the command that gives the speculative pool another share of a route's requests."""
    path = "/spec/rules/1/backendRefs"
    values = ",".join(
        f'{{"op":"replace","path":"{path}/{index}/weight","value":{weight}}}'
        for index, weight in enumerate((percent, 100 - percent))
    )
    return f"kubectl patch httproute {service} --type=json -p '[{values}]'"


def _render_route(policy: Policy, pools: Pools) -> str:
    """Return the HTTPRoute."""
    spec, plain = (address.rpartition(":") for address in (pools.spec, pools.plain))
    values = {
        "spec_host": spec[0],
        "spec_port": int(spec[2]),
        "spec_weight": pools.share,
        "plain_host": plain[0],
        "plain_port": int(plain[2]),
        "plain_weight": 100 - pools.share,
    }
    return _write("http_route", policy, pools, **values)


def _render_picker(policy: Policy, pools: Pools) -> str:
    return _write("picker", policy, pools)


def _write(part: str, policy: Policy, pools: Pools, **values: object) -> str:
    lines = "".join(f"#   {line}\n" for line in policy.describe())
    named = {"name": pools.name, "header": POOL_HEADER, **values}
    text = dump_yaml(fill_part(part, None, named, of="proxies.yaml"))
    return f"# Requests for the plain pool (this proxy sees only the header):\n{lines}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proxy:
    """A kind of proxy."""

    file: str
    render: Callable[[Policy, Pools], str]
    start: str
    """The command that puts the file into force."""
    sees_bodies: bool
    """Whether it tells requests by what their bodies hold."""
    set_share: Callable[[int, str], str] | None = None
    """The command that gives the speculative pool of a service another share; None where there is no such command."""


PROXIES: Mapping[ProxyKind, _Proxy] = {
    "haproxy": _Proxy(
        file="haproxy.cfg",
        render=haproxy_config.render,
        start="haproxy -c -f haproxy.cfg && haproxy -f haproxy.cfg",
        sees_bodies=True,
        set_share=haproxy_config.set_share,
    ),
    "envoy": _Proxy(
        file="envoy.yaml",
        render=envoy.render,
        start="envoy --mode validate -c envoy.yaml && envoy -c envoy.yaml",
        sees_bodies=True,
        set_share=envoy.set_share,
    ),
    "httproute": _Proxy(
        file="httproute.yaml",
        render=_render_route,
        start="kubectl apply -f httproute.yaml",
        sees_bodies=False,
        set_share=_set_route_share,
    ),
    "epp": _Proxy(
        file="endpoint-picker.yaml",
        render=_render_picker,
        start="kubectl create configmap draftwise-endpoint-picker --from-file=endpoint-picker.yaml",
        sees_bodies=False,
    ),
}


def put_in_front(order: ServiceOrder, wanted: ProxyOptions, address: str, policy: Policy) -> Front:
    """Return the proxy's file with its commands and limits.

    Raises:
        InvalidSetup: the address of a pool is unknown.
    """
    proxy, pools = PROXIES[wanted.kind], _find_pools(order, wanted, address)
    step = StepFile(
        text=proxy.render(policy, pools),
        about=(
            f"{wanted.kind} in front of both pools: {pools.share} % of the requests go to the speculative pool, "
            "except those that it must not serve"
        ),
        does="Put the proxy in front of both",
        command=proxy.start,
    )
    commands: dict[str, str] = {}
    if proxy.set_share is not None:
        commands = {
            "Send half of the requests to the speculative pool": proxy.set_share(50, order.service),
            "Drain the speculative pool: no new requests, and running ones finish": proxy.set_share(0, order.service),
        }
    limits = (*_find_limits(wanted.kind, proxy, policy), *judge_split(order.evidence.speed_ups))
    return Front(steps={proxy.file: step}, commands=commands, limits=limits)


def _find_pools(order: ServiceOrder, wanted: ProxyOptions, address: str) -> Pools:
    plain = order.without_speculation()
    spec_at, plain_at = (
        given or address.format(name=each.name, port=each.port)
        for given, each in ((wanted.spec, order), (wanted.plain, plain))
    )
    for side, found in ((order, spec_at), (plain, plain_at)):
        host, _, port = found.rpartition(":")
        if not host or not port.isdecimal():
            raise refusal("pool-address", pool=side.pool, found=found, name=side.name)
    return Pools(name=order.service, spec=spec_at, plain=plain_at, share=wanted.share)


def _find_limits(kind: str, proxy: _Proxy, policy: Policy) -> Iterator[Finding]:
    if policy.needs_body and not proxy.sees_bodies:
        yield warning(
            "proxy-sees-no-body", kind=kind, pool_header=POOL_HEADER, describe=" ".join(list(policy.describe())[1:])
        )
    if proxy.set_share is None:
        yield note("proxy-has-no-share", kind=kind)
