"""`explain`: explains a finding's code, or a key, method or flag of vLLM with its history and source."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

from draftwise.core import InvalidSetup
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.knowledge.examples import RuleExample
from draftwise.knowledge.rules import VllmRule
from draftwise.knowledge.vllm import Span, releases
from draftwise.plan.explanations import Explanation, list_names, show_template
from draftwise.plan.explanations import explain as look_up
from draftwise.verbs.own_names import find_alert, find_key, list_own
from draftwise.verbs.verb import Result, refuse, verb

__all__ = [
    "ExplainRequest",
    "ExplainResult",
    "Explanation",
    "RuleExample",
    "Span",
    "VllmRule",
    "explain",
    "show_template",
]


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A name or a message to explain, or the wish for all names."""

    name: str = ""
    """Code of a finding, key of --speculative-config, method, engine flag, environment variable, model class, metric or
    word of the field; a verb, an exit code, a JSON key or an alert of draftwise; an error or log line of vLLM, or
    several, as pasted; or a question."""
    _: KW_ONLY
    list_names: bool = False
    """Whether to list all names instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult(Result):
    """Everything that is known under the name; a method and a flag may share one."""

    VERB: ClassVar[str] = "explain"
    JSON_OF: ClassVar[str] = "explanations"
    explanations: tuple[Explanation, ...]
    oldest: str = field(metadata=HIDDEN)
    """Oldest release that is known."""
    newest: str = field(metadata=HIDDEN)
    is_list: bool = field(default=False, metadata=HIDDEN)
    """Whether these are all names, without texts."""


@verb(ExplainRequest)
def explain(request: ExplainRequest, _progress: Progress) -> ExplainResult:
    """Show what a name or a message of vLLM means, which releases have it, and the sources."""
    known = releases()
    if request.list_names:
        own = {each.name: replace(each, text="", link="") for each in list_own().values()}
        names = (*list_names(), *own.values())
        return ExplainResult(explanations=names, oldest=str(known[0]), newest=str(known[-1]), is_list=True)
    if not request.name.strip():
        refuse("Give a name or a message, or list the names with --list.")
    return ExplainResult(explanations=_look_up(request.name.strip()), oldest=str(known[0]), newest=str(known[-1]))


def _look_up(name: str) -> tuple[Explanation, ...]:
    """Return what is known under a name; draftwise's JSON and alerts are asked where nothing else has it."""
    try:
        return look_up(name, list_own())
    except InvalidSetup:
        found = () if name.startswith("-") or any(map(str.isspace, name)) else (*find_alert(name), *find_key(name))
        if not found:
            raise
        return found
