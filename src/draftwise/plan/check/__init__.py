"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from draftwise.core import Device, Effect, Finding, InvalidSetup, Ruling, Setup, Severity, Stage
from draftwise.core.finding import join_names
from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.memory_overheads import list_tiers
from draftwise.knowledge.rules import find_doubts, get_rule, of_release
from draftwise.knowledge.vllm import Release, find_remarks, get_release
from draftwise.plan.check.check_report import Report, Resolved
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.engine import configure
from draftwise.plan.check.engine.step_budget import find_gpu
from draftwise.plan.check.known_defects import contradicts, find_defects, find_met
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
    """Return what the setup's vLLM release makes of it.

    Of a target or drafter that is neither a directory here nor in the table of known models only the name is judged.

    Args:
        setup: what the operator wrote.
        installed: optional Python packages that the server has, by their names on the index; None: not known.
        nearest: judges by the nearest known release where the setup's own is not known; the report says so.

    Raises:
        InvalidSetup: the release is not known.
    """
    release = get_release(setup.engine_version or "newest", nearest=nearest)
    return check_context(get_context(setup, release, installed=installed))


def check_context(context: Context) -> Report:
    """Return what the release makes of a setup that was looked up before.

    Where a table of the release is missing, what was found until then stays, and the rest is not judged.
    """
    release = context.release
    findings: list[Finding] = []

    def tell(*found: Finding) -> None:
        findings.extend(of_release(each, release) for each in found)

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
            met = tuple(find_met(context, resolved))
            tell(*(each for each in find_serving(context, resolved) if not contradicts(each, met)))
            tell(*find_defects(context, met, findings))
    except MissingFacts as gap:
        tell(*gap.findings)
        is_judged = False
    report = _report(release, context.setup, findings, resolved, is_judged=is_judged)
    missing = [name for each in findings for name in _WAITS.get(each.code, ())]
    method = context.keys.get("method") if resolved is None else resolved.method
    count = partial(context.rules.count_waiting, method=method, drafts="model" in context.keys)
    return replace(report, unchecked={name: count(name) for name in missing}, defects=met)


def _find_stages(findings: Iterable[Finding]) -> Set[Stage]:
    """Return the stages that reject the setup."""
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
        yield from (replace(each, message=f"On every GPU. On {refused[-1]}: {each.message}") for each in last)
    else:
        fine = join_names(words for words in tiers if words not in refused)
        fault = " ".join(dict.fromkeys(each.message for each in last))
        yield from context.rules.ruling("depends-on-gpu", fine=fine, refused=join_names(refused), fault=fault)


def _on_gpu(context: Context, gpu: Gpu) -> Context:
    count = 1 if context.setup.device is None else context.setup.device.count
    device = Device(name=gpu.name, kind="cuda", count=count, memory_bytes=gpu.memory_bytes)
    return replace(context, setup=replace(context.setup, device=device))


def _find_stops(context: Context) -> Iterator[Ruling]:
    """Yield what stops a server, of what depends on its batch sizes."""
    found: list[Ruling] = []
    run(configure(context), found.append)
    yield from (each for each in found if "gpu" in get_rule(each.code).reads and each.severity is Severity.ERROR)


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


def judge(reading: SetupReading, *, installed: frozenset[str] | None = None, nearest: bool = False) -> Report:
    """Return the report on a setup as it was read: what the reading found, then what the release makes of it.

    Of a setup that is not known in whole, only what the reading found is said. A release that is not known is a finding
    here, so that it hides no other setup of the same text.
    """
    setup = reading.setup
    try:
        release = get_release(setup.engine_version or "newest", nearest=nearest)
        if reading.unknown:
            report = _report(release, setup, find_remarks(release), None, is_judged=False)
        else:
            report = check_context(get_context(setup, release, installed=installed, origins=reading.origins))
    except InvalidSetup as error:
        findings = (*reading.findings, *error.findings)
        return Report(version=setup.engine_version, setup=setup, findings=findings, resolved=None, is_judged=False)
    told = (of_release(each, release) for each in reading.findings)
    return replace(report, findings=(*told, *report.findings))
