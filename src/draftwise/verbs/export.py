"""`export`: writes a trained drafter in the format that a server needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, verb
from draftwise.version import tell_install


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A drafter, and the format to write it in."""

    drafter: str | PathLike[str]
    """Directory of the drafter."""
    _: KW_ONLY
    out: str | PathLike[str]
    """New directory."""
    target: str | PathLike[str]
    """Checkpoint of its target."""
    format: Literal["vllm", "speculators"] = "vllm"
    """vLLM's plain layout, or that of the speculators library."""
    num_speculative_tokens: Annotated[int, Range(1)] | None = None
    """Draft tokens per step; default: as trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(Result):
    """The checkpoint that was written."""

    VERB: ClassVar[str] = "export"
    out: str
    model: str
    """What to serve."""
    speculative_config: Mapping[str, Any]
    """How to serve it."""


@verb(ExportRequest)
def export(request: ExportRequest, _progress: Progress) -> ExportResult:
    """Write a drafter in a format that a server loads.

    MTP modules and their target become one checkpoint, which is where vLLM looks for them. EAGLE-3, P-EAGLE and DFlash
    drafters are converted between vLLM's plain layout and the speculators format. The result is loaded with the
    engine's own loader, which rejects incomplete drafters, before it is moved into place.
    """
    try:
        from draftwise.training.drafter_export import export_drafter
    except ImportError as error:
        raise refusal("engine-not-installed", name=error.name, install=tell_install("engine")) from None
    made = export_drafter(
        Path(request.drafter),
        Path(request.out),
        target=Path(request.target),
        layout=request.format,
        k=request.num_speculative_tokens,
    )
    return ExportResult(out=str(made.out), model=str(made.model), speculative_config=made.speculative_config)
