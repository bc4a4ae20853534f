"""Carries out steps with the operator's executors: HAProxy's socket, a command, a patch for Git."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from draftwise.core import BackendError, cause_of
from draftwise.core.action import OUT, Action, Step
from draftwise.deploying.deployment_folder import Record, read_record
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole


class Executor(Protocol):
    """Carries out steps of a guard."""

    @property
    def name(self) -> str:
        """Its name on the command line, which lets the same executor undo its step."""

    @property
    def steps(self) -> frozenset[Step]:
        """Steps that it can carry out."""

    def prove(self, replicas: Sequence[str]) -> None:
        """Check in advance that steps can be carried out.

        Raises:
            BackendError: steps are not possible on these replicas.
        """

    def carry_out(self, action: Action) -> None:
        """Carry out a step. Repeating it changes nothing.

        Raises:
            BackendError: the step failed, or failed on some replicas.
        """

    def is_out(self, replica: str) -> bool | None:
        """Return whether a replica is out of the traffic; None if unknown."""


_COMMAND_S = 60.0
_LONGEST = 300


class CommandExecutor:
    """Runs a command for each replica, without a shell. It has 60 seconds; exit code 0 means success."""

    steps = frozenset({Step.SHIFT, Step.DRAIN, Step.TRICKLE, Step.RELEASE, Step.RESTART})

    def __init__(self, name: str, template: str) -> None:
        """Take a command in which {step} and {replica} stand for what is to be done and for a URL.

        Raises:
            InvalidSetup: it is no command, or does not say what and where.
        """
        self.name = name
        self._words = _split(template)

    def prove(self, replicas: Sequence[str]) -> None:
        """Do nothing: the command runs only when needed."""

    def carry_out(self, action: Action) -> None:
        """Run the command for each replica in turn.

        Raises:
            BackendError: the command failed. Later replicas are untouched.
        """
        for replica in action.replicas:
            filled = [word.replace("{step}", action.step).replace("{replica}", replica) for word in self._words]
            _run(filled)

    def is_out(self, replica: str) -> bool | None:  # noqa: ARG002
        """Return None: a command does not report this."""
        return None


def _split(template: str) -> Sequence[str]:
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise refusal("unusable-command", template=template, why=f"cannot be split into words ({error})") from None
    if not all(any(name in word for word in words) for name in ("{step}", "{replica}")):
        raise refusal("unusable-command", template=template, why="lacks the step or the replica")
    return words


def _run(words: Sequence[str]) -> None:
    shown = shlex.join(words)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"`{shown}` did not end within {_COMMAND_S:.0f} s. Check why it hangs.") from None
    except OSError as error:
        raise BackendError(f"`{shown}` cannot be run ({cause_of(error)}). Name an existing program.") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_LONGEST:]
        raise BackendError(f"`{shown}` failed with exit code {done.returncode}: {said or 'it said nothing'}.")


_TIMEOUT_S = 5.0
_MAINTENANCE = 0x01 | 0x02 | 0x20 | 0x40
"""Bits of srv_admin_state (HAProxy's management guide, `show servers state`). 0x04 only says that the configuration
disables the server, and stays once it has been enabled."""
_DRAINS = 0x08 | 0x10
_TRICKLE_PERCENT = 5
_LEAST_WEIGHT = 100 // _TRICKLE_PERCENT
"""Least configured weight of which a twentieth is still a weight: weights are whole numbers."""
_ORDERS = {
    Step.SHIFT: ("weight 0",),
    Step.DRAIN: ("state drain",),
    Step.TRICKLE: (f"weight {_TRICKLE_PERCENT}%", "state ready"),
    Step.RELEASE: ("weight 100%", "state ready"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HaproxyServer:
    """A server of a backend, from `show servers state`."""

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
        """Whether it is out of the traffic: drained, in maintenance or with weight 0."""
        return bool(self.admin_state & (_DRAINS | _MAINTENANCE)) or self.weight == 0

    @property
    def in_maintenance(self) -> bool:
        """Whether it is in maintenance."""
        return bool(self.admin_state & _MAINTENANCE)

    def __str__(self) -> str:
        return f"{self.backend}/{self.name}"


def parse_servers(text: str) -> Iterator[HaproxyServer]:
    """Yield the servers in the answer to `show servers state`, whatever the order and number of columns.

    Raises:
        BackendError: the text is not such an answer.
    """
    rows = [line.split() for line in text.splitlines()]
    columns = next((row[1:] for row in rows if row[:1] == ["#"]), None)
    if columns is None:
        raise BackendError(f"HAProxy answers {text.strip()[:80]!r} to `show servers state`. Is this its socket?")
    for row in rows[rows.index(["#", *columns]) + 1 :]:
        if len(row) >= len(columns):
            cells = dict(zip(columns, row, strict=False))
            yield HaproxyServer(
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
    """Controls the servers of an HAProxy by the replicas' addresses. A step counts as done once read back."""

    steps = frozenset(_ORDERS)

    def __init__(self, name: str, address: str) -> None:
        """Take the path of the runtime socket, or its host:port; it needs `level admin`."""
        self.name = name
        self._address = address

    def carry_out(self, action: Action) -> None:
        """Send the commands for each replica, and verify their effect.

        Raises:
            BackendError: HAProxy does not answer, a command has no effect, a replica is unknown, a backend would lose
                its last server, or a server is in maintenance.
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
            raise BackendError(
                f"HAProxy accepted the order to {action.step} {', '.join(sorted(names))}, but it had no effect."
            )

    def prove(self, replicas: Sequence[str]) -> None:
        """Find every replica among the servers.

        Raises:
            BackendError: HAProxy does not answer, or does not know a replica.
        """
        servers = self._read()
        for replica in replicas:
            _find_servers(servers, replica)

    def is_out(self, replica: str) -> bool | None:
        """Return whether a replica is out of the traffic in every backend; None if unknown."""
        try:
            return all(server.is_out for server in _find_servers(self._read(), replica))
        except BackendError:
            return None

    def _refuse_if_unsafe(self, step: Step, chosen: Sequence[HaproxyServer], servers: Sequence[HaproxyServer]) -> None:
        if busy := [str(server) for server in chosen if server.in_maintenance]:
            raise BackendError(f"Someone else put {', '.join(busy)} into maintenance, so the guard left it alone.")
        if step is Step.TRICKLE and any(server.configured_weight < _LEAST_WEIGHT for server in chosen):
            raise BackendError(
                f"A twentieth of the traffic is possible only if every server has `weight {_LEAST_WEIGHT}` or more."
            )
        if step in OUT:
            for backend in dict.fromkeys(server.backend for server in chosen):
                left = [each for each in servers if each.backend == backend and each not in chosen]
                if not any(each.runs and not each.is_out for each in left):
                    raise BackendError(f"This would leave backend {backend} of HAProxy without a server.")

    def _read(self) -> Sequence[HaproxyServer]:
        return list(parse_servers(self._say("show servers state")))

    def _say(self, order: str) -> str:
        """Return the answer to one order: HAProxy closes the connection after it."""
        try:
            with _connect(self._address) as connection:
                connection.sendall(f"{order}\n".encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        except (OSError, ValueError) as error:
            message = f"HAProxy's socket {self._address} does not answer ({cause_of(error)})."
            raise BackendError(f"{message} It needs `stats socket PATH level admin`.") from None


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


def _find_servers(servers: Sequence[HaproxyServer], replica: str) -> Sequence[HaproxyServer]:
    """Return the servers at a replica's address, in whichever backends."""
    url = urlsplit(replica)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        addresses = {each[4][0] for each in socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise BackendError(f"{replica} has no address ({cause_of(error)}).") from None
    found = [server for server in servers if server.port == port and server.address in addresses]
    if not found:
        raise BackendError(f"HAProxy has no server at {replica}. Use the same address for the replica in both.")
    return found


class Patch:
    """Writes a patch that removes speculation from the deployed file. Applies nothing."""

    steps = frozenset({Step.ROLL_BACK})

    def __init__(self, name: str, folder: Path, out: Path) -> None:
        """Take a folder that `draftwise deploy` wrote, and the file that the patch is written to.

        Raises:
            UnreadableSource: the folder holds no deployment.
        """
        self.name = name
        self._folder, self._out = folder, out
        self._record = read_record(folder)

    def prove(self, replicas: Sequence[str]) -> None:
        """Do nothing: a patch concerns the whole service."""

    def carry_out(self, action: Action) -> None:
        """Write the patch for `git apply`, with its reason on top.

        Raises:
            BackendError: a file cannot be read or written.
        """
        try:
            text = make_patch(self._folder, self._record)
            write_whole(self._out, f"{action.reason}\n\n{text}")
        except (OSError, ValueError) as error:
            raise BackendError(f"The patch {self._out} cannot be written ({cause_of(error)}).") from None

    def is_out(self, replica: str) -> bool | None:  # noqa: ARG002
        """Return None: whether a patch is applied is unknown."""
        return None


def make_patch(folder: Path, record: Record) -> str:
    """Return the patch that removes speculation from the deployed file, with paths from the repository's root."""
    spec, back = folder / record.sides["spec"].file, folder / record.back.file
    before, after = (path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (spec, back))
    path = spec.resolve().relative_to(_find_root(folder.resolve())).as_posix()
    return "".join(unified_diff(before, after, f"a/{path}", f"b/{path}"))


def _find_root(folder: Path) -> Path:
    """Return the working tree that a folder lies in; the folder itself where it is in none."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def parse_executor(text: str, *, patch_file: Path) -> Executor:
    """Parse a value of `--act`.

    Args:
        text: `haproxy=SOCKET`, `command=WORDS` or `patch=DIR`.
        patch_file: file for the patch.

    Raises:
        InvalidSetup: the text has another form, or names no existing deployment or command.
    """
    kind, _, given = text.partition("=")
    if kind == "haproxy" and given:
        return HAProxy(text, given)
    if kind == "command" and given:
        return CommandExecutor(text, given)
    if kind == "patch" and given:
        return Patch(text, Path(given), patch_file)
    raise refusal("unknown-executor", text=text)
