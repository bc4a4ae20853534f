"""Keeps a guard's knowledge in files that survive its end, and the lease by which one guard acts at a time."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from draftwise.core import StorageError, cause_of
from draftwise.core.action import Action, Step
from draftwise.guarding.service_reading import ReplicaSample
from draftwise.knowledge.messages import refusal, text_of, unreadable
from draftwise.machine.folders import cache_folder
from draftwise.machine.whole_files import open_lock, write_whole
from draftwise.runs.row_files import cut_unfinished
from draftwise.watching.drift import ROW_S, Drift, DriftModel, DriftRow, DriftSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """A replica out of the traffic, until it is shown to pay again."""

    step: Step
    """`shift` or `drain`; `trickle` while it gets a twentieth of the traffic as a trial."""
    since_s: float
    """Time of that step, in seconds since the epoch."""
    out_since_s: float
    """Time when it was taken out."""
    cause: str
    """Reason for taking it out."""
    means: str = ""
    """The executor, as named on the command line."""
    is_confirmed: bool = False
    """Whether the step is confirmed. The entry is on disk before the step begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that a decision needs in addition to the current reading."""

    recent: Mapping[str, tuple[ReplicaSample, ...]] = field(default_factory=dict)
    """Samples by replica since the last change of its traffic. Lost when the guard restarts."""
    stands: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Since when, and in how many windows, a replica's requests stand still while another generates, likewise."""
    low_since_s: Mapping[str, float] = field(default_factory=dict)
    """Time since which a replica has been below break-even, by replica."""
    latches: Mapping[str, Latch] = field(default_factory=dict)
    last_step_s: float | None = None
    """Time of the last step of any kind."""
    proposed: Mapping[str, float] = field(default_factory=dict)
    """Time of the last proposal, by step and replicas."""
    rolled_back_s: float | None = None
    """Time when a rollback was last written."""
    hands_off: frozenset[str] = frozenset()
    """Replicas that another party put back into the traffic. The guard skips them until that is acknowledged."""
    learn_from_s: float = 0.0
    """Time of the last acknowledged change. Earlier rows belong to a different service."""
    drift_model: DriftModel | None = None
    drift: Drift = field(default_factory=Drift)

    def to_dict(self) -> dict[str, Any]:
        """Return the persistent part as JSON."""
        return {
            "latches": {replica: asdict(latch) for replica, latch in self.latches.items()},
            "low_since_s": dict(self.low_since_s),
            "last_step_s": self.last_step_s,
            "proposed": dict(self.proposed),
            "rolled_back_s": self.rolled_back_s,
            "hands_off": sorted(self.hands_off),
            "learn_from_s": self.learn_from_s,
            "drift_model": None if self.drift_model is None else self.drift_model.to_dict(),
            "drift": {
                "sums": {str(form): each for form, each in self.drift.sums.items()},
                "alarm_s": self.drift.alarm_s,
            },
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> State:
        """Restore a state from `to_dict`.

        Raises:
            ValueError, LookupError, TypeError: `given` is not such a state.
        """
        known = {each.name for each in fields(cls)} - {"recent", "stands"}
        if odd := given.keys() ^ known:
            raise ValueError(f"these keys are missing or unknown: {', '.join(sorted(odd))}")
        model, drift = given["drift_model"], given["drift"]
        parts = {
            "latches": {name: Latch(**{**each, "step": Step(each["step"])}) for name, each in given["latches"].items()},
            "hands_off": frozenset(given["hands_off"]),
            "drift_model": None if model is None else DriftModel.from_dict(model),
            "drift": Drift(
                sums={DriftSum(form): each for form, each in drift["sums"].items()}, alarm_s=drift["alarm_s"]
            ),
        }
        return cls(**{**given, **parts})

    def mark(self, replicas: Iterable[str], means: str, *, is_confirmed: bool) -> State:
        """Return the state with a step on replicas assigned to an executor, confirmed or not."""
        marked = {
            name: replace(self.latches[name], means=means, is_confirmed=is_confirmed)
            for name in replicas if name in self.latches
        }  # fmt: skip
        return replace(self, latches={**self.latches, **marked})

    def without(self, replicas: tuple[str, ...]) -> State:
        """Return the state with replicas back in the traffic, judged afresh."""
        return replace(
            self,
            latches={name: each for name, each in self.latches.items() if name not in replicas},
            recent={name: each for name, each in self.recent.items() if name not in replicas},
            stands={name: each for name, each in self.stands.items() if name not in replicas},
            low_since_s={name: each for name, each in self.low_since_s.items() if name not in replicas},
        )

    def acknowledge(self, now_s: float) -> State:
        """Return the state after an operator acknowledged a change. Learning restarts now."""
        return replace(self, hands_off=frozenset(), learn_from_s=now_s, drift_model=None, drift=Drift(), proposed={})


KEPT_DAYS = 60
KEPT_ROWS = KEPT_DAYS * 86_400 // ROW_S
_FORMAT = "draftwise-guard"
_VERSION = 1
_SLACK_ROWS = 2_000
"""Rows by which a file may grow too long before it is written anew."""


class Store:
    """The files that a guard keeps next to the one that --state names.

    Args:
        path: file of the state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = path.with_suffix(".steps.jsonl")
        self.patch = path.with_suffix(".roll-back.patch")
        self._rows = path.with_suffix(".rows.csv")
        self._num_rows: int | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the state against other processes."""
        with locked(self.path), _tell_of_disk(self.path):
            yield

    def read(self) -> State:
        """Return the state, or a new one if there is no file.

        Raises:
            UnreadableSource: the file is not a guard's state.
        """
        try:
            given = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(given, dict) or (given.get("format"), given.get("version")) != (_FORMAT, _VERSION):
                raise ValueError(f"its format is not {_FORMAT!r} of version {_VERSION}")
            return State.from_dict(given["state"])
        except FileNotFoundError:
            return State()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise unreadable("not-a-guard-state", path=self.path, cause=cause_of(error)) from None

    def write(self, state: State) -> None:
        """Write the state atomically."""
        row = {"format": _FORMAT, "version": _VERSION, "state": state.to_dict()}
        write_whole(self.path, json.dumps(row, indent=1) + "\n")

    def record(self, action: Action, *, at_s: float, outcome: str, by: str = "") -> None:
        """Append a step with its evidence.

        Args:
            action: step carried out or proposed.
            at_s: time in seconds since the epoch.
            outcome: `proposed`, `begun`, `done`, `failed: why` or `undone`.
            by: the executor, as named on the command line.
        """
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
        _append(self.steps, json.dumps({"at": at, "outcome": outcome, "by": by, **asdict(action)}) + "\n")

    def read_rows(self) -> Sequence[DriftRow]:
        """Return the rows of the last 60 days. Skips damaged lines."""
        if not self._rows.exists():
            return []
        with self._rows.open(encoding="utf-8", errors="replace") as file:
            rows = [row for line in file if line.endswith("\n") and (row := _parse_row(line)) is not None]
        return rows[-KEPT_ROWS:]

    def add_older(self, recorded: Iterable[DriftRow]) -> None:
        """Merge rows from another source. Existing rows take precedence."""
        rows = {row.began_s: row for row in (*recorded, *self.read_rows())}
        kept = [rows[began_s] for began_s in sorted(rows)][-KEPT_ROWS:]
        write_whole(self._rows, "".join(map(_format_row, kept)))
        self._num_rows = len(kept)

    def add_row(self, row: DriftRow) -> None:
        """Append a row. From time to time, cuts the file to the last 60 days."""
        if self._num_rows is None:
            self._num_rows = len(self.read_rows())
        _append(self._rows, _format_row(row))
        self._num_rows += 1
        if self._num_rows > KEPT_ROWS + _SLACK_ROWS:
            kept = self.read_rows()
            write_whole(self._rows, "".join(map(_format_row, kept)))
            self._num_rows = len(kept)


def _format_row(row: DriftRow) -> str:
    return f"{row.began_s},{row.drafts},{row.accepted},{int(row.usable)}\n"


def _parse_row(line: str) -> DriftRow | None:
    try:
        began_s, drafts, accepted, usable = map(int, line.split(","))
    except ValueError:
        return None
    return DriftRow(began_s=began_s, drafts=drafts, accepted=accepted, usable=bool(usable))


def _append(path: Path, line: str) -> None:
    """Append a line so that it is there after a crash; one that a crash cut off before is cut away."""
    cut_unfinished(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _tell_of_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(text_of("guard-state-not-kept", path=path, cause=cause_of(error))) from None


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
