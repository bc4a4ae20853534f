"""Predicts how a vLLM release treats a setup: every finding at once, and the resolved speculative config.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from draftwise.core import (
    CheckOutcome,
    Device,
    Effect,
    Finding,
    InvalidSetup,
    Ruling,
    Setup,
    Severity,
    SpecConfig,
    Stage,
)
from draftwise.core.finding import join_names
from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.memory_overheads import list_tiers
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.rules import all_rules, find_doubts, get_rule, of_release
from draftwise.knowledge.validators import list_conditions
from draftwise.knowledge.vllm import Release, find_remarks, get_release
from draftwise.plan.check.check_report import Report, Resolved
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.engine import configure
from draftwise.plan.check.engine.step_budget import find_gpu
from draftwise.plan.check.known_defects import (
    contradicts,
    find_defects,
    find_met,
    find_met_by_plugin,
    find_on_some_gpus,
)
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.stages import Context, run

if TYPE_CHECKING:
    from draftwise.setups.read import SetupReading

__all__ = ["Context", "Report", "Resolved", "check", "check_context", "get_context", "judge"]

_WAITS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "target-not-here": ("target",), "drafter-not-here": ("drafter", "weights"), "depends-on-gpu": ("gpu",),
})  # fmt: skip
"""Findings that say what was not given, and the inputs that rules then wait for."""


def check(setup: Setup, *, installed: frozenset[str] | None = None, nearest: bool = False) -> Report:
    """Return how the setup's vLLM release treats it.

    A target or drafter that is neither a directory here nor in the table of known models is judged only by its name.

    Args:
        setup: the setup to judge.
        installed: optional Python packages that the server has, by their names on the index; None if unknown.
        nearest: whether to judge an unknown release by the nearest known one; the report says so.

    Raises:
        InvalidSetup: the release is unknown.
    """
    release = get_release(setup.engine_version or "newest", nearest=nearest)
    return check_context(get_context(setup, release, installed=installed))


def check_context(context: Context) -> Report:
    """Return how the release treats a setup that was already looked up.

    If a table of the release is missing, earlier findings stay, and the rest is not judged.
    """
    release = context.release
    findings: list[Finding] = []

    def tell(*found: Finding) -> None:
        findings[:] = dict.fromkeys((*findings, *(of_release(each, release) for each in found)))

    tell(*find_remarks(release), *find_doubts(release), *context.rulings)
    resolved: Resolved | None = None
    met: tuple[Defect, ...] = ()
    is_judged = True
    try:
        context, resolved = run(configure(context), tell)
        if not _find_stages(findings):
            tell(*_judge_tiers(context))
        if rejected := _find_stages(findings):
            resolved = None
            findings = [each for each in findings if not _never_comes(each, rejected)]
        elif resolved is not None:
            resolved = _forget_doubted(resolved, findings)
            met, possible = find_met(context, resolved)
            tell(*(each for each in find_serving(context, resolved) if not contradicts(each, possible)))
            tell(*find_defects(context, met, findings))
            tell(*find_on_some_gpus(context, resolved, possible))
        elif any(each.code == "plugin-reads-config" for each in findings):
            met = tuple(find_met_by_plugin(context))
            tell(*find_defects(context, met, findings))
    except MissingFacts as gap:
        tell(*gap.findings)
        is_judged = False
    report = _report(release, context.setup, findings, resolved, is_judged=is_judged)
    missing = [name for each in findings for name in _WAITS.get(each.code, ())]
    method = context.keys.get("method") if resolved is None else resolved.method
    count = partial(context.rules.count_waiting, method=method, drafts="model" in context.keys)
    waiting = sum(each.code == "refusal-waits" for each in findings)
    unchecked = {name: count(name) for name in missing} | ({"server": waiting} if waiting else {})
    return replace(report, unchecked=unchecked, defects=met)


def _find_stages(findings: Iterable[Finding]) -> Set[Stage]:
    return {each.stage for each in findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED}


def _judge_tiers(context: Context) -> Iterator[Ruling]:
    """Yield what stops a server whose GPU is not known: on every GPU, or on those that default to certain batches."""
    open_sizes = not {"max_num_batched_tokens", "max_num_seqs"} <= context.given.keys()
    if context.platform == "cpu" or context.runs_on_v0 or not open_sizes or find_gpu(context) is not None:
        return
    tiers = list_tiers(context.release)
    stops = {words: [*_find_stops(_on_gpu(context, gpu))] for words, gpu in tiers.items()}
    refused = [words for words, found in stops.items() if found]
    if not refused:
        return
    last = stops[refused[-1]]
    if len(refused) == len(tiers):
        yield from (
            replace(each, message=f"This fails on every GPU. On {refused[-1]}: {each.message}") for each in last
        )
    else:
        fine = join_names(words for words in tiers if words not in refused)
        fault = " ".join(dict.fromkeys(each.message for each in last))
        yield from context.rules.ruling("depends-on-gpu", fine=fine, refused=join_names(refused), fault=fault)


def _on_gpu(context: Context, gpu: Gpu) -> Context:
    count = 1 if context.setup.device is None else context.setup.device.count
    device = Device(name=gpu.name, kind="cuda", count=count, memory_bytes=gpu.memory_bytes)
    return replace(context, setup=replace(context.setup, device=device))


def _find_stops(context: Context) -> Iterator[Ruling]:
    found: list[Ruling] = []
    run(configure(context), found.append)
    yield from (each for each in found if "gpu" in get_rule(each.code).reads and each.severity is Severity.ERROR)


def _forget_doubted(resolved: Resolved, findings: Iterable[Finding]) -> Resolved:
    """Return the config without the values that rest on rules of which nobody knows whether they still hold."""
    unknown = {each.code for each in findings if _is_unknown(each)}
    rules = (all_rules()[code] for code in unknown & all_rules().keys())
    nothing: dict[str, Any] = {name: None for rule in rules for name in rule.decides}
    return replace(resolved, **nothing)


def _report(
    release: Release, setup: Setup, findings: Iterable[Finding], resolved: Resolved | None, *, is_judged: bool
) -> Report:
    return Report(
        version=str(release),
        asked="" if release.is_same else release.asked,
        setup=setup,
        findings=tuple(findings),
        resolved=resolved,
        is_judged=is_judged,
    )


def _never_comes(finding: Finding, rejected: Set[Stage]) -> bool:
    """Say whether a finding is about what an engine config changes that is not made: a config before it is refused."""
    changes = isinstance(finding, Ruling) and finding.stage is Stage.ENGINE and finding.effect is Effect.CHANGED
    return changes and not rejected.isdisjoint({Stage.CLI, Stage.CONFIG})


def judge(
    reading: SetupReading,
    *,
    installed: frozenset[str] | None = None,
    nearest: bool = False,
    look_further: Callable[[Report], Iterable[Finding]] | None = None,
) -> Report:
    """Return the report on a setup as it was read: findings of the reading, then how the release treats it.

    A setup that is only partly known gets only the findings of the reading. An unknown release is a finding here, so
    that it hides no other setup of the same text. If the text starts the server in several ways, the report is that of
    one that works, and names the others: it is rejected only if every way fails, accepted only if no way is unknown
    and none fails for which its caller need set nothing.

    Args:
        reading: the setup as it was read.
        installed: optional Python packages that the server has, by their names on the index; None if unknown.
        nearest: whether to judge an unknown release by the nearest known one; the report says so.
        look_further: adds findings to the report of each way.
    """
    ways = [(each, _judge_way(each, installed, nearest=nearest)) for each in (reading, *reading.others)]
    if all(each.outcome is CheckOutcome.REJECTED for _, each in ways):
        opened = [way.if_set for way, _ in ways if way.if_set is not None]
        ways += [(each, _judge_way(each, installed, nearest=nearest)) for each in opened]
    if look_further is not None:
        ways = [(way, replace(each, findings=(*each.findings, *look_further(each)))) for way, each in ways]
    shown, report = max(ways, key=lambda way: _rank(way[1]))
    if len(ways) == 1:
        return report
    told = [each for way, judged in ways if way is not shown for each in _tell_way(way, judged, report, usual=reading)]
    told.sort(key=lambda each: [*Severity].index(each.severity))
    waits = {name: count for _, each in ways if each.accepted is None for name, count in each.unchecked.items()}
    return replace(report, findings=(*report.findings, *told[:_MOST_WAYS]), unchecked={**waits, **report.unchecked})


_MOST_WAYS = 8


def _is_unknown(finding: Finding) -> bool:
    return isinstance(finding, Ruling) and finding.effect is Effect.UNKNOWN


def _rank(report: Report) -> int:
    """Return how much of a setup works: nothing, only its start, what nobody can say, or all of it."""
    return ["rejected", "fails later", "cannot be judged", "not judged", "accepted"].index(report.outcome)


def _tell_way(way: SetupReading, judged: Report, shown: Report, *, usual: SetupReading) -> Iterator[Finding]:
    """Yield what a reader must know of another way than the shown one. One open only for some callers is no error."""
    path = way.path or "no other variable is set"
    if judged.outcome is CheckOutcome.ACCEPTED:
        yield get_rule("other-on-a-way").ruling(path=path, changes=_compare(judged.setup, shown.setup), where=way.where)
    elif _rank(judged) < _rank(shown):
        deviates = way.launch is not None and bool(way.launch.deviations)
        is_of_caller = judged.outcome is CheckOutcome.NOT_JUDGED or deviates
        code = "not-judged-on-a-way" if is_of_caller else "unknown-on-a-way"
        fails = judged.accepted is not None
        why = min(judged.findings, key=lambda each: (each.severity is not Severity.ERROR, _is_unknown(each) is fails))
        ruling = get_rule("fails-on-a-way" if fails else code).ruling(
            path=path, why=why.message, where=why.where, fix=why.fix
        )
        yield ruling if deviates and way is not usual else replace(ruling, effect=Effect.UNKNOWN)


def _compare(setup: Setup, shown: Setup) -> list[str]:
    fields: list[tuple[str, object, object]] = [
        ("the target", setup.target, shown.target),
        ("vLLM", setup.engine_version, shown.engine_version),
        *_pair(setup.args, shown.args),
        *_pair(setup.spec.to_dict() if setup.spec else {}, shown.spec.to_dict() if shown.spec else {}),
        *_pair(setup.env, shown.env),
    ]
    changed = [f"{name} is {_show(name, one)}" for name, one, other in fields if one != other]
    return changed or ["other words of the command"]


def _show(name: str, value: object) -> str:
    if value is None:
        return "not set"
    return "another" if name in _SECRET else str(value)[:60]


_SECRET = frozenset({"api_key", "hf_token", "ssl_keyfile_password"})
"""Arguments whose values nobody may read in a report."""


def _pair(one: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    return [(name, one.get(name), other.get(name)) for name in dict.fromkeys((*one, *other))]


_TRIED: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "bool": (False, True), "int": (1, 2, 3, 8, 512, 8192, 262144), "float": (0.5, 0.95),
})  # fmt: skip
"""Values that stand for all of a type, where a flag names no choices."""
_ANY_MODEL = "a/model"
_ANY_TEXT = "a-text"
_TRIED_VARIABLES = ("0", "1")


def _try_values(reading: SetupReading, release: Release) -> Iterator[Setup]:
    """Yield the setup with several values of its unknown parts: what is the same for all does not depend on them.

    An unknown model is one that nobody has seen. Yield nothing where the values of an unknown part are too many.
    """
    setup = replace(reading.setup, target=_ANY_MODEL) if "model" in reading.unknown else reading.setup
    values = {name: _list_tried(name, release) for name in reading.unknown.keys() - {"model"}}
    if not all(values.values()):
        return
    for turn in range(max(map(len, values.values()), default=0) + 1):
        chosen = {
            name: (None, *some)[(turn + shift) % (len(some) + 1)] for shift, (name, some) in enumerate(values.items())
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        spec, env = given.pop(_SPEC, None), {name: given.pop(name) for name in [*given] if name.startswith("VLLM_")}
        spec = setup.spec if _SPEC not in values else None if spec is None else SpecConfig.keep(spec)
        yield replace(setup, spec=spec, env={**setup.env, **env}, args={**setup.args, **given})


_SPEC = "speculative_config"


def _list_tried(name: str, release: Release) -> tuple[Any, ...]:
    """Return values that stand for all of an argument or a variable; nothing where none can."""
    if name == _SPEC:
        common = {"num_speculative_tokens": 3}
        drafters = {name: {"model": _ANY_MODEL} if each.has_weights else {} for name, each in methods_where().items()}
        return tuple({"method": name, **drafter, **common} for name, drafter in drafters.items())
    if name.startswith(("VLLM_USE_", "VLLM_ALLOW_")):
        return _TRIED_VARIABLES
    if name in ("VLLM_ATTENTION_BACKEND", "attention_backend"):
        return tuple(release.table("attention_backends"))
    row: Mapping[str, Any] = next((row for row in release.table("flags").values() if row["field"] == name), {})
    kind = str(row.get("type"))
    if some := row.get("choices") or _TRIED.get(kind.partition(" |")[0], ()):
        return tuple(some)
    if row.get("kind") == "json":
        return ({},)
    if row.get("kind") != "value" or not any(each in kind for each in ("str", "parse_")):
        return ()
    texts = (text for each in list_conditions() if name in each.when for text in _TEXTS.findall(each.when))
    return tuple(dict.fromkeys((_ANY_TEXT, *row.get("suggestions", ()), *texts)))[:_MOST_TEXTS]


def _list_rows(reading: SetupReading, release: Release) -> list[Mapping[str, Any]]:
    """Return the rows of the unknown flags but the speculative JSON, of whose values enough are tried."""
    unknown = reading.unknown.keys() - {_SPEC}
    return [row for row in release.table("flags").values() if row["field"] in unknown]


_OF_ONE_VALUE = frozenset({"config-value", "bad-flag-value", "not-a-choice"})
"""Refusals of one value by itself, which nothing in the JSON of another flag can change."""
_TEXTS = re.compile(r"'([^'\s]{1,40})'")
_MOST_TEXTS = 40


def _find_common(tried: Sequence[Report]) -> list[Finding]:
    """Return what does not depend on the values that were tried.

    A refusal holds for all if every setup without it is refused for its own value, and two setups at least show it.
    """
    stops = [{*filter(_stops, each.findings)} for each in tried]
    everywhere = [each for each in tried[0].findings if all(each in other.findings for other in tried)]
    shared = dict.fromkeys(each for found in stops for each in found)
    for ruling in shared:
        holds = [found for found in stops if ruling in found]
        others = [found for found in stops if ruling not in found]
        if len(holds) > 1 and all(any(own not in found for found in holds for own in other) for other in others):
            everywhere.append(ruling)
    return [each for each in dict.fromkeys(everywhere) if not _is_unknown(each)]


def _stops(finding: Finding) -> bool:
    return isinstance(finding, Ruling) and finding.effect is Effect.REJECTED


def _judge_way(reading: SetupReading, installed: frozenset[str] | None, *, nearest: bool) -> Report:
    setup = reading.setup
    if not setup.engine_version and not reading.unknown and "vllm-ascend" in (installed or ()):
        gap = get_rule("plugin-release-open").ruling(sign="vllm-ascend")
        reading = replace(reading, unknown={"engine_version": gap}, findings=(*reading.findings, gap))
    about: Any = {
        "installed": installed, "shown": reading.packages, "origins": reading.origins, "flag_keys": reading.flag_keys
    }  # fmt: skip
    try:
        release = get_release(setup.engine_version or "newest", nearest=nearest)
        if reading.unknown:
            report = _report(release, setup, find_remarks(release), None, is_judged=False)
            report = replace(report, version="") if "engine_version" in reading.unknown else report
            tried = [check_context(get_context(each, release, **about)) for each in _try_values(reading, release)]
            common = _find_common(tried) if tried else ()
            if any(row["kind"] == "json" for row in _list_rows(reading, release)):
                common = [each for each in common if each.code in _OF_ONE_VALUE]
            report = replace(report, findings=tuple(dict.fromkeys((*report.findings, *common))))
        else:
            context = get_context(setup, release, **about)
            report = check_context(context)
    except InvalidSetup as error:
        findings = (*reading.findings, *error.findings)
        return Report(version=setup.engine_version, setup=setup, findings=findings, resolved=None, is_judged=False)
    told = (of_release(each, release) for each in reading.findings)
    return replace(report, findings=(*told, *report.findings))
