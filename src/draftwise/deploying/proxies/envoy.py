"""Configures Envoy: fields of a body become metadata that routes match; a script detects whether a field is present.

The filter that turns JSON into metadata reads only texts and numbers, and treats objects and lists as absent (1.40).
The script finds fields as text: JSON escapes quotes inside strings, so a prompt cannot imitate a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from draftwise.deploying.proxies.pool_policy import POOL_HEADER, Policy, Pools
from draftwise.deploying.templating import dump_yaml, fill_part

_TEMPLATE = "proxies.yaml"
_SPACE = "draftwise"
_TYPES = "type.googleapis.com/envoy.extensions"
_ANSWERS = ("max_tokens", "max_completion_tokens")
_MANY = 1 << 40
"""Bytes or tokens that no request has: the upper end of ranges."""
_SCRIPT = """\
local fields = {FIELDS}
function envoy_on_request(handle)
  local body = handle:body()
  if body == nil then return end
  local text = body:getBytes(0, body:length())
  for _, field in ipairs(fields) do
    if string.find(text, '[^\\\\]"' .. field .. '"%s*:%s*[^n%s]') then
      handle:headers():replace("HEADER", "plain")
      handle:clearRouteCache()
      return
    end
  end
end
"""


def set_share(percent: int, _service: str = "") -> str:
    """Return the command that changes the speculative pool's share of a running proxy's requests."""
    shares = f"{_SPACE}.shared.spec={percent}&{_SPACE}.shared.plain={100 - percent}"
    return f"curl -X POST 'http://127.0.0.1:9901/runtime_modify?{shares}'"


def render(policy: Policy, pools: Pools) -> str:
    """Return the configuration."""
    comment = "".join(f"#   {line}\n" for line in policy.describe())
    filters = [*_read_bodies(policy), _filter("router", "router.v3.Router", {})]
    values = {"filters": filters, "routes": list(_route(policy, pools)), "clusters": list(_make_clusters(pools))}
    return f"# Requests for the plain pool:\n{comment}" + dump_yaml(fill_part("envoy", None, values, of=_TEMPLATE))


def _place(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _make_clusters(pools: Pools) -> Iterator[dict[str, Any]]:
    """Yield each pool with the other one behind it, and the plain one alone."""
    orders = {"spec": (pools.spec, pools.plain), "plain": (pools.plain, pools.spec), "plain_only": (pools.plain,)}
    for name, addresses in orders.items():
        endpoints = [
            {"priority": priority, "lb_endpoints": [{"endpoint": {"address": _place(address)}}]}
            for priority, address in enumerate(addresses)
        ]
        yield fill_part("envoy_cluster", None, {"cluster": name, "endpoints": endpoints}, of=_TEMPLATE)


def _filter(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{_TYPES}.filters.http.{kind}", **config}}


def _list_paths(policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield the fields whose values routes look at, by the keys that lead to them."""
    if policy.structured:
        yield ("response_format", "type")
    if policy.longest_answer is not None:
        yield from ((field,) for field in _ANSWERS)
    if policy.models:
        yield ("model",)


def _read_bodies(policy: Policy) -> Iterator[dict[str, Any]]:
    rules = [
        {"selectors": [{"key": key} for key in path], "on_present": {"metadata_namespace": _SPACE, "key": path[0]}}
        for path in _list_paths(policy)
    ]
    if rules:
        config = {"request_rules": {"rules": rules}}
        yield _filter("json_to_metadata", "json_to_metadata.v3.JsonToMetadata", config)
    if policy.fields:
        fields = ", ".join(f'"{field}"' for field in policy.fields)
        script = _SCRIPT.replace("FIELDS", fields).replace("HEADER", POOL_HEADER)
        yield _filter("lua", "lua.v3.Lua", {"default_source_code": {"inline_string": script}})


def _route(policy: Policy, pools: Pools) -> Iterator[dict[str, Any]]:
    for name, match in _list_plain(policy):
        yield {"name": name, "match": {"prefix": "/", **match}, "route": {"cluster": "plain_only", "timeout": "0s"}}
    weights = {"spec_weight": pools.share, "plain_weight": 100 - pools.share}
    yield fill_part("envoy_shared_route", None, weights, of=_TEMPLATE)


def _list_plain(policy: Policy) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the match of each class of requests for the plain pool."""
    yield "asked-for", {"headers": [{"name": POOL_HEADER, "string_match": {"exact": "plain"}}]}
    if policy.longest_body is not None:
        beyond = {"start": policy.longest_body + 1, "end": _MANY}
        yield "long", {"headers": [{"name": "content-length", "range_match": beyond}]}
        post = {"name": ":method", "string_match": {"exact": "POST"}}
        # How long it is, it does not say.
        yield "unknown-length", {"headers": [post, {"name": "content-length", "present_match": False}]}
    if policy.longest_answer is not None:
        long = {"double_match": {"range": {"start": policy.longest_answer + 1, "end": _MANY}}}
        yield from ((field, {"dynamic_metadata": [_see(field, long)]}) for field in _ANSWERS)
    if policy.structured:
        types = {"string_match": {"safe_regex": {"regex": "json_.*"}}}
        yield "structured", {"dynamic_metadata": [_see("response_format", types)]}
    if policy.models:
        known = _see("model", {"string_match": {"safe_regex": {"regex": "|".join(map(re.escape, policy.models))}}})
        yield "adapter", {"dynamic_metadata": [_see("model", {"present_match": True}), {**known, "invert": True}]}


def _see(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"filter": _SPACE, "path": [{"key": key}], "value": value}
