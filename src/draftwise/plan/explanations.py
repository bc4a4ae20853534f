"""Explains a name: the code of a finding, a key, method, flag, model class or metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from draftwise.core import InvalidSetup
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.defects import Defect, all_defects
from draftwise.knowledge.findings import FindingFact, all_findings
from draftwise.knowledge.flag_types import OldFlag, read_old_flags
from draftwise.knowledge.methods import Method, all_methods, find_method
from draftwise.knowledge.metrics import METRICS, OLD_METRICS
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.spec_keys import read_spec_keys
from draftwise.knowledge.vllm import Span, history, releases

__all__ = ["Explanation", "explain"]

_PAGE = "docs/findings.md"
_OLD_FLAG = "flag-from-before-0.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known under one name."""

    kind: str
    """`finding`, `rule`, `advice`, `defect`, `method`, `key`, `flag`, `architecture` or `metric`; the first four are
    codes."""
    name: str
    text: str
    history: tuple[Span, ...] = ()
    """Its values by release, oldest first."""
    rule: VllmRule | None = None
    finding: FindingFact | None = None
    defect: Defect | None = None
    link: str = ""
    """Link to a finding's code in the documentation."""
    related: tuple[VllmRule, ...] = ()
    """Rules whose text mentions it."""


def explain(name: str) -> tuple[Explanation, ...]:
    """Return everything that is known under a name; a method and a flag may share one.

    Raises:
        InvalidSetup: the name is unknown; the nearest names are suggested.
    """
    found = tuple(_find(name.strip()))
    if not found and (method := find_method(name.strip())) is not None:  # of the embedded engine alone
        found = (_explain_method(name.strip(), method, ()),)
    if not found:
        near = get_close_matches(name.strip().lstrip("-"), sorted(_names()), n=3, cutoff=0.5)
        raise InvalidSetup.because(
            "unknown-name",
            f"The name {name!r} is unknown.",
            fix=f"Did you mean {' or '.join(near)}?" if near else "Give a finding's code, a key, a method or a flag.",
        )
    return found


def _find(name: str) -> Iterator[Explanation]:
    bare = name.lstrip("-").replace("-", "_")
    link = f"{_PAGE}#{name}"
    if finding := all_findings().get(name):
        yield Explanation(kind="finding", name=name, text=finding.explains, finding=finding, link=link)
    if rule := all_rules().get(name):
        yield Explanation(kind="rule", name=name, text=rule.explains, rule=rule, link=link)
    if advice := all_advice().get(name):
        text = f"{advice.title}. {advice.explains} Source: {advice.source}."
        yield Explanation(kind="advice", name=name, text=text, link=link)
    if defect := all_defects().get(name):
        yield Explanation(kind="defect", name=name, text=_tell_defect(defect), defect=defect)
    if spans := history("methods", name):
        yield _explain_method(name, find_method(name), spans)
    if spans := history("spec_fields", bare):
        key = read_spec_keys().get(bare)
        text = key.meaning if key else "A key that draftwise has no description of yet."
        yield Explanation(kind="key", name=bare, text=text, history=spans, related=_find_rules(bare))
    flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
    if spans := history("flags", flag):
        yield Explanation(kind="flag", name=flag, text="An engine flag.", history=spans, related=_find_rules(flag))
    if old := read_old_flags().get(flag):
        yield Explanation(kind="flag", name=flag, text=_tell_old_flag(old), related=(all_rules()[_OLD_FLAG],))
    if spans := history("architectures", name):
        yield Explanation(kind="architecture", name=name, text="A model class of vLLM's registry.", history=spans)
    if metric := next((m for m in METRICS if name in (m.name, m.sample)), None):
        labels = ", ".join(metric.labels)
        text = f"{metric.help} {metric.kind.capitalize()}, labels {labels}; scraped as {metric.sample}."
        yield Explanation(kind="metric", name=metric.name, text=f"{text} Source: {metric.source}.")
    gone = f"vllm:{name.removeprefix('vllm:').removesuffix('_total')}"
    if gone in OLD_METRICS:
        instead = f"In its place: {OLD_METRICS[gone]}." if OLD_METRICS[gone] else "Nothing takes its place."
        text = f"A metric of vLLM's V0 engine, which the V1 engine never had. {instead}"
        yield Explanation(kind="metric", name=gone, text=text, link=f"{_PAGE}#metrics-v0")


def _tell_defect(defect: Defect) -> str:
    only = f" Only with {defect.requests}." if defect.requests else ""
    ends = f" vLLM {defect.fixed_in} no longer has it." if defect.fixed_in else ""
    mended = f" Pull requests: {', '.join(defect.fixes)}." if defect.fixes else ""
    return f"Known defect, {defect.span}. {defect.what}{only} {defect.fix}{ends}{mended} Source: {defect.basis}."


def _tell_old_flag(old: OldFlag) -> str:
    known = old.key in releases("spec_fields")[-1].table("spec_fields")
    instead = f"Write it into --speculative-config as {old.key}." if known else "No key takes its place."
    note = f" {old.note[0].upper()}{old.note[1:]}." if old.note else ""
    return f"A flag of vLLM before 0.9.2, which no release since has. {instead}{note}"


def _explain_method(name: str, method: Method | None, spans: tuple[Span, ...]) -> Explanation:
    if method is None:
        text = "A method that draftwise knows nothing of yet but its name."
    elif name != method.name:
        text = f"The name of {method.name} for one model family."
    else:
        text = method.meaning
        if not spans:
            text += f" No release of vLLM has it: it is of draftwise's embedded engine{_tell_origin(method)}."
    return Explanation(kind="method", name=name, text=text, history=spans, related=_find_rules(name))


def _tell_origin(method: Method) -> str:
    return f", added by {method.distribution}" if method.distribution else ""


def _find_rules(name: str) -> tuple[VllmRule, ...]:
    """Return the rules whose text contains a name as a word."""
    return tuple(rule for rule in all_rules().values() if name in _words(f"{rule.title} {rule.explains} {rule.code}"))


def _words(text: str) -> set[str]:
    return set(text.replace("`", " ").replace(",", " ").replace(".", " ").replace(":", " ").split())


def _names() -> Iterable[str]:
    names: set[str] = {
        *all_findings(),
        *all_rules(),
        *all_advice(),
        *all_defects(),
        *OLD_METRICS,
        *(each.name for each in METRICS),
    }
    for topic in ("methods", "spec_fields"):
        for release in releases(topic):
            names |= release.table(topic).keys()
    names |= all_methods().keys()
    return names | {flag.lstrip("-") for flag in (*releases("flags")[-1].table("flags"), *read_old_flags())}
