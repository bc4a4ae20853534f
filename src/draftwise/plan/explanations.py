"""Explains a name (code, key, method, flag, variable, class, metric or glossary term), and messages of vLLM."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from itertools import chain
from math import log
from types import MappingProxyType

from draftwise.core import InvalidSetup
from draftwise.core.finding import SITE
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.defects import Defect, all_defects, find_said
from draftwise.knowledge.examples import RuleExample, find_example
from draftwise.knowledge.findings import FindingFact, all_findings
from draftwise.knowledge.flag_types import OldFlag, read_old_flags
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import Method, all_methods, find_method
from draftwise.knowledge.metrics import METRICS, OLD_METRICS
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.spec_keys import read_spec_keys
from draftwise.knowledge.stored import read_data, read_rows
from draftwise.knowledge.terms import Term, find_said_terms, find_term, read_terms, squeeze
from draftwise.knowledge.validators import is_read
from draftwise.knowledge.vllm import Release, Span, all_keys, history, releases
from draftwise.knowledge.vllm_messages import KnownMessage, find_messages, find_nearest, read_values

_LEAST = 0.5
"""Share of what a question's words say, weighed by their rarity, that a title must have to be an answer."""
_FEW = 3
"""Words of a question of which one alone may tell the task."""
_MOST = 3
"""Titles that answer one question."""
_LOGGED = re.compile(
    r"Error\b|Exception\b|\berror:? \w+ing\b|Traceback|\bERROR\b|\bWARN|\[[EWIF]\]|\w_\w+: "
    r"|\bkernel\b|^\[ *\d|[{}=<>]|\d\d:\d\d|\w\(|::|//|\n|\bmust (?:not |be |match|equal|have )(?!.*\?\s*$)"
)
"""Marks of a line of a log or of code, which no question has."""
_WORD = re.compile(r"[a-z][a-z0-9_@.+-]*[a-z0-9]|[a-z0-9]+")
_DRAFTED = re.compile(r"\b1?\d (?:draft |speculative )?tokens\b")
"""A number of tokens that is small enough to be k."""
_ENDINGS = re.compile(r"(?:ing|ed|es|er|s|ly|ance|ation|ion)$")


def is_question(text: str) -> bool:
    """Return whether a text is a person's, and not a line of a log or of code."""
    return _LOGGED.search(text) is None


