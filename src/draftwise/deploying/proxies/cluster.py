"""On Kubernetes: an HTTPRoute of the Gateway API, and the config of llm-d's endpoint picker.

Both see headers and no bodies: what has to be told from a body, a client or a gateway in front says by a header.
"""

from __future__ import annotations

from draftwise.deploying.proxies.policy import POOL_HEADER, Policy
from draftwise.deploying.proxies.pools import Pools
from draftwise.deploying.templating import dump_yaml, fill_part

__all__ = ["render_picker", "render_route", "set_share"]


def set_share(percent: int, service: str) -> str:
    """Return the command that gives the speculative pool another share of a route's requests."""
    path = "/spec/rules/1/backendRefs"
    values = ",".join(
        f'{{"op":"replace","path":"{path}/{index}/weight","value":{weight}}}'
        for index, weight in enumerate((percent, 100 - percent))
    )
    return f"kubectl patch httproute {service} --type=json -p '[{values}]'"


def render_route(policy: Policy, pools: Pools) -> str:
    """Return the HTTPRoute.

    Args:
        policy: what the speculative pool must not get.
        pools: the Services, and the share of the speculative one.
    """
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


def render_picker(policy: Policy, pools: Pools) -> str:
    """Return the EndpointPickerConfig.

    Args:
        policy: what the speculative pool must not get.
        pools: are found by their labels.
    """
    return _write("picker", policy, pools)


def _write(part: str, policy: Policy, pools: Pools, **values: object) -> str:
    lines = "".join(f"#   {line}\n" for line in policy.describe())
    named = {"name": pools.name, "header": POOL_HEADER, **values}
    text = dump_yaml(fill_part(part, None, named, of="proxies.yaml"))
    return f"# Requests for the plain pool, of which only the header is seen here:\n{lines}{text}"
