"""Pages of findings: one for each code of a rule, finding, piece of advice or known defect; and lists of codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from docs.site.examples import show_example
from docs.site.markdown import fence, links, plain, slug, source, table

from draftwise.core import Stage
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.verdict import UNSETTLING, VOIDING
from draftwise.knowledge.advice import AdviceRule, all_advice
from draftwise.knowledge.defects import Defect, all_defects
from draftwise.knowledge.examples import find_example
from draftwise.knowledge.findings import FindingFact, all_findings, get_finding, read_finding_rooms
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.vllm import releases
from draftwise.plan.explanations import show_template

FIRST_ROOM = "Measurement validity"
STAGES = {
    Stage.CLI: ("Rules of vLLM: command line", "`check` finds these while it reads the command line or a manifest."),
    Stage.CONFIG: ("Rules of vLLM: speculative config", "vLLM decides these while it builds its SpeculativeConfig."),
    Stage.ENGINE: ("Rules of vLLM: engine config", "vLLM decides these while it builds the rest of its configuration."),
    Stage.START_UP: ("Rules of vLLM: start-up", "These appear while vLLM loads weights and builds its runner."),
    Stage.REQUEST: ("Rules of vLLM: requests", "These appear, or act silently, when the server answers requests."),
}
DEFECTS = ("Known defects", "Faults of vLLM releases and plugins, each with its reports.")
ADVICE = ("Advice", "How `pick` chooses and orders methods: rules of thumb, each with its source.")


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each code's page."""
    for fact in all_findings().values():
        yield f"findings/{fact.code}.md", _finding(fact)
    for rule in all_rules().values():
        yield f"findings/{rule.code}.md", _rule(rule)
    for advice in all_advice().values():
        yield f"findings/{advice.code}.md", _advice(advice)
    for defect in all_defects().values():
        yield f"findings/{defect.code}.md", _defect(defect)


def list_acting(kind: str) -> str:
    """Return codes that change a verdict: `voiding` ones also block a rejection, `unsettling` ones leave it open."""
    codes = sorted(VOIDING if kind == "voiding" else UNSETTLING)
    return "".join(f"- {links([code], 'finding', '.')}: {plain(get_finding(code).title)}\n" for code in codes)


def list_all() -> str:
    """Return every code in its section."""
    return "\n".join(_index(*each) for each in _sections())


def _sections() -> Iterator[tuple[str, tuple[str, list[tuple[str, str]]]]]:
    """Yield title, sentence, and code and title of each finding of a section, those of a measurement first."""
    facts, rules = all_findings().values(), all_rules().values()
    for room in sorted(read_finding_rooms(), key=lambda room: (room != FIRST_ROOM, room)):
        yield room, (read_finding_rooms()[room], [(fact.code, fact.title) for fact in facts if fact.room == room])
    for stage, (title, about) in STAGES.items():
        yield title, (about, [(rule.code, rule.title) for rule in rules if rule.stage is stage])
    yield DEFECTS[0], (DEFECTS[1], [(row.code, row.what) for row in all_defects().values()])
    yield ADVICE[0], (ADVICE[1], [(row.code, row.title) for row in all_advice().values()])


def _index(title: str, section: tuple[str, list[tuple[str, str]]]) -> str:
    about, rows = section
    shown = ((links([code], "finding", "."), plain(text)) for code, text in sorted(rows))
    return f"## {title}\n\n{about}\n\n{table(('Code', 'Finding'), shown)}"


def _page(code: str, title: str, facts: Mapping[str, str], sections: Mapping[str, str]) -> str:
    """Return a page: what is the case, the facts in a table, then the sections that have a text."""
    shown = {name: text for name, text in facts.items() if text}
    rows = table(("Property", "Value"), shown.items()) if shown else ""
    texts = "".join(f"\n## {name}\n\n{text}\n" for name, text in sections.items() if text)
    return f"# {code}\n\n**{plain(title).rstrip('.')}.**\n\n{rows}{texts}"


