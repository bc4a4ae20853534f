"""Turns windows into ranked diagnoses, with causes confirmed by a config or a log.

The rule of this module: without the reading that distinguishes a cause from similar ones, it names their common parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from draftwise.core import Diagnosis, Severity, Window
from draftwise.knowledge.findings import DiagnosisFact, all_findings, get_finding
from draftwise.watching.diagnose import (
    draft_rules,
    ending_rules,
    gain_rules,
    identity_rules,
    low_acceptance_rules,
    serving_rules,
)
from draftwise.watching.diagnose.outliers import describe_outlier, differ_by_k, find_outliers
from draftwise.watching.diagnose.pool_case import (
    DiagnosisRule,
    PoolCase,
    PoolExpectation,
    RuleMatch,
    SideInfo,
    differ_in_prompts,
    find_missing,
)

RULES: tuple[DiagnosisRule, ...] = (
    *identity_rules.RULES,
    *draft_rules.RULES,
    *low_acceptance_rules.RULES,
    *gain_rules.RULES,
    *serving_rules.RULES,
    *ending_rules.RULES,
)

_OF_ONE = frozenset(
    {
        *("replica-outlier", "rank-silent", "partial-rollout", "fades-with-uptime", "engine-hung"),
        *("revisions-differ", "metrics-differ", "models-differ"),
    }
)
"""Diagnoses of a single engine or replica, which name it themselves."""
_OF_NO_OTHER = frozenset({"drafts-shortened"})
"""Diagnoses that, where they name a server, explain nothing of the others."""
_OF_ILL = frozenset({"queue-grew", "above-crossover"})
"""Diagnoses that follow where an engine is ill: requests stay longer there."""
_OF_PLAIN = frozenset({"requests-fail", "logits-corrupted"})
"""Diagnoses that also apply to the plain pool, because they spoil comparisons with it."""
_OF_PREFILL = _OF_PLAIN | {"engine-hung", "kv-squeeze", "queue-grew"}
"""Diagnoses that apply to prefill servers, which answer one token and hand over."""
_DECIDED = frozenset(rule.code for rule in RULES)
_UNKNOWN_LOSS = {Severity.ERROR: 0.3, Severity.WARNING: 0.1, Severity.INFO: 0.02}
"""Assumed loss for ranking a diagnosis whose loss is unknown."""
_SETTLED_BY = {
    "probe": "draftwise watch {url} --baseline baseline.json --probe",
    "plain": "draftwise watch {url} --plain URL",
    "baseline": "draftwise watch {url} --baseline FILE",
    "curve": "draftwise watch {url} --baseline FILE",
    "config": "draftwise watch {url} --setup FILE",
    "log": "draftwise watch {url} --start-log FILE",
}
"""Command that provides a reading."""


@dataclass(frozen=True, slots=True)
class _Hit:
    code: str
    found: RuleMatch
    certainty: float


def diagnose(
    pools: Mapping[str, Sequence[Window]],
    expected: PoolExpectation | None = None,
    plain: Sequence[Window] = (),
    asked: SideInfo | None = None,
) -> tuple[Diagnosis, ...]:
    """Return what is wrong with pools that should speculate, the most expensive cause first.

    Args:
        pools: windows of each engine, by pool.
        expected: state of the pools at a known good time.
        plain: windows of servers without speculation, over the same period.
        asked: side information that counters do not contain.
    """
    plain_window = Window.pooled(plain)
    found = [
        diagnosis
        for pool, windows in pools.items()
        for diagnosis in _diagnose_pool(
            pool, tuple(windows), expected or PoolExpectation(), plain_window, asked or SideInfo()
        )
    ]
    if plain_window is not None:
        ill = {*_OF_PLAIN, "kv-squeeze"} - {diagnosis.code for diagnosis in found}
        hits = [hit for hit in _apply(PoolCase(windows=tuple(plain))) if hit.code in ill]
        whole = Window.pooled(window for windows in pools.values() for window in windows) if hits else None
        is_like = whole is not None and not differ_in_prompts(whole, plain_window)
        hits = [hit for hit in hits if is_like or hit.code in _OF_PLAIN]
        found += [_write(hit, where=hit.found.where or _name_pool(plain)) for hit in hits]
    return tuple(sorted(found, key=_rank))


def _only_prefills(window: Window) -> bool:
    """Return whether a server ends each answer after a token, as one that hands its KV cache to others does."""
    return window.mean_output_tokens == 1 and not window.counters.spec.num_drafts


def _diagnose_pool(
    pool: str, windows: tuple[Window, ...], expected: PoolExpectation, plain: Window | None, asked: SideInfo
) -> Iterator[Diagnosis]:
    if not windows:
        yield _write(_Hit("scrape-gap", RuleMatch(message=f"The pool {pool} has no data.", loss=0.0), 1.0), where=pool)
        return
    case = PoolCase(windows=windows, expected=expected, plain=plain, asked=asked)
    unlike: dict[str, _Hit] = {}
    match, windows, plain = identity_rules.leave_out_models(windows, plain)
    if match is not None:
        unlike = {"models-differ": _Hit("models-differ", match, 1.0)}
        case = replace(case, windows=windows, plain=plain)
    if not windows:
        yield from (_write(hit, where=hit.found.where) for hit in unlike.values())
        return
    if mute := identity_rules.find_mute(windows):
        # What one engine does not count is unknown of all of them together.
        unlike["metrics-differ"] = _Hit("metrics-differ", identity_rules.describe_mute(mute, windows), 1.0)
        windows = tuple(each for each in windows if each not in mute)
        case = replace(case, windows=windows)
    prefills = tuple(filter(_only_prefills, windows))
    if prefills and len(prefills) < len(windows):
        windows = tuple(each for each in windows if each not in prefills)
        case = replace(case, windows=windows)
        name = prefills[0].instance
        of_them = [hit for hit in _apply(PoolCase(windows=prefills)) if hit.code in _OF_PREFILL]
        unlike |= {hit.code: replace(hit, found=replace(hit.found, where=hit.found.where or name)) for hit in of_them}
    hits = unlike | {hit.code: hit for hit in _apply(case)}
    if ill := find_outliers(windows, case.expected.yardstick):
        # What is said of the pool is said of the rest: one engine's illness is neither traffic nor configuration.
        rest = replace(case, windows=tuple(each for each in windows if each not in ill))
        names = {each.instance for each in ill}
        hits = {code: hit for code, hit in hits.items() if code in _OF_ONE or _stays(hit, names)} | {
            hit.code: hit for hit in _apply(rest)
        }
        if not any(hit.found.where for code, hit in hits.items() if code in _OF_ONE and code not in unlike):
            match = describe_outlier(ill, rest.windows)
            hits = {"replica-outlier": _Hit("replica-outlier", match, 1.0)} | hits
    hits |= {hit.code: hit for hit in _confirm(case, hits)}
    is_by_k = differ_by_k(ill, [each for each in windows if each not in ill])
    explained = _find_explained(hits, set() if is_by_k else {("k-changed", "replica-outlier")})
    for hit in hits.values():
        diagnosis = replace(_write(hit, where=hit.found.where or pool), follows_from=explained.get(hit.code, ""))
        yield diagnosis if diagnosis.follows_from else _add_candidates(diagnosis, case, hits, hit.found.excludes)


def _name_pool(windows: Sequence[Window]) -> str:
    """Return the only server of some windows, else their pool."""
    return windows[0].instance if len({each.instance for each in windows}) == 1 else windows[0].pool


def _stays(hit: _Hit, ill: Collection[str]) -> bool:
    """Return whether what is said of one server is more than that requests queue where the engine is ill."""
    return bool(hit.found.where) and not (hit.code in _OF_ILL and hit.found.where in ill)


def _apply(case: PoolCase) -> Iterator[_Hit]:
    """Yield what holds, of the rules whose readings are at hand."""
    for rule in _list_rules(case.readings):
        if (found := rule.find(case)) is not None:
            yield _Hit(rule.code, found, rule.certainty)


@cache
def _list_rules(readings: frozenset[str]) -> tuple[DiagnosisRule, ...]:
    return tuple(rule for rule in RULES if not find_missing(readings, tuple(_get_row(rule.code).needs)))


def _confirm(case: PoolCase, hits: Mapping[str, _Hit]) -> Iterator[_Hit]:
    """Yield the causes, of what holds, that the setup's findings or the log confirm."""
    for hit in hits.values():
        for code in _list_causes(hit.code):
            row = _get_row(code)
            is_open = code not in hits and code not in _DECIDED and not case.find_missing(row.needs)
            proof = case.asked.find_proof(row) if is_open else None
            if proof is not None:
                message = f"{get_finding(code).title}. {hit.found.message}"
                evidence = (proof, *hit.found.evidence)
                yield _Hit(code, replace(hit.found, message=message, evidence=evidence), hit.certainty)


