"""The folder of a deployment: written whole or not at all, with sums that prove it and a record of what it is for."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

from draftwise.core import Finding, Severity, StorageError
from draftwise.deploying.messages import refusal, unreadable
from draftwise.deploying.twin import Pool
from draftwise.machine.whole_files import replacing

__all__ = [
    "BASELINE",
    "CANARY",
    "CHECKSUMS",
    "DEPLOYMENT",
    "MODELCAR",
    "SETUP",
    "STAGE",
    "Folder",
    "Record",
    "StepFile",
    "TwinFile",
    "digest",
    "prove",
    "read_record",
    "replace_text",
    "write_record",
    "write_sums",
]

CANARY = "canary.yaml"
"""A change of the running twin that answers a share of its requests with speculation."""
MODELCAR, STAGE = "Dockerfile.modelcar", "stage-job.yaml"
"""The image that holds the weights, and the Job that puts them onto a claim."""
CHECKSUMS = "CHECKSUMS"
"""Sums in the format of sha256sum: `sha256sum -c CHECKSUMS` proves the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """A file that one step of the rollout needs, in addition to those of the twins."""

    text: str
    about: str
    """Description of the file."""
    does: str
    """Heading that says what the command does."""
    command: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Files by their path inside the folder."""

    files: Mapping[str, str]
    limits: tuple[Finding, ...] = ()
    """What the platform does not grant."""

    def write(self, out: Path) -> None:
        """Write all of it to a folder that is not there yet.

        Raises:
            InvalidSetup: something is there.
            StorageError: the folder cannot be written; nothing of it is left.
        """
        if out.exists():
            raise refusal("folder-exists", out=out)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        except OSError as error:
            raise StorageError(f"{out} cannot be written ({error.strerror}). Choose another --out.") from None
        try:
            for name, text in [*self.files.items(), (CHECKSUMS, self._sum_up())]:
                path = scratch / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            scratch.chmod(0o755)
            scratch.rename(out)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise StorageError(
                f"{out} cannot be written ({error.strerror}). Make room or choose another --out."
            ) from None

    def _sum_up(self) -> str:
        return write_sums({name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()})


def replace_text(path: Path, text: str) -> None:
    """Put a text in the place of a file's, at once; the file keeps its permissions.

    Raises:
        StorageError: it cannot be written; the file is what it was.
    """
    path = path.resolve()
    try:
        with replacing(path, keeps_mode=True) as part:
            part.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); it is what it was.") from None


def prove(folder: Path) -> Iterator[Finding]:
    """Yield each file that is not what was written.

    Raises:
        UnreadableSource: the folder has no readable sums.
    """
    sums = _read_sums(folder)
    for name, value in sums.items():
        path = folder / name
        if not path.is_file():
            yield _finding("file-gone", Severity.ERROR, f"{path} is not there any more.", path)
        elif digest(path) != value:
            yield _finding("file-changed", Severity.ERROR, f"{path} is not what was written.", path)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in sums and name != CHECKSUMS:
            yield _finding("file-added", Severity.WARNING, f"{path} was not written with the folder.", path)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(sums: Mapping[str, str]) -> str:
    """Return the text that proves files, by their names and SHA-256 sums."""
    return "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))


def _read_sums(folder: Path) -> Mapping[str, str]:
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        pairs = [line.split("  ", 1) for line in lines if line]
        return {name: value for value, name in pairs}
    except (OSError, ValueError) as error:
        raise unreadable("not-a-deployment", folder=folder, checksums=CHECKSUMS, error=type(error).__name__) from None


def _finding(code: str, severity: Severity, message: str, path: Path) -> Finding:
    return Finding(code=code, severity=severity, message=message, where=str(path))


DEPLOYMENT = "deployment.json"
SETUP = "setup.json"
BASELINE = "baseline.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFile:
    """One of the twins."""

    file: str
    """Inside the folder."""
    name: str
    """Name of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was rendered, and for which platform."""

    to: str
    """One of `plan.TARGETS`."""
    platform_release: str
    """Release of the project that defines the objects' kinds; empty for the newest that is known."""
    startup_s: int
    """How long a start may take."""
    leaves: str
    """What stays behind after the service with speculation was taken away, a sentence."""
    sides: Mapping[Pool, TwinFile]


def write_record(record: Record) -> str:
    """Return a record as JSON."""
    sides = {pool: asdict(side) for pool, side in record.sides.items()}
    given = {"format": 1, "to": record.to, "platform_release": record.platform_release, "startup_s": record.startup_s}
    given["leaves"] = record.leaves
    return json.dumps(given | sides, indent=1) + "\n"


def read_record(folder: Path) -> Record:
    """Return the record of a folder that `deploy` wrote.

    Raises:
        UnreadableSource: the folder holds no deployment.
    """
    try:
        given = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
        sides: dict[Pool, TwinFile] = {"spec": TwinFile(**given["spec"]), "plain": TwinFile(**given["plain"])}
        return Record(
            to=given["to"],
            platform_release=given["platform_release"],
            startup_s=int(given["startup_s"]),
            leaves=str(given["leaves"]),
            sides=sides,
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise unreadable(
            "not-a-deployment",
            case="record",
            folder=folder,
            deployment=DEPLOYMENT,
            error=type(error).__name__,
        ) from None
