"""`explain`: a finding's code, or a key, method or flag of vLLM with its history over releases and source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.knowledge.vllm import Span, releases
from draftwise.plan.explanations import Explanation
from draftwise.plan.explanations import explain as look_up
from draftwise.verbs.verb import Result, verb

__all__ = ["ExplainRequest", "ExplainResult", "Explanation", "Span", "explain"]


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A name to explain."""

    name: str
    """Code of a finding, key of --speculative-config, method, engine flag, model class or metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult(Result):
    """Everything that is known under the name; a method and a flag may share one."""

    VERB: ClassVar[str] = "explain"
    explanations: tuple[Explanation, ...]
    oldest: str = field(metadata=HIDDEN)
    """Oldest release that is known."""
    newest: str = field(metadata=HIDDEN)

    def to_wire(self) -> tuple[Explanation, ...]:
        """Return the explanations, which are the document."""
        return self.explanations


@verb(ExplainRequest)
def explain(request: ExplainRequest, _progress: Progress) -> ExplainResult:
    """Show what a name means, which vLLM releases have it, and the sources."""
    known = releases()
    return ExplainResult(explanations=look_up(request.name), oldest=str(known[0]), newest=str(known[-1]))