def _find_explained(hits: Mapping[str, _Hit], apart: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return the codes that follow from others, with the one that explains each: the most costly of those that do.

    Args:
        hits: what holds, by code.
        apart: pairs of which the first explains the second elsewhere, but not here.
    """
    by_cost = sorted(hits.values(), key=lambda hit: _rank(_write(hit)))
    explained: dict[str, str] = {}
    for hit in by_cost:
        row = _get_row(hit.code)
        for code in {row.parent, *row.consequences} & hits.keys():
            is_elsewhere = hit.code in _OF_NO_OTHER and hit.found.where not in ("", hits[code].found.where)
            if not is_elsewhere and (hit.code, code) not in apart and explained.get(hit.code) != code:
                explained.setdefault(code, hit.code)
    return explained


def _add_candidates(
    diagnosis: Diagnosis, case: PoolCase, hits: Mapping[str, _Hit], excludes: frozenset[str]
) -> Diagnosis:
    """Return a diagnosis with the causes that the readings at hand leave open, and the command that tells most."""
    missing: dict[str, tuple[str, ...]] = {}
    excluded = excludes.union(case.find_excluded())
    for code in _list_causes(diagnosis.code):
        row = _get_row(code)
        lacks = case.find_missing(row.needs)
        can_be_told = code in _DECIDED or bool(row.confirmed_by or row.logged)
        is_out = code in excluded or row.parent in excluded
        if code not in hits and not is_out and (lacks or not can_be_told):
            missing[code] = lacks
    suspects = [
        row for code in (diagnosis.code, *_list_causes(diagnosis.code)) for row in case.asked.suspects.get(code, ())
    ]
    commands = Counter(command for lacks in missing.values() for command in _list_commands(lacks))
    url = name if (name := case.windows[0].instance).startswith("http") else "URL"
    asks = [text for need, text in _get_row(diagnosis.code).asks.items() if need not in case.readings]
    return replace(
        diagnosis,
        fix=" ".join([*asks, diagnosis.fix]),
        candidates=(*dict.fromkeys(suspects), *sorted(missing, key=lambda code: len(missing[code]))),
        settles=commands.most_common(1)[0][0].format(url=url) if commands else "",
    )


def _list_commands(needs: Sequence[str]) -> set[str]:
    """Return the commands that bring readings, of alternatives the first."""
    firsts = (next((each for each in need.split(" or ") if each in _SETTLED_BY), "") for need in needs)
    return {_SETTLED_BY[first] for first in firsts if first}


def _write(hit: _Hit, *, where: str = "") -> Diagnosis:
    fact, row = get_finding(hit.code), _get_row(hit.code)
    return Diagnosis(
        code=hit.code,
        severity=fact.severities[0],
        message=hit.found.message,
        where=where,
        fix=hit.found.fix or fact.fix,
        source=row.source,
        evidence=hit.found.evidence,
        loss=None if hit.found.loss is None else round(max(hit.found.loss, 0.0), 4),
        certainty=hit.certainty,
    )


def _rank(diagnosis: Diagnosis) -> tuple[bool, float]:
    """Return the key of the order: what nothing else explains first, and of that what costs most."""
    loss = _UNKNOWN_LOSS[diagnosis.severity] if diagnosis.loss is None else diagnosis.loss
    return bool(diagnosis.follows_from), -loss * diagnosis.certainty


def _get_row(code: str) -> DiagnosisFact:
    row = get_finding(code).diagnosis
    if row is None:
        raise KeyError(code)
    return row


@cache
def _list_causes(code: str) -> tuple[str, ...]:
    """Return the codes below one, its children first, in the order of the registry."""
    children = [
        fact.code for fact in all_findings().values() if fact.diagnosis is not None and fact.diagnosis.parent == code
    ]
    return (*children, *(below for child in children for below in _list_causes(child)))
