"""A systemd unit: vLLM installed on the host."""

from __future__ import annotations

from math import ceil

from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import PROGRAM, list_args

_MIB = 1 << 20


def _render(order: ServiceOrder) -> str:
    """Return the unit of a server.

    The unit runs what `/usr/bin/env` finds as `vllm`; only the comment on its first line names the release.
    """
    program = " ".join(["/usr/bin/env", *PROGRAM])
    lines = [
        f"# vLLM {order.setup.engine_version}; by draftwise",
        *(f"# {name}: {text}" for name, text in order.annotations.items()),
        "[Unit]",
        f"Description=vLLM {order.setup.engine_version}: {order.name} ({order.pool})",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        *(f"Environment={quote_word(f'{name}={value}')}" for name, value in order.setup.env.items()),
        "ExecStart=" + " \\\n  ".join([program, *(quote_word(word.replace("$", "$$")) for word in list_args(order))]),
        "Restart=on-failure",
        "RestartSec=10",
        f"TimeoutStartSec={order.startup_s}",
        f"MemoryMax={ceil(order.host.limit_bytes / _MIB)}M",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def quote_word(word: str) -> str:
    """Return a word quoted for systemd (systemd.syntax(7)); in commands, double each `$` first."""
    escaped = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


HOOKS = Hooks(render=_render)