def find_phrases(text: str, names: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the names in a text, the longer ones if they overlap, and whether the text has nothing else.

    Args:
        text: a question.
        names: spelling without case and separators -> name.
    """
    words = _WORD.findall(text.lower())
    taken: set[int] = set()
    found = []
    for length in range(min(4, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            places = set(range(start, start + length))
            known = names.get(squeeze("".join(words[start : start + length])))
            if known is None or places & taken or (length == 1 and words[start] in _common()):
                continue
            taken |= places
            found.append(known)
    return found, all(place in taken or word in _common() for place, word in enumerate(words))


def find_titles(text: str, *, least: float = _LEAST) -> list[str]:
    """Return at most three codes nearest to a question; each title has the question's names with `_`."""
    titles, weights = _titles()
    asked = _stems(text)
    names = {stem for stem in asked if "_" in stem}
    whole = sum(weights.get(stem, max(weights.values())) for stem in asked)
    scores: dict[str, float] = {}
    for code, stems in titles.items():
        shared = asked & stems
        if names <= stems and (len(shared) >= 2 or (shared and len(asked) == 1)):
            of_title = sum(weights[stem] for stem in shared) / sum(weights[stem] for stem in stems)
            scores[code] = sum(weights[stem] for stem in shared) / whole * 0.6 + of_title * 0.4
    best = sorted(scores, key=lambda code: (-scores[code], code))
    return [code for code in best[:_MOST] if scores[code] >= max(least, 0.8 * scores[best[0]])]


def find_tasks(text: str) -> list[Term]:
    """Return the tasks and complaints with a wording whose words are all in a question.

    One word is enough only for a short question.
    """
    asked, tasks = _stems(text), (term for term in read_terms() if term.kind == "task")
    least = 1 if len(asked) <= _FEW else 2
    return [term for term in tasks if any(own <= asked and len(own) >= least for own in map(_stems, term.names))]


@cache
def _titles() -> tuple[Mapping[str, frozenset[str]], Mapping[str, float]]:
    """Return the stems of every title by code, and how much a stem says: more, the fewer titles have it."""
    texts = {code: row.title for code, row in all_findings().items()}
    texts |= {code: row.title for code, row in all_rules().items()}
    texts |= {code: row.title for code, row in all_advice().items()}
    texts |= {code: row.what for code, row in all_defects().items() if len(row.what) < 120}
    titles = {code: _stems(text) for code, text in texts.items()}
    counts = Counter(stem for stems in titles.values() for stem in stems)
    return titles, {stem: log(len(titles) / count) for stem, count in counts.items()}


def _stems(text: str) -> frozenset[str]:
    words = set(_WORD.findall(_DRAFTED.sub("k tokens", text.lower()))) - _common()
    return frozenset(_same().get(stem, stem) for stem in map(_stem, words))


def _stem(word: str) -> str:
    stem = _ENDINGS.sub("", word) if len(word) > 4 else word
    return stem if len(stem) > 2 else word


@cache
def _common() -> frozenset[str]:
    """Return words that say nothing about a question."""
    return frozenset(read_rows("asked")[0]["common"])


@cache
def _same() -> Mapping[str, str]:
    """Return stems that people use for another one: stem -> the one of the titles."""
    return {_stem(word): _stem(row["as"]) for row in read_rows("asked")[1:] for word in row["words"]}


_OLD_FLAG = "flag-from-before-0.9"
_FLAG_SAID = re.compile(r"\b(?:argument|option|flag)s?:? ['\"]?(--[a-z][\w-]+)")
"""A flag that a message is about."""
_SETTING = r"--[a-z][\w-]+(?:(?:=|\s+)(?:\{.*\}|\[.*\]|'[^']*'|\"[^\"]*\"|-?[^\s-]\S*))?"
_SETTINGS = re.compile(rf"{_SETTING}(?:\s+{_SETTING})*", re.DOTALL)
"""Flags with their values, and nothing else."""
_FLAG = re.compile(r"(?<!\S)--[a-z][\w-]+")
_TOLD_OF_RELEASES: Mapping[str, str] = {"methods": "methods", "spec_fields": "keys of --speculative-config"}
_FIELD = re.compile(r"\{(\w+)[^{}]*\}|(\{\{)|(\}\})")
"""A value in the text of a rule, and braces that stand for themselves."""
_UNEXPLAINED = "draftwise has no rule for it. Look up the place in vLLM, and run `draftwise check` on your setup."
_READ = "`draftwise check` has read from vLLM when it comes. Run it on your setup."
_SIMILAR = 0.8
"""Share of its letters that a message has in common with an earlier wording."""
_LEVELS: Mapping[str, str] = {
    "info": "logs it for information",
    "warning": "logs it as a warning",
    "error": "logs it as an error",
    "exception": "logs it as an error with a traceback",
    "critical": "logs it as an error",
    "AssertionError": "asserts that this never happens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One meaning of a name."""

    kind: str
    """`release`, `finding`, `rule`, `advice`, `defect` (these four are codes), `method`, `key`, `value`, `flag`,
    `architecture`, `metric`, `message`, a kind of `knowledge.terms`, or `verb`, `option`, `exit code`, `JSON key`,
    `alert` and `series` of draftwise."""
    name: str
    text: str
    history: tuple[Span, ...] = ()
    """Its values by release, oldest first."""
    rule: VllmRule | None = None
    finding: FindingFact | None = None
    defect: Defect | None = None
    link: str = ""
    """Address of the page of a code."""
    related: tuple[VllmRule, ...] = ()
    """Rules whose text mentions it, or that cause a message."""
    example: RuleExample | None = None
    """A command line that triggers a rule, a finding or a defect."""
    see: tuple[str, ...] = ()
    """Other names that `explain` knows, for more."""


def explain(name: str, own: Mapping[str, Explanation] = MappingProxyType({})) -> tuple[Explanation, ...]:
    """Return all meanings of a name, of a pasted message, or of the names in a question.

    Raises:
        InvalidSetup: the name or message is unknown; the finding suggests the nearest names.
    """
    name = name.strip()
    found = (*([own[name.lower()]] if name.lower() in own else []), *_find(name))
    if not found and _SETTINGS.fullmatch(name):
        told = [tuple(_find_settings(flag)) for flag in dict.fromkeys(_FLAG.findall(name))]
        found = tuple(chain.from_iterable(told)) if all(told) else ()
    if not found and len(name.split()) > 1:
        found = (*_find_messages(name),) or (*(_answer(name, own) if is_question(name) else ()),)
        found = found or tuple(each for flag in _FLAG_SAID.findall(name) for each in _find_settings(flag))
        if not found:
            raise _unknown_message(name, own)
    if not found:
        listed = (each.name.lstrip("-") for each in list_names() if each.kind not in ("release", "architecture"))
        names = {*listed, *(each for each in own if " " not in each)}
        near = get_close_matches(name.lstrip("-"), sorted(names), n=3, cutoff=0.5)
        fix = f"Did you mean {' or '.join(near)}?" if near else "`draftwise explain --list` shows the names."
        raise refusal("unknown-name", name=name, fix=fix)
    return found


def _find(name: str) -> Iterator[Explanation]:
    yield from _find_releases(name)
    yield from _find_codes(name)
    method, spans = find_method(name), history("methods", name)
    if method is not None or spans:
        yield _explain_method(name, method, spans)
    if method is None or spans:  # a method of somebody's own may be a word of the field
        yield from _find_terms(name)
    yield from _find_settings(name)
    if spans := history("architectures", name):
        yield Explanation(kind="architecture", name=name, text="A model class of vLLM's registry.", history=spans)
    if metric := next((m for m in METRICS if name in (m.name, m.sample)), None):
        labels = ", ".join(metric.labels)
        text = f"{metric.help} {metric.kind.capitalize()}, labels {labels}, scraped as {metric.sample}."
        yield Explanation(kind="metric", name=metric.name, text=f"{text} Source: {metric.source}.")
    gone = f"vllm:{name.removeprefix('vllm:').removesuffix('_total')}"
    if gone in OLD_METRICS:
        instead = f"Instead, use {OLD_METRICS[gone]}." if OLD_METRICS[gone] else "It has no replacement."
        text = f"A metric of vLLM's V0 engine; the V1 engine never had it. {instead}"
        yield Explanation(kind="metric", name=gone, text=text, link=f"{SITE}findings/metrics-v0/")


def _find_releases(name: str) -> Iterator[Explanation]:
    """Yield a release of vLLM: what it has first, what it lost, and which known defects it has and mended."""
    named = name.removeprefix("vllm==").removeprefix("vLLM ").removeprefix("v")
    known = releases()
    at = next((index for index, each in enumerate(known) if str(each) == named), None)
    if at is None:
        return
    release, before = known[at], known[at - 1] if at else None
    parts = [f"A vLLM release. The newest file of its wheel is from {release.built}."]
    for topic, what in _TOLD_OF_RELEASES.items() if before else ():
        both = [set(each.table(topic)) for each in (before, release) if each in releases(topic)]
        if len(both) == 2:
            parts += _tell_names(f"New {what}", both[1] - both[0])
            parts += _tell_names(f"Gone {what}", both[0] - both[1])
    rows = all_defects().values()
    parts += _tell_names("Known defects", (row.code for row in rows if row.holds(release.version)))
    if before is not None:
        mended = (row.code for row in rows if row.holds(before.version) and row.fixed_in == str(release))
        parts += _tell_names("Known defects that are gone", mended)
    parts += _tell_names("Rules that start here", _list_rules(release, first=True) if before else ())
    parts += _tell_names("Rules that ended with the release before", _list_rules(before, first=False) if before else ())
    yield Explanation(kind="release", name=str(release), text=" ".join(parts))


def _list_rules(release: Release, *, first: bool) -> Iterable[str]:
    at = 0 if first else 1
    return (code for code, rule in all_rules().items() if any(str(span[at]) == str(release) for span in rule.spans))


def _tell_names(what: str, names: Iterable[str]) -> list[str]:
    found = sorted(names)
    return [f"{what} ({len(found)}): {', '.join(found)}."] if found else []


def _find_codes(name: str) -> Iterator[Explanation]:
    link = f"{SITE}findings/{name}/"
    if finding := all_findings().get(name):
        text, shown = finding.explains, find_example(name)
        yield Explanation(kind="finding", name=name, text=text, finding=finding, link=link, example=shown)
    if rule := all_rules().get(name):
        yield Explanation(kind="rule", name=name, text=rule.explains, rule=rule, link=link, example=find_example(name))
    if advice := all_advice().get(name):
        text = f"{advice.title}. {advice.explains} Source: {advice.source}."
        yield Explanation(kind="advice", name=name, text=text, link=link)
    if defect := all_defects().get(name):
        yield Explanation(
            kind="defect", name=name, text=_tell_defect(defect), defect=defect, link=link, example=_show(defect)
        )


def _show(defect: Defect) -> RuleExample | None:
    """Return a line that meets a defect, where nothing but the line decides that."""
    if not defect.hit or defect.gpu or defect.installed:
        return None
    return RuleExample(vllm=str(defect.last_release), command=defect.hit)


def _find_terms(name: str) -> Iterator[Explanation]:
    if term := find_term(name):
        yield _explain_term(term)
    elif spans := history("env", name):
        yield Explanation(kind="variable", name=name, text="An environment variable of vLLM.", history=spans)


def _find_settings(name: str) -> Iterator[Explanation]:
    bare = name.lstrip("-").replace("-", "_")
    if spans := history("spec_fields", bare):
        key = read_spec_keys().get(bare)
        text = key.meaning if key else "draftwise has no description of this key yet."
        yield Explanation(kind="key", name=bare, text=text, history=spans, related=_find_rules(bare))
    yield from _find_values(name)
    flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
    if spans := history("flags", flag):
        yield Explanation(kind="flag", name=flag, text="An engine flag.", history=spans, related=_find_rules(flag))
    if old := read_old_flags().get(flag):
        yield Explanation(kind="flag", name=flag, text=_tell_old_flag(old), related=(all_rules()[_OLD_FLAG],))
    engines = read_data("engines")
    for engine in engines["engines"]:
        for meaning, told in engines["in_vllm"].items():
            if flag in engine["flags"].get(meaning, ()):
                yield Explanation(kind="flag", name=flag, text=f"A flag of {engine['name']}, not of vLLM. {told}")


def _find_values(name: str) -> Iterator[Explanation]:
    """Yield the keys of --speculative-config of which a name is a value, with the releases that take it."""
    for key in read_spec_keys():
        spans = history("spec_fields", key)
        taking = [span for span in spans if name in (span.value.get("choices") or ())]
        if taking and key != "method":
            first, last = taking[0].since, taking[-1].until
            until = f"to {last}" if last else "on"
            text = f"A value of {key}, from vLLM {first} {until}. {read_spec_keys()[key].meaning}"
            yield Explanation(kind="value", name=f"{key} {name}", text=text)


def _explain_term(term: Term) -> Explanation:
    return Explanation(
        kind=term.kind,
        name=term.names[0],
        text=f"{term.text} Source: {term.source}.",
        history=history("env", term.names[0]),
        link=f"{SITE}{page}/" if (page := term.source.removeprefix("docs/").removesuffix(".md")) != term.source else "",
        related=tuple(rule for code in term.see if (rule := all_rules().get(code))),
        see=term.see,
    )


def _find_messages(text: str) -> Iterator[Explanation]:
    for message in find_messages(text):
        rules = tuple(all_rules()[code] for code in message.rules if code in all_rules())
        rules = rules or tuple(_find_answering(message)) or tuple(_find_read_in(message))
        ended = () if rules else tuple(_find_ended(message))
        values = read_values(text, message.template)
        parts = ((f"{rule.title}.", rule.explains, _fill_in(rule.fix, values)) for rule in rules or ended)
        told = " ".join(filter(None, dict.fromkeys(chain.from_iterable(parts))))
        if ended:
            last = ended[-1].spans[-1][1]
            told = f"{_UNEXPLAINED} The rule for its earlier wording ended with {last}: {told}"
        told = told or (_READ if is_read(message.template) else _UNEXPLAINED)
        rules = rules or ended
        unlike = "" if message.is_same else "No release has this message. Nearest, not the same: "
        yield Explanation(
            kind="message",
            name=message.template,
            text=f"{unlike}vLLM {_LEVELS.get(message.level, 'raises it as ' + message.level)}. {told}",
            history=message.history,
            related=rules,
        )
    for row in find_said(text):
        yield Explanation(kind="defect", name=row.code, text=_tell_defect(row), defect=row)
    for name in re.findall(r"\['(\w+)'\]", text):  # architectures, as vLLM names those that it lacks
        yield from _find(name)
    terms = find_said_terms(text)
    yield from map(_explain_term, terms)
    if any("unknown-key" in term.see for term in terms):
        for key in dict.fromkeys(re.findall(r"[a-z]+(?:_[a-z]+)+", text)):
            yield from _find_settings(key)


def _find_answering(message: KnownMessage) -> Iterator[VllmRule]:
    """Yield the rules that name a part of a message."""
    text = f"{message.history[-1].source.rpartition('.')[2]}: {message.template}"
    parts = ((rule, (*rule.answers, *rule.says)) for rule in all_rules().values())
    return (rule for rule, names in parts if any(part in text for part in names))


def _find_read_in(message: KnownMessage) -> Iterator[VllmRule]:
    """Yield the rule that was read in the function of a message, if function and rule say one thing, in like words."""
    source = message.history[-1].source
    name = source.rpartition(".")[2]
    found = [rule for rule in all_rules().values() if re.search(rf"\b{name}\b", rule.source)]
    if len(found) != 1 or re.fullmatch(r"_[a-z]\w+", name) is None:
        return
    (rule,) = found
    places = [history("messages", template)[-1].source for template in all_keys("messages")]
    if _share_words(message, rule) and places.count(source) == 1:
        yield rule


def _find_ended(message: KnownMessage) -> Iterator[VllmRule]:
    """Yield the rules of a message's earlier wordings that hold no longer, where rule and message are in like words."""
    judged = _judged_messages().get(message.history[-1].source.rpartition(":")[2], ())
    alike = (row for row in judged if SequenceMatcher(None, row[0], message.template).ratio() > _SIMILAR)
    for code in dict.fromkeys(code for _, codes in alike for code in codes):
        rule = all_rules().get(code)
        if rule is not None and rule.exception and rule.spans[-1][1] is not None and _share_words(message, rule):
            yield rule


@cache
def _judged_messages() -> Mapping[str, list[tuple[str, tuple[str, ...]]]]:
    """Return the messages that rules stand next to, with these, by the function that holds them."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for template in all_keys("messages"):
        for span in history("messages", template):
            if codes := tuple(span.value.get("rules", ())):
                found.setdefault(span.source.rpartition(":")[2], []).append((template, codes))
    return found


def _share_words(message: KnownMessage, rule: VllmRule) -> bool:
    texts = (message.template, f"{rule.title} {rule.message}")
    said, told = ({*re.findall(r"[a-z]{5,}", text.lower())} for text in texts)
    return len(said & told) > 1


def _answer(question: str, own: Mapping[str, Explanation]) -> Iterator[Explanation]:
    """Yield the findings and tasks that fit a question that says more than a name, then the names that it mentions."""
    spellings = _spellings() | {squeeze(each): each for each in own if not each.isdigit()}
    names, is_all = find_phrases(question, spellings)
    for code in find_titles(question) if not is_all else ():
        yield from _find_codes(code)
    tasks = find_tasks(question)
    for task in tasks:
        yield _explain_term(replace(task, see=tuple(dict.fromkeys((*task.see, *names)))))
    for name in names if not tasks else ():
        yield from [own[name]] if name in own else _find(name)


@cache
def _spellings() -> dict[str, str]:
    """Return the names that a question may mention, by their letters: terms, methods, keys and metrics."""
    names = [name for term in read_terms() if term.kind != "task" for name in term.names]
    names += [*(each.name for each in METRICS), *all_keys("spec_fields"), *all_methods()]
    return {squeeze(name): name for name in names}


def _unknown_message(text: str, own: Mapping[str, Explanation]) -> InvalidSetup:
    known = releases()
    names = {**_spellings(), **{squeeze(each): each for each in own}}
    words = [squeeze(word) for word in text.split()[:20] if len(word) > 4]
    words = [near for word in words for near in get_close_matches(word, names, n=1, cutoff=0.75)]
    near = [*find_titles(text, least=0), *(names[word] for word in words)]
    nearest = f"Nearest: {', '.join(dict.fromkeys(near))}. " if near else ""
    if message := find_nearest(text):
        nearest = f"Nearest, not the same: {message!r}. {nearest}"
    shown = text.strip().splitlines()[-1][:120]
    return refusal("unknown-message", oldest=known[0], newest=known[-1], shown=shown, nearest=nearest)


def _fill_in(fix: str, values: Mapping[str, str]) -> str:
    """Return the sentences of a rule's fix whose values a message tells, or the whole fix with each `<name>`."""
    sentences = re.split(r"(?<=\.) ", fix)
    known = (each for each in sentences if {found[1] for found in _FIELD.finditer(each)} <= {*values, None})
    return show_template(" ".join(known) or fix, values)


def show_template(text: str, values: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a text of a rule with its values, and with `<name>` in place of each unknown one."""
    return _FIELD.sub(lambda found: values.get(found[1], f"<{found[1]}>") if found[1] else found[0][0], text)


def list_names() -> tuple[Explanation, ...]:
    """Return every name that can be explained, by kind, without explanations; messages are too many to list."""
    kinds: Mapping[str, Iterable[str]] = {
        "release": map(str, releases()),
        "method": [*all_keys("methods"), *(name for name in all_methods() if not history("methods", name))],
        "key": all_keys("spec_fields"),
        "word": [name for term in read_terms() if term.kind != "variable" for name in term.names],
        "variable": all_keys("env"),
        "flag": [*all_keys("flags"), *read_old_flags()],
        "metric": [*(each.name for each in METRICS), *OLD_METRICS],
        "architecture": all_keys("architectures"),
        "finding": all_findings(),
        "rule": all_rules(),
        "advice": all_advice(),
        "defect": all_defects(),
    }
    return tuple(Explanation(kind=kind, name=name, text="") for kind, names in kinds.items() for name in sorted(names))


def _tell_defect(defect: Defect) -> str:
    only = f" Only with {defect.requests}." if defect.requests else ""
    ends = f" vLLM {defect.fixed_in} no longer has it." if defect.fixed_in else ""
    mended = f" Pull requests: {', '.join(defect.fixes)}." if defect.fixes else ""
    return f"Known defect, {defect.span}. {defect.what}{only} {defect.fix}{ends}{mended} Source: {defect.basis}."


def _tell_old_flag(old: OldFlag) -> str:
    known = old.key in releases("spec_fields")[-1].table("spec_fields")
    instead = f"Write it into --speculative-config as {old.key}." if known else "No key replaces it."
    note = f" {old.note[0].upper()}{old.note[1:]}." if old.note else ""
    return f"A flag of vLLM before 0.9.2. No later release has it. {instead}{note}"


def _explain_method(name: str, method: Method | None, spans: tuple[Span, ...]) -> Explanation:
    if method is None:
        text = "draftwise knows only the name of this method."
    elif name != method.name:
        text = f"Another name of {method.name}, for one model family."
    else:
        text = f"{method.meaning}{_tell_lengths(method)}"
        if not spans:
            origin = f", added by {method.distribution}" if method.distribution else ""
            text += f" No vLLM release has it. It belongs to draftwise's embedded engine{origin}."
    return Explanation(kind="method", name=name, text=text, history=spans, related=_find_rules(name))


def _tell_lengths(method: Method) -> str:
    """Return the acceptance that a healthy drafter of the method reaches, by traffic and k, as somebody measured it."""
    rows = [
        f"{each.length:g} on {each.traffic} at k {each.k} ({each.conditions}; {each.source})"
        for each in method.advice.seen_acceptance
    ]
    return f" Tokens per step to expect, with a drafter trained for the target: {'; '.join(rows)}." if rows else ""


def _find_rules(name: str) -> tuple[VllmRule, ...]:
    return tuple(rule for rule in all_rules().values() if name in _words(f"{rule.title} {rule.explains} {rule.code}"))


def _words(text: str) -> set[str]:
    return set(text.replace("`", " ").replace(",", " ").replace(".", " ").replace(":", " ").split())
