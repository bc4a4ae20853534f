"""`bundle`: packs a setup's weights and their dependencies in one folder, for machines that cannot reach the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar

from draftwise.core import Finding, Severity
from draftwise.core.documents import json_form
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.deploying.verify.manifest_files import read_setup
from draftwise.verbs.verb import Result, refuse, verb


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """A setup whose weights go into a folder, or a bundle to verify."""

    setup: str | PathLike[str]
    """Folder that `deploy` wrote, or a setup.json; with `verify`, the bundle."""
    _: KW_ONLY
    out: str | PathLike[str] | None = None
    """New folder for the bundle."""
    verify: bool = False
    """Whether to verify the bundle instead."""
    sources: Mapping[str, str | PathLike[str]] = field(default_factory=dict)
    """Directories of checkpoints by name; default: a directory of that name, else the hub's cache."""
    image: str = ""
    """Server image with its digest; default: vLLM's own, by its tag."""
    modelcar: str = "models:1"
    """Name of the image to build from the weights."""
    claim: str = "models"
    """Name of the volume claim to fill with the weights."""
    wheels: Sequence[str | PathLike[str]] = ()
    """Wheels of packages that the method needs and the image lacks."""
    mirror: str = ""
    """Source of models on the other machine: a URL or `modelscope`; default: none, offline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleResult(Result):
    """The bundle that was written or verified."""

    VERB: ClassVar[str] = "bundle"
    out: Path | None = field(default=None, metadata=json_form(omit_empty=True))
    """Folder that was written."""
    folder: Path | None = field(default=None, metadata=json_form(omit_empty=True))
    """Folder that was verified."""
    copied_bytes: int | None = field(default=None, metadata=json_form(omit_empty=True))
    """Bytes of weights that were copied."""
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """1 if the verified bundle has an error."""
        return int(self.folder is not None and self.is_wrong)

    @property
    def is_wrong(self) -> bool:
        """Whether a finding is an error."""
        return any(each.severity is Severity.ERROR for each in self.findings)


@verb(BundleRequest)
def bundle(request: BundleRequest, progress: Progress) -> BundleResult:
    """Put the weights of a setup into one folder with everything a machine without a hub needs to serve them.

    Inspects the checkpoints first, for missing shards or tensors, a missing tokenizer, Git LFS pointers, and links that
    leave the checkpoint. Repeat an interrupted call to continue it; the folder appears once it is complete. With
    `verify`, checks every file of a bundle by its checksum, and inspects its checkpoints.
    """
    from draftwise.deploying.weights_bundle import BundleOptions, pack, verify_bundle

    if request.verify:
        folder = Path(request.setup)
        return BundleResult(folder=folder, findings=tuple(verify_bundle(folder)))
    if request.out is None:
        refuse("Name the new folder with --out.")
    setup = Path(request.setup)
    wanted = copy_fields(BundleOptions, request, wheels=tuple(map(Path, request.wheels)))
    copied = 0

    def count(size: int) -> None:
        nonlocal copied
        copied += size
        progress.step(copied)

    found = read_setup(setup)
    sources = {name: Path(path) for name, path in request.sources.items()}
    findings = pack(found, sources, Path(request.out), wanted, told=count)
    return BundleResult(out=Path(request.out), copied_bytes=copied, findings=tuple(findings))
