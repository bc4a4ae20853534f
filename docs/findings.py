"""Writes findings.md from the registries of codes: `python docs/findings.py` (a test keeps it true)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from draftwise.core import Stage
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.verdict import UNSETTLING, VOIDING
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import FindingFact, all_findings, read_finding_rooms
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.vllm import releases

PAGE = Path(__file__).parent / "findings.md"
FIRST_ROOM = "Measurement validity"
HEAD = """# Findings

Everything that draftwise has to say about a configuration, a checkpoint or a measurement is a finding: a code that
stays the same from version to version, a severity, a message about the case at hand, and a fix. This page lists
all codes; `draftwise explain CODE` prints the same row, for a rule of vLLM with its explanation and its source.

| severity | means | exit code |
|---|---|---|
| error | It cannot work, or its result must not be relied on. | 1 |
| warning | It works, and may cost speed, memory, quality or the precision of a measurement. | 0 |
| info | It works, and something is worth knowing. | 0 |

`draftwise check --fail-on warning` ends with 1 on warnings as well. Where a code can have several severities, the case
decides.

In a measurement an error also acts on the verdict. `draftwise decide` adopts no candidate on the strength of a
comparison (one workload, one load level, one candidate) that has an error, however large the speed-up: the verdict is
*blocked*, with the code as its reason. An error about the whole run blocks every adoption. A rejection is blocked by
errors that make the comparison meaningless ({voiding}).
These warnings make a verdict *inconclusive*, because the numbers may be wrong either way: {unsettling}.
Other warnings and notes stand beside the verdict in the terminal, the report and `summary.json`, and do not change it.
Thresholds are shown with their defaults; those of a run are kept in its manifest.

This page is written by `python docs/findings.py`.
"""
STAGES = {
    Stage.CLI: "Rules of vLLM: command line",
    Stage.CONFIG: "Rules of vLLM: speculative config",
    Stage.ENGINE: "Rules of vLLM: engine config",
    Stage.START_UP: "Rules of vLLM: start-up",
    Stage.REQUEST: "Rules of vLLM: requests",
}
RULES = """What vLLM {first} to {last} does with a configuration, as `draftwise check`, `inspect`, `size` and \
`upgrade` report it. `draftwise explain CODE` adds the explanation and the place in vLLM's source. {about}"""
ABOUT = {
    Stage.CLI: "These are noticed while the command line, or a manifest that holds one, is read.",
    Stage.CONFIG: "These are noticed while vLLM makes its SpeculativeConfig.",
    Stage.ENGINE: "These are noticed while vLLM makes the rest of its configuration.",
    Stage.START_UP: "These are noticed while weights are loaded and runner, proposer and scheduler are made.",
    Stage.REQUEST: "These are noticed, or act without being noticed, when requests are served.",
}
ADVICE = """How `draftwise pick` chooses, orders, doubts and leaves out methods: rules of thumb with their sources, to \
be confirmed by a measurement. Their severity depends on the case."""


def render() -> str:
    """Return the page."""
    sections = dict(_sections())
    contents = "".join(f"- [{title}](#{title.lower().replace(':', '').replace(' ', '-')})\n" for title in sections)
    return "\n".join(
        (HEAD.format(voiding=_quote(VOIDING), unsettling=_quote(UNSETTLING)), contents, *sections.values())
    )


def _quote(codes: Iterable[str]) -> str:
    return ", ".join(f"`{code}`" for code in codes)


def _sections() -> Iterator[tuple[str, str]]:
    """Yield title and text of each section: what a run says of itself first, then what is said before one."""
    for room in sorted(read_finding_rooms(), key=lambda room: (room != FIRST_ROOM, room)):
        yield room, _list_findings(room)
    for stage, title in STAGES.items():
        yield title, _list_rules(stage)
    rows = ((each.code, f"**{each.title}.** {each.explains}") for each in all_advice().values())
    yield "Advice", _section("Advice", ADVICE, ("code", "what it means"), rows)


def _list_findings(room: str) -> str:
    rows = (
        (
            fact.code,
            ", ".join(fact.severities),
            f"**{fact.title}.** {fact.explains}{_threshold(fact)}{_tell_apart(fact)}",
            fact.fix,
        )
        for fact in all_findings().values()
        if fact.room == room
    )
    return _section(room, read_finding_rooms()[room], ("code", "severity", "what it means", "what to do"), rows)


def _threshold(fact: FindingFact) -> str:
    """Return the line that is drawn, with its default; one that differs by precision is shown for each."""
    if not fact.threshold:
        return ""
    default = getattr(Thresholds(), fact.threshold)
    shown = ", ".join(f"{key} {value}" for key, value in default.items()) if isinstance(default, Mapping) else default
    return f" Threshold `{fact.threshold}`: {shown}."


def _tell_apart(fact: FindingFact) -> str:
    """Return what tells a diagnosis from its neighbours, what that takes, and what it is called until then."""
    told = fact.diagnosis
    if told is None:
        return ""
    parent = f"; `{told.parent}` until then" if told.parent else ""
    return f" *Told by:* {told.told_by} *Needs:* {', '.join(told.needs)}{parent}. *Source:* {told.source}."


def _list_rules(stage: Stage) -> str:
    about = RULES.format(first=releases()[0], last=releases()[-1], about=ABOUT[stage])
    rows = (
        (rule.code, rule.severity, f"{rule.title}.", rule.effect, _spans(rule))
        for rule in all_rules().values()
        if rule.stage is stage
    )
    return _section(STAGES[stage], about, ("code", "severity", "what it says", "effect", "releases"), rows)


def _spans(rule: VllmRule) -> str:
    return ", ".join(first if last == first else f"{first} to {last or 'newest'}" for first, last in rule.spans)


def _section(title: str, about: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a heading, a sentence and a table, whose first column is an anchor for each code."""
    lines = [f"## {title}", "", about, "", _row(columns), "|---" * len(columns) + "|"]
    lines += (_row((f'<a id="{code}"></a>`{code}`', *map(_escape, cells))) for code, *cells in sorted(rows))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.write_text(render())
