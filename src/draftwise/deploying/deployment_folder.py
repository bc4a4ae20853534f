"""Writes a deployment's folder completely or not at all, with checksums and a record of its purpose."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

from draftwise.core import Finding, StorageError, cause_of
from draftwise.deploying.twin import Pool
from draftwise.knowledge.messages import fault, refusal, unreadable
from draftwise.machine.whole_files import replacing

CANARY = "canary.yaml"
"""File of a change to the running twin that serves a share of its requests with speculation."""
MODELCAR, STAGE = "Dockerfile.modelcar", "stage-job.yaml"
"""The image that holds the weights, and the Job that puts them onto a claim."""
CHECKSUMS, SEAL = "CHECKSUMS", "CHECKSUMS.sum"
"""Sums in the format of sha256sum, and the sum of that list: `sha256sum -c --strict` of both proves the folder."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """A file that one step of the rollout needs, in addition to those of the twins."""

    text: str
    about: str
    """Description of the file."""
    does: str
    """Heading that describes its command."""
    command: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Files by their path inside the folder."""

    files: Mapping[str, str]
    limits: tuple[Finding, ...] = ()
    """What the platform does not support."""

    def write(self, out: Path) -> None:
        """Write all files to a new folder.

        Raises:
            InvalidSetup: the folder exists.
            StorageError: the folder cannot be written; nothing is left behind.
        """
        if out.exists():
            raise refusal("folder-exists", out=out)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        except OSError as error:
            raise StorageError(f"{out} cannot be written ({cause_of(error)}). Choose another --out.") from None
        try:
            for name, text in (*self.files.items(), *write_proof(self._sum_up()).items()):
                path = scratch / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            scratch.chmod(0o755)
            scratch.rename(out)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise StorageError(
                f"{out} cannot be written ({cause_of(error)}). Make room or choose another --out."
            ) from None

    def _sum_up(self) -> Mapping[str, str]:
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()}


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text atomically; the file keeps its permissions.

    Raises:
        StorageError: it cannot be written; the file is unchanged.
    """
    path = path.resolve()
    try:
        with replacing(path, keeps_mode=True) as part:
            part.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({cause_of(error)}). It is unchanged. Make room and try again."
        ) from None


def prove(folder: Path, *, needed: Iterable[str] = ()) -> Iterator[Finding]:
    """Yield each difference between a folder and what was written; reads nothing outside it.

    Raises:
        UnreadableSource: the folder has no readable checksums.
    """
    lines = _read_lines(folder)
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        if found is None or not _stays_inside(found[2]) or found[2] in sums:
            yield fault("sums-changed", folder=folder, what=f"line {number} is not the checksum of one file")
        else:
            sums[found[2]] = found[1]
    yield from _prove_list(folder)
    there = dict(_list_entries(folder))
    for name in {*sums, *needed}:
        if name not in there:
            yield _finding("file-gone", f"{folder / name} is missing.", folder / name)
        elif name not in sums:
            yield _finding("file-added", f"{folder / name} is not in the list of checksums.", folder / name)
    for name, entry in there.items():
        path = folder / name
        if not (entry.is_file(follow_symlinks=False)):
            yield _finding("file-added", f"{path} is a link or a special file, so its content is unproven.", path)
        elif name in sums:
            yield from _prove_file(path, sums[name])
        elif name not in (CHECKSUMS, SEAL, *needed):
            yield _finding("file-added", f"{path} was added after the folder was written.", path)


def _prove_list(folder: Path) -> Iterator[Finding]:
    """Yield that the list of sums is not the one that was written."""
    path = folder / SEAL
    try:
        written = b"" if path.is_symlink() else path.read_bytes()
        expected = write_sums({CHECKSUMS: digest(folder / CHECKSUMS)}).encode()
    except OSError:
        written, expected = b"", b"?"
    if written != expected:
        yield fault("sums-changed", folder=folder, what=f"it does not match {SEAL}")


def _prove_file(path: Path, value: str) -> Iterator[Finding]:
    try:
        is_same = digest(path) == value
    except OSError as error:
        yield _finding("file-changed", f"{path} cannot be read ({cause_of(error)}).", path)
    else:
        if not is_same:
            yield _finding("file-changed", f"{path} has changed since the folder was written.", path)


def _list_entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all that a folder holds but for directories, by the path inside it. Links are not followed."""
    left = [folder]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
                else:
                    yield Path(entry.path).relative_to(folder).as_posix(), entry


def _stays_inside(name: str) -> bool:
    parts = name.split("/")
    return not name.startswith("/") and not {"", ".", ".."} & set(parts) and "\\" not in name


def digest(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_proof(sums: Mapping[str, str]) -> dict[str, str]:
    """Return the list of checksums and the file that proves it, by name."""
    listed = write_sums(sums)
    return {CHECKSUMS: listed, SEAL: write_sums({CHECKSUMS: hashlib.sha256(listed.encode()).hexdigest()})}


def write_sums(sums: Mapping[str, str]) -> str:
    """Return the list of checksums for files with these SHA-256 sums."""
    return "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))


def _read_lines(folder: Path) -> list[str]:
    path = folder / CHECKSUMS
    try:
        if path.is_symlink():
            raise ValueError("a link")
        text = path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise unreadable("not-a-deployment", folder=folder, checksums=CHECKSUMS, error=cause_of(error)) from None
    return text.removesuffix("\n").split("\n")


def _finding(code: str, message: str, path: Path) -> Finding:
    return Finding.error(code, message, where=str(path))


DEPLOYMENT = "deployment.json"
_NAME, _FILE = re.compile(r"[a-z][-a-z0-9]{0,62}"), re.compile(r"(?:spec|plain|rollback)\.\w+")
SETUP, MEMO = "setup.json", "MEMO.md"
BASELINE = "baseline.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFile:
    """One of the twins."""

    file: str
    """Path inside the folder."""
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
    """Startup deadline in seconds."""
    leaves: str
    """What remains after the speculative service is removed, as a sentence."""
    sides: Mapping[Pool, TwinFile]
    back: TwinFile
    """The service's next revision, without speculation and under its name."""

    @property
    def files(self) -> tuple[tuple[Pool, TwinFile], ...]:
        """(pool, file) of every file that starts a server."""
        return (*self.sides.items(), ("plain", self.back))


def write_record(record: Record) -> str:
    """Return a record as JSON."""
    sides = {pool: asdict(side) for pool, side in record.sides.items()}
    given = {"format": 1, "to": record.to, "platform_release": record.platform_release, "startup_s": record.startup_s}
    given["leaves"] = record.leaves
    return json.dumps(given | sides | {"back": asdict(record.back)}, indent=1) + "\n"


def read_record(folder: Path) -> Record:
    """Return the record of a folder that `deploy` wrote.

    Raises:
        UnreadableSource: the folder holds no deployment.
    """
    try:
        given = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
        sides: dict[Pool, TwinFile] = {"spec": TwinFile(**given["spec"]), "plain": TwinFile(**given["plain"])}
        back = TwinFile(**given["back"])
        if not all(_NAME.fullmatch(each.name) and _FILE.fullmatch(each.file) for each in (*sides.values(), back)):
            raise ValueError("a name or file that a deployment cannot have")
        return Record(
            to=given["to"],
            platform_release=given["platform_release"],
            startup_s=int(given["startup_s"]),
            leaves=str(given["leaves"]),
            sides=sides,
            back=back,
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        cause = cause_of(error) if isinstance(error, OSError) else "it is damaged"
        raise unreadable("not-a-deployment", case="record", folder=folder, deployment=DEPLOYMENT, error=cause) from None
