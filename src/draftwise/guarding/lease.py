"""Lets one guard at a time act on a service: a lease in a file that expires unless its holder renews it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from draftwise.core import StorageError, cause_of
from draftwise.knowledge.messages import refusal
from draftwise.machine.folders import cache_folder
from draftwise.machine.whole_files import open_lock, write_whole

_LEAST_S = 300.0
"""Minimum length of a lease in seconds: longer than a look with probes."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against other processes. The lock ends with its process, even on a crash.

    Raises:
        StorageError: the lock file cannot be created.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        while not _is_same(descriptor := open_lock(lock), lock):
            os.close(descriptor)  # whoever had it removed it
    except ImportError:
        raise StorageError("`guard` runs on Linux and macOS only. On Windows, run it in WSL.") from None
    except OSError as error:
        message = f"{path} cannot be locked ({cause_of(error)})."
        raise StorageError(f"{message} Choose a --state on a disk of a POSIX system.") from None
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether a file that is open is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    token: str
    host: str
    pid: int
    until_s: float


class Lease:
    """The right to act, for a limited time.

    Args:
        path: file of the lease.
        about: subject of the lease, for messages.
        length_s: seconds until it expires; several times the renewal interval.
    """

    def __init__(self, path: Path, *, about: str, length_s: float) -> None:
        self._path, self._about, self._length_s = path, about, length_s
        self._token = secrets.token_hex(8)

    def renew(self, now_s: float) -> None:
        """Take or renew the lease. A lease whose process on this host is gone is free at once.

        Raises:
            InvalidSetup: another guard holds it.
            StorageError: the file cannot be written.
        """
        with locked(self._path):
            holder = self._read()
            if holder is not None and holder.token != self._token and _holds(holder, now_s):
                left_s = max(holder.until_s - now_s, 0)
                raise refusal("guarded-already", pid=holder.pid, host=holder.host, about=self._about, left_s=left_s)
            mine = _Holder(
                token=self._token, host=socket.gethostname(), pid=os.getpid(), until_s=now_s + self._length_s
            )
            try:
                write_whole(self._path, json.dumps(asdict(mine)) + "\n")
            except OSError as error:
                raise StorageError(f"{self._path} cannot be written ({cause_of(error)}). Make room.") from None

    def give_back(self) -> None:
        """Release the lease, if still held."""
        with suppress(StorageError, OSError), locked(self._path):
            holder = self._read()
            if holder is not None and holder.token == self._token:
                self._path.unlink()

    def _read(self) -> _Holder | None:
        """Return who had it last; what cannot be read was no lease, as files are written whole."""
        try:
            return _Holder(**json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def open_leases(state: Path, replicas: Sequence[str], *, every_s: float) -> tuple[Lease, ...]:
    """Return a guard's leases: one for its state, and one per replica, shared by all guards of this machine.

    Args:
        state: file of the state.
        replicas: URLs of the speculating replicas.
        every_s: seconds between renewals.
    """
    length_s = max(_LEAST_S, 3 * every_s)
    folder = cache_folder() / "guarded"
    of_replicas = (
        Lease(folder / hashlib.sha256(url.encode()).hexdigest()[:16], about=url, length_s=length_s) for url in replicas
    )
    return Lease(state.with_suffix(".lease"), about=f"the service of {state}", length_s=length_s), *of_replicas


def _holds(holder: _Holder, now_s: float) -> bool:
    return now_s < holder.until_s and not (holder.host == socket.gethostname() and _is_gone(holder.pid))


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
