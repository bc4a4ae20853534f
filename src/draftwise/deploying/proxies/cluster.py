"""On Kubernetes: an HTTPRoute of the Gateway API, and the config of llm-d's endpoint picker.

Both see headers and no bodies: what has to be told from a body, a client or a gateway in front says by a header.
"""

from __future__ import annotations

from typing import Any

from draftwise.deploying.proxies.policy import POOL_HEADER, Policy
from draftwise.deploying.proxies.pools import Pools
from draftwise.deploying.templating import dump_yaml

__all__ = ["render_picker", "render_route", "set_share"]

_POOL_LABEL = "draftwise.dev/pool"
_SCORERS = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
"""As llm-d's chart weighs them (llm-d-router at ebab6879, config/charts/routerlib/templates/_config.yaml)."""
_GATEWAY = "inference-gateway"
"""As llm-d's guides call theirs."""


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
    plain = {
        "matches": [{"headers": [{"name": POOL_HEADER, "value": "plain"}]}],
        "backendRefs": [_refer(pools.plain)],
    }
    shared = {
        "backendRefs": [
            {**_refer(pools.spec), "weight": pools.share},
            {**_refer(pools.plain), "weight": 100 - pools.share},
        ]
    }
    return _comment(policy) + dump_yaml(
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": pools.name},
            "spec": {"parentRefs": [{"name": _GATEWAY}], "rules": [plain, shared]},
        }
    )


def _refer(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"name": host, "port": int(port)}


def render_picker(policy: Policy, pools: Pools) -> str:
    """Return the EndpointPickerConfig: a profile for each pool, and one for both; shares go by the number of pods.

    Args:
        policy: what the speculative pool must not get.
        pools: are found by their labels.
    """
    filters = [
        {"name": f"{pool}-pods", "type": "label-selector-filter", "parameters": {"matchLabels": {
            "app.kubernetes.io/name": pools.name, _POOL_LABEL: pool}}}
        for pool in ("spec", "plain")
    ]  # fmt: skip
    handler = {"headerName": POOL_HEADER, "defaultProfile": "shared"}
    plugins = [
        *filters,
        *({"type": name} for name in (*_SCORERS, "metrics-data-source", "core-metrics-extractor")),
        {"type": "header-profile-handler", "parameters": handler},
    ]
    rest = [{"pluginRef": name, "weight": weight} for name, weight in _SCORERS.items()]
    profiles: dict[str, list[dict[str, Any]]] = {
        "shared": [],
        "spec": [{"pluginRef": "spec-pods"}],
        "plain": [{"pluginRef": "plain-pods"}],
    }
    return _comment(policy) + dump_yaml(
        {
            "apiVersion": "llm-d.ai/v1alpha1",
            "kind": "EndpointPickerConfig",
            "plugins": plugins,
            "schedulingProfiles": [{"name": name, "plugins": [*own, *rest]} for name, own in profiles.items()],
        }
    )


def _comment(policy: Policy) -> str:
    lines = "".join(f"#   {line}\n" for line in policy.describe())
    return f"# Requests for the plain pool, of which only the header is seen here:\n{lines}"
