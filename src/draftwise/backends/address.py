"""Checks a server's address: whether it is valid, and whether a program on this machine answers there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from draftwise.core import InvalidSetup

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""
_SERVERS = frozenset({"vllm", "draftwise", "sglang", "llama-server", "text-generation-launcher", "trtllm-serve"})
"""Programs and Python packages that compute their answers themselves."""


def check_url(url: str, *, where: str = "--url") -> None:
    """Raise InvalidSetup for text that cannot be a server's address.

    Raises:
        InvalidSetup: `url` is not an http(s) URL.
    """
    if not _is_http_url(url):
        is_address = (
            "://" not in url and url.partition("/")[0].rpartition(":")[2].isdigit() and _is_http_url(f"http://{url}")
        )
        fix = f"Write http://{url}." if is_address else "Example: http://127.0.0.1:8000."
        raise InvalidSetup.because("not-a-url", f"{where} {url!r} is not an http(s) URL.", where=where, fix=fix)


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False


def is_served_here(url: str) -> bool:
    """Return whether an inference server on this machine is seen to answer at a URL.

    False if that cannot be determined: outside Linux, for another user's process, or for a program not known to compute
    answers itself. `ssh -L`, `kubectl port-forward`, container proxies and gateways listen here, too.
    """
    parts = urlsplit(url)
    if sys.platform != "linux" or parts.hostname not in _LOOPBACK:
        return False
    sockets = set(_list_listening(parts.port or 80))
    return bool(sockets) and any(_is_server_command(words) for words in _list_commands(sockets))


def _list_listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen at a port (proc_pid_net(5))."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _list_commands(inodes: set[str]) -> Iterator[list[str]]:
    """Yield the command line of each process that holds one of the sockets and may be looked at."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(each.readlink()) in wanted for each in (process / "fd").iterdir()):
                yield (process / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _is_server_command(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a server: by its program, or the script or module that Python runs.

    Only these words count: `kubectl port-forward svc/vllm` names one as well.
    """
    program, *rest = words
    if Path(program).name.startswith("python"):
        at = rest.index("-m") + 1 if "-m" in rest else 0
        program = rest[at] if at < len(rest) else ""
    # vLLM names its processes itself: `VLLM::APIServer`.
    name = Path(program).name.partition("::")[0].lower()
    return name.partition(".")[0] in _SERVERS or program.partition(".")[0] in _SERVERS
