"""Configures HAProxy: routes requests by their bodies, without another program.

Fields are found as text: JSON escapes quotes inside strings, so a prompt cannot imitate a field.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.deploying.proxies.pool_policy import POOL_HEADER, Policy, Pools

_BUFFER = 4 << 20
"""Bytes of a request that HAProxy holds and looks at, once for each connection."""
_SEEN = 4_000_000
"""Bytes of a body that fit into the buffer together with the headers."""
_HELD = ("nx", "other", "refused", "timeout")
"""Answers of a name server after which an address is kept: health checks find out whether somebody answers there."""
_SOCKET = "/run/haproxy/admin.sock"


def set_share(percent: int, _service: str = "") -> str:
    """Return the command that changes the speculative pool's share of a running proxy's requests."""
    weights = {"spec": percent, "plain": 100 - percent}
    told = "; ".join(f"set server shared/{pool} weight {weight}" for pool, weight in weights.items())
    return f'echo "{told}" | socat stdio {_SOCKET}'


def render(policy: Policy, pools: Pools) -> str:
    """Return the configuration."""
    return "\n".join([*_begin(policy), *_route(policy), *_serve(pools), ""])


def _begin(policy: Policy) -> Iterator[str]:
    yield from ("# Requests for the plain pool:", *(f"#   {line}" for line in policy.describe()), "")
    yield from ("global", f"    stats socket {_SOCKET} mode 660 level admin", "    maxconn 1000")
    if policy.needs_body:
        yield f"    tune.bufsize {_BUFFER}"
    yield from ("", "defaults", "    mode http", "    option http-keep-alive", "    timeout http-request 30s")
    yield from ("    timeout connect 5s", "    timeout client 1h", "    timeout server 1h")
    # A request that reached no server is sent to another one.
    yield from ("    retries 2", "    option redispatch", "    retry-on conn-failure empty-response")
    # A twin whose name is gone is down, and no reason for the proxy not to start; it is back once the name is.
    yield from ("    default-server init-addr last,libc,none resolvers names", "", "resolvers names")
    yield from ("    parse-resolv-conf", *(f"    hold {each} 20d" for each in _HELD), "    hold valid 10s", "")


def _route(policy: Policy) -> Iterator[str]:
    yield from ("frontend llm", "    bind :8080")
    yield f"    acl plain_only req.hdr({POOL_HEADER}) -m str plain"
    if policy.needs_body:
        yield "    option http-buffer-request"
        yield f"    http-request wait-for-body time 10s at-least {_SEEN} if METH_POST"
        # What was not seen whole cannot be judged.
        yield f"    acl plain_only req.body_size gt {min(_SEEN, policy.longest_body or _SEEN)}"
    yield from map(_find, policy.fields)
    if policy.structured:
        yield "    acl plain_only req.body,json_query('$.response_format.type') -m str json_object json_schema"
    if policy.longest_answer is not None:
        for field in ("max_tokens", "max_completion_tokens"):
            yield f"    acl plain_only req.body,json_query('$.{field}','int') -m int gt {policy.longest_answer}"
    if policy.models:
        names = " ".join(f'"{name}"' for name in policy.models)
        yield f"    acl names_model req.body,json_query('$.model') -m str {names}"
        yield "    use_backend plain if METH_POST !names_model"
    yield from ("    use_backend plain if plain_only", "    default_backend shared", "")


def _find(field: str) -> str:
    """Return the line that finds a field whose value is not null."""
    return f"""    acl plain_only req.body -m reg '[^\\\\]"{field}"[[:space:]]*:[[:space:]]*[^n[:space:]]'"""


def _serve(pools: Pools) -> Iterator[str]:
    check = "check inter 2s fall 2 rise 1"
    health = ("    option httpchk GET /health", "    http-check expect status 200")
    yield "# Weights are the share of each pool; where one is down, the other takes all."
    yield from ("backend shared", "    balance roundrobin", *health)
    yield f"    server spec {pools.spec} {check} weight {pools.share}"
    yield f"    server plain {pools.plain} {check} weight {100 - pools.share}"
    # A weight of 0 holds even where the other pool is down; these do not have it.
    yield f"    server spec_behind {pools.spec} track shared/spec backup"
    yield f"    server plain_behind {pools.plain} track shared/plain backup"
    yield from ("", "backend plain", "    balance roundrobin", *health, f"    server plain {pools.plain} {check}")
