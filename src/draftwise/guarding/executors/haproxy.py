"""Carries out steps on the servers of a running HAProxy, through its runtime API (HAProxy 2.4 and later)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from draftwise.core import BackendError
from draftwise.core.action import OUT, Action, Step

__all__ = ["HAProxy", "Server", "parse_servers"]

_TIMEOUT_S = 5.0
_MAINTENANCE = 0x01 | 0x02 | 0x20 | 0x40
"""Bits of srv_admin_state (HAProxy's management guide, `show servers state`). 0x04 only says that the configuration
disables the server, and stays once it has been enabled."""
_DRAINS = 0x08 | 0x10
_TRICKLE_PERCENT = 5
_LEAST_WEIGHT = 100 // _TRICKLE_PERCENT
"""Of the configuration, so that a twentieth of it is a weight at all: weights are whole numbers."""
_ORDERS = {
    Step.SHIFT: ("weight 0",),
    Step.DRAIN: ("state drain",),
    Step.TRICKLE: (f"weight {_TRICKLE_PERCENT}%", "state ready"),
    Step.RELEASE: ("weight 100%", "state ready"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of a backend, as `show servers state` tells it."""

    backend: str
    name: str
    address: str
    port: int
    runs: bool
    admin_state: int
    weight: int
    configured_weight: int

    @property
    def is_out(self) -> bool:
        """Whether it was taken out of the traffic: drained, in maintenance or without weight."""
        return bool(self.admin_state & (_DRAINS | _MAINTENANCE)) or self.weight == 0

    @property
    def in_maintenance(self) -> bool:
        """Whether somebody is working on it."""
        return bool(self.admin_state & _MAINTENANCE)

    def __str__(self) -> str:
        return f"{self.backend}/{self.name}"


def parse_servers(text: str) -> Iterator[Server]:
    """Yield the servers in the answer to `show servers state`; later versions have more columns, in any order.

    Raises:
        BackendError: it is no such answer.
    """
    rows = [line.split() for line in text.splitlines()]
    columns = next((row[1:] for row in rows if row[:1] == ["#"]), None)
    if columns is None:
        raise BackendError(f"HAProxy answers {text.strip()[:80]!r} to `show servers state`. Is this its socket?")
    for row in rows[rows.index(["#", *columns]) + 1 :]:
        if len(row) >= len(columns):
            cells = dict(zip(columns, row, strict=False))
            yield Server(
                backend=cells["be_name"],
                name=cells["srv_name"],
                address=cells["srv_addr"],
                port=int(cells["srv_port"]),
                runs=cells["srv_op_state"] != "0",
                admin_state=int(cells["srv_admin_state"]),
                weight=int(cells["srv_uweight"]),
                configured_weight=int(cells["srv_iweight"]),
            )


class HAProxy:
    """Servers of an HAProxy by the addresses of replicas; each step is read back before it counts as done."""

    steps = frozenset(_ORDERS)

    def __init__(self, name: str, address: str) -> None:
        """Take the path of the runtime socket, or its host:port; it needs `level admin`."""
        self.name = name
        self._address = address

    def carry_out(self, action: Action) -> None:
        """Give the orders for each replica, and look whether they were followed.

        Raises:
            BackendError: HAProxy does not answer or does not obey, does not know a replica, would be left without a
                server in a backend, or somebody has a server in maintenance.
        """
        servers = self._read()
        chosen = [server for replica in action.replicas for server in _find_servers(servers, replica)]
        self._refuse_if_unsafe(action.step, chosen, servers)
        for server in chosen:
            for order in _ORDERS[action.step]:
                if said := self._say(f"set server {server} {order}").strip():
                    raise BackendError(f"HAProxy says {said!r} to `set server {server} {order}`.")
        goes_out = action.step in OUT
        names = {str(server) for server in chosen}
        if any(server.is_out is not goes_out for server in self._read() if str(server) in names):
            raise BackendError(f"HAProxy took the order to {action.step} {', '.join(sorted(names))} without effect.")

    def prove(self, replicas: Sequence[str]) -> None:
        """Look for every replica among the servers.

        Raises:
            BackendError: HAProxy does not answer, or does not know one.
        """
        servers = self._read()
        for replica in replicas:
            _find_servers(servers, replica)

    def is_out(self, replica: str) -> bool | None:
        """Return whether a replica is out of the traffic in every backend; None where HAProxy cannot tell."""
        try:
            return all(server.is_out for server in _find_servers(self._read(), replica))
        except BackendError:
            return None

    def _refuse_if_unsafe(self, step: Step, chosen: Sequence[Server], servers: Sequence[Server]) -> None:
        if busy := [str(server) for server in chosen if server.in_maintenance]:
            raise BackendError(f"{', '.join(busy)} is in maintenance by other hands: nothing was done to it.")
        if step is Step.TRICKLE and any(server.configured_weight < _LEAST_WEIGHT for server in chosen):
            raise BackendError(f"A twentieth of the traffic needs `weight {_LEAST_WEIGHT}` or more of every server.")
        if step in OUT:
            for backend in dict.fromkeys(server.backend for server in chosen):
                left = [each for each in servers if each.backend == backend and each not in chosen]
                if not any(each.runs and not each.is_out for each in left):
                    raise BackendError(f"Backend {backend} of HAProxy would be left without a server.")

    def _read(self) -> Sequence[Server]:
        return list(parse_servers(self._say("show servers state")))

    def _say(self, order: str) -> str:
        """Return the answer to one order: HAProxy closes the connection after it."""
        try:
            with _connect(self._address) as connection:
                connection.sendall(f"{order}\n".encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        except (OSError, ValueError) as error:
            raise BackendError(
                f"HAProxy's socket {self._address} does not answer ({error}). It needs `stats socket PATH level admin`."
            ) from None


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in address:
        return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_TIMEOUT_S)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _find_servers(servers: Sequence[Server], replica: str) -> Sequence[Server]:
    """Return the servers at a replica's address, in whichever backends."""
    url = urlsplit(replica)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        addresses = {each[4][0] for each in socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise BackendError(f"{replica} has no address ({error}).") from None
    found = [server for server in servers if server.port == port and server.address in addresses]
    if not found:
        raise BackendError(f"HAProxy has no server at {replica}: it has to reach it under the address used here.")
    return found
