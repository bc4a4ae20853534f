"""`bundle`: packs a setup's weights and their dependencies in one folder, for machines without a way to the hub."""

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
    """Folder of `deploy`, or a setup.json; with `verify` a bundle."""
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
    """Image to be made of the weights."""
    claim: str = "models"
    """Volume claim to be filled with the weights."""
    wheels: Sequence[str | PathLike[str]] = ()
    """Packages that the method needs and the image lacks."""
    mirror: str = ""
    """Where models come from there: a URL, or `modelscope`; default: from nowhere, offline."""


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
        """1 if something is wrong with a bundle that was verified."""
        return int(self.folder is not None and self.is_wrong)

    @property
    def is_wrong(self) -> bool:
        """Whether a finding is an error."""
        return any(each.severity is Severity.ERROR for each in self.findings)


@verb(BundleRequest)
def bundle(request: BundleRequest, progress: Progress) -> BundleResult:
    """Put the weights of a setup into one folder with everything a machine without a hub needs to serve them.

    Checkpoints are inspected first: missing shards or tensors, a missing tokenizer, pointers that Git left, links that
    lead elsewhere. An interrupted call continues where it stopped when it is repeated; the folder appears when it is
    whole. With `verify`, every file of a bundle is checked by its sum, and its checkpoints are inspected.
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
