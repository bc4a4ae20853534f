"""One proxy in front of both twins: its file, the commands that share and drain, and what it does not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying.files import StepFile
from draftwise.deploying.order import Order
from draftwise.deploying.proxies import cluster, envoy, haproxy
from draftwise.deploying.proxies.classes import judge_split
from draftwise.deploying.proxies.policy import POOL_HEADER, Policy
from draftwise.deploying.proxies.pools import Front, Pools, ProxyKind, Wanted

__all__ = ["PROXIES", "put_in_front"]


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
        render=haproxy.render,
        start="haproxy -c -f haproxy.cfg && haproxy -f haproxy.cfg",
        sees_bodies=True,
        set_share=haproxy.set_share,
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
        render=cluster.render_route,
        start="kubectl apply -f httproute.yaml",
        sees_bodies=False,
        set_share=cluster.set_share,
    ),
    "epp": _Proxy(
        file="endpoint-picker.yaml",
        render=cluster.render_picker,
        start="kubectl create configmap draftwise-endpoint-picker --from-file=endpoint-picker.yaml",
        sees_bodies=False,
    ),
}


def put_in_front(order: Order, wanted: Wanted, address: str, policy: Policy) -> Front:
    """Return the proxy's file with its commands, and what it does not do.

    Args:
        order: of the side that speculates.
        wanted: the proxy.
        address: what the platform calls a server, with `{name}` and `{port}`; empty where that is not known.
        policy: what goes to the plain pool.

    Raises:
        InvalidSetup: where the pools are is not known.
    """
    proxy, pools = PROXIES[wanted.kind], _find_pools(order, wanted, address)
    step = StepFile(
        text=proxy.render(policy, pools),
        about=f"{wanted.kind} in front of both: {pools.share} % of the requests to the pool that speculates, and none "
        "that it must not get",
        does="Put the proxy in front of both",
        command=proxy.start,
    )
    commands: dict[str, str] = {}
    if proxy.set_share is not None:
        commands = {
            "Give the pool that speculates half of the requests": proxy.set_share(50, order.service),
            "Drain it: it gets no new request, and those that run end": proxy.set_share(0, order.service),
        }
    limits = (*_find_limits(wanted.kind, proxy, policy), *judge_split(order.evidence.speed_ups))
    return Front(steps={proxy.file: step}, commands=commands, limits=limits)


def _find_pools(order: Order, wanted: Wanted, address: str) -> Pools:
    plain = order.without_speculation()
    spec_at, plain_at = (
        given or address.format(name=each.name, port=each.port)
        for given, each in ((wanted.spec, order), (wanted.plain, plain))
    )
    for side, found in ((order, spec_at), (plain, plain_at)):
        host, _, port = found.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidSetup.because(
                "pool-address",
                f"Where the proxy reaches the pool {side.pool} is not known: {found!r} is no host with a port.",
                where=f"--{side.pool}-address",
                fix=f"Name it, e.g. --{side.pool}-address {side.name}:80.",
            )
    return Pools(name=order.service, spec=spec_at, plain=plain_at, share=wanted.share)


def _find_limits(kind: str, proxy: _Proxy, policy: Policy) -> Iterator[Finding]:
    if policy.needs_body and not proxy.sees_bodies:
        yield Finding.warning(
            "proxy-sees-no-body",
            f"{kind} looks at no bodies: requests that the pool that speculates must not get reach it, unless "
            f"whoever sends them sets the header {POOL_HEADER}: plain. {' '.join(list(policy.describe())[1:])}",
            fix="Have clients or a gateway in front set the header, or use --proxy haproxy or envoy.",
        )
    if proxy.set_share is None:
        yield Finding.info(
            "proxy-has-no-share",
            f"{kind} shares requests by the number of pods of both pools and by what they have to do; no "
            "weight says otherwise.",
            fix="Run fewer pods that speculate, or write defaultProfile: plain to drain them.",
        )
