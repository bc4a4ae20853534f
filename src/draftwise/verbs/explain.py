"""`explain`: explains a finding's code, or a key, method or flag of vLLM with its history and source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from draftwise.core import InvalidSetup
from draftwise.core.document_schema import json_schema
from draftwise.core.documents import HIDDEN
from draftwise.core.exit_codes import ExitCode
from draftwise.core.finding import SITE
from draftwise.core.progress import Progress
from draftwise.knowledge.examples import RuleExample
from draftwise.knowledge.rules import VllmRule
from draftwise.knowledge.vllm import Span, releases
from draftwise.plan.explanations import Explanation, list_names, show_template
from draftwise.plan.explanations import explain as look_up
from draftwise.verbs import VERBS, load_verb
from draftwise.verbs.verb import Result, refuse, verb

__all__ = [
    "ExplainRequest", "ExplainResult", "Explanation", "RuleExample", "Span", "VllmRule", "explain", "show_template",
]  # fmt: skip


def list_own() -> dict[str, Explanation]:
    """Return verbs and exit codes by each of their spellings. Imports no verb."""
    found: dict[str, Explanation] = {}
    for row in VERBS.values():
        text = f"{row.summary} All options: `draftwise {row.name} --help`."
        link = f"{SITE}reference/verbs/{row.name}/"
        found[row.name] = found[f"draftwise {row.name}"] = Explanation(kind="verb", name=row.name, text=text, link=link)
    link = f"{SITE}reference/exit-codes/"
    for code in ExitCode:
        told = Explanation(kind="exit code", name=f"exit code {int(code)}", text=code.meaning, link=link)
        found |= dict.fromkeys((f"exit code {int(code)}", f"exit {int(code)}", str(int(code))), told)
    table = " ".join(f"{int(code)}: {code.meaning}" for code in ExitCode)
    told = Explanation(kind="exit code", name="exit codes", text=table, link=link)
    return found | dict.fromkeys(("exit code", "exit codes", "return code"), told)


def find_alert(name: str) -> Iterator[Explanation]:
    """Yield the alert or recorded series of a name that `deploy` writes."""
    from draftwise.deploying.observe.alert_rules import ALERTS, READINGS

    for alert in ALERTS:
        if alert.name.lower() == name.lower():
            text = f"An alert of `draftwise deploy`. It fires after {alert.wait} of: {alert.expression}"
            yield Explanation(kind="alert", name=alert.name, text=text, see=(alert.code,))
    if name in READINGS:
        text = f"A series that a recording rule of `draftwise deploy` writes: {READINGS[name]}"
        yield Explanation(kind="series", name=name, text=text)
    elif name.startswith("draftwise:") and (users := [each.name for each in ALERTS if name in each.expression]):
        text = f"A number of your deployment, which these alerts compare with: {', '.join(users)}."
        yield Explanation(kind="series", name=name, text=text)


def find_key(name: str) -> Iterator[Explanation]:
    """Yield each meaning of a key in the verbs' JSON. Imports every verb, for what can be the name of a field."""
    if not name.replace(" ", "_").isidentifier():
        return
    meanings: dict[str, list[str]] = {}
    for row, schema in _schemas().items():
        for owner, own in (("", schema), *schema.get("definitions", {}).items()):
            for each in _find_properties(own, name):
                text = each.get("description") or f"{own.get('description', owner)} {_tell_type(each)}".strip()
                if row not in meanings.setdefault(text, []):
                    meanings[text].append(row)
    for text, verbs in meanings.items():
        yield Explanation(kind="JSON key", name=name, text=f"{text} In the JSON of {', '.join(verbs)}.")


@cache
def _schemas() -> Mapping[str, Mapping[str, Any]]:
    return {name: json_schema(load_verb(name).result, title=name) for name in VERBS}


def _find_properties(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    properties = schema.get("properties", {})
    if name in properties:
        yield properties[name]
    for inner in properties.values():
        yield from _find_properties(inner, name)


def _tell_type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type") or schema.get("enum") or schema.get("$ref", "").rpartition("/")[2]
    return f"Here: {kind if isinstance(kind, str) else ' or '.join(map(str, kind))}." if kind else ""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A name or a message to explain, or a request for all names."""

    name: str = ""
    """Code of a finding, key of --speculative-config, method, engine flag, environment variable, model class, metric or
    glossary term; a verb, an exit code, a JSON key or an alert of draftwise; errors or log lines pasted from vLLM; or a
    question."""
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
    """Oldest known release."""
    newest: str = field(metadata=HIDDEN)
    is_list: bool = field(default=False, metadata=HIDDEN)
    """Whether this lists all names, without texts."""


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
    """Return what is known under a name. Draftwise's JSON and alerts are asked where nothing else has it."""
    try:
        return look_up(name, list_own())
    except InvalidSetup:
        found = () if name.startswith("-") or any(map(str.isspace, name)) else (*find_alert(name), *find_key(name))
        if not found:
            raise
        return found