def _finding(fact: FindingFact) -> str:
    told = fact.diagnosis
    return _page(
        fact.code,
        fact.title,
        {
            "Severity": " or ".join(fact.severities),
            "From": f"[{fact.room}](index.md#{slug(fact.room)})",
            "Threshold": _threshold(fact),
            "Needs": ", ".join(told.needs) if told else "",
            "Called until then": links([told.parent], "finding", ".") if told and told.parent else "",
            "Confirmed by": links(told.confirmed_by, "finding", ".") if told else "",
            "Followed by": links(told.consequences, "finding", ".") if told else "",
        },
        {
            "What it means": plain(fact.explains),
            "How draftwise tells": plain(told.told_by) if told else "",
            "What to do": plain(fact.fix),
            "Example": _example(fact.code),
            "Source": source(told.source) if told else "",
        },
    )


def _threshold(fact: FindingFact) -> str:
    """Return the line that is drawn, with its default; one that differs by precision is shown for each."""
    if not fact.threshold:
        return ""
    default = getattr(Thresholds(), fact.threshold)
    shown = ", ".join(f"{key} {value}" for key, value in default.items()) if isinstance(default, Mapping) else default
    return f"`{fact.threshold}`: {shown}"


def _rule(rule: VllmRule) -> str:
    return _page(
        rule.code,
        rule.title,
        {
            "vLLM": _spans(rule.spans),
            "Effect": rule.effect,
            "Severity": rule.severity,
            "When": rule.stage,
            "Raises": f"`{rule.exception}`" if rule.exception else "",
            "Methods": links(rule.methods, "method", ".."),
            "Cannot be judged without": ", ".join(rule.reads),
        },
        {
            "What it means": plain(rule.explains),
            "What draftwise says": _template(rule.message),
            "What to do": plain(show_template(rule.fix)),
            "What runs instead": plain(show_template(rule.becomes)),
            "Example": _example(rule.code),
            "Source": source(rule.source),
        },
    )


def _example(code: str) -> str:
    example = find_example(code)
    return show_example(code, example) if example else ""


def _template(message: str) -> str:
    """Return a message with its placeholders; empty if it is a placeholder alone."""
    shown = show_template(message)
    return "" if re.fullmatch(r"(<[^<>]*>)?", shown) else fence(shown, "text")


def _spans(spans: Iterable[tuple[str, str | None]]) -> str:
    """Return ranges of releases, each a link to its page."""
    newest = str(releases()[-1])
    return ", ".join(
        links([first], "release", "..")
        if first == last
        else f"{links([first], 'release', '..')} to "
        f"{links([last or newest], 'release', '..')}{'' if last else ' (newest)'}"
        for first, last in spans
    )


def _advice(rule: AdviceRule) -> str:
    return _page(
        rule.code,
        rule.title,
        {
            "Severity": rule.severity,
            "Numbers": ", ".join(f"{name} {number:g}" for name, number in rule.numbers.items()),
        },
        {
            "What it means": plain(rule.explains),
            "What draftwise says": _template(rule.message),
            "What to do": plain(show_template(rule.fix)),
            "Source": source(rule.source),
        },
    )


def _defect(row: Defect) -> str:
    return _page(
        row.code,
        row.what,
        {
            "vLLM": row.span,
            "Kind": row.kind,
            "Component": row.component,
            "Methods": links(row.methods, "method", ".."),
            "Only with": row.requests,
            "Symptoms": links(row.symptoms, "finding", "."),
            "Fixed by": ", ".join(map(source, row.fixes)),
        },
        {
            "What to do": plain(row.fix),
            "In logs and errors": fence("\n".join(row.says), "text") if row.says else "",
            "A setup that meets it": fence(row.hit, "sh") if row.hit else "",
            "A setup that does not": fence(row.miss, "sh") if row.miss else "",
            "Source": source(row.basis),
        },
    )
