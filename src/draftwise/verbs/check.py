"""`check`: predicts how a vLLM release treats a speculative config, before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, replace
from itertools import chain
from typing import ClassVar

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Severity, Stage
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import note
from draftwise.knowledge.validators import list_asked_packages, name_package
from draftwise.knowledge.vllm import releases
from draftwise.plan.check import Report, judge
from draftwise.plan.check.stages import WHOLE_LIST
from draftwise.setups.read import SourceText
from draftwise.verbs.judgements import FailOn, Judgement, Judgements
from draftwise.verbs.model_configs import open_configs
from draftwise.verbs.sources import FoundSetups, JudgedRequest, find_sources, open_release
from draftwise.verbs.verb import refuse, verb

_NO_GPU = ("no-gpu", "unknown-gpu")
_PACKAGE = re.compile(r"([a-z0-9][\w.-]*)\s*([\[=<>!~;@].*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CheckRequest(JudgedRequest):
    """Setups to judge, and the releases to judge them by."""

    _: KW_ONLY
    vllm: str | Sequence[str] = ()
    """Releases; `all` for every known one. Default: the one that a source names, else the newest."""
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""
    installed: Iterable[str] | None = None
    """Optional packages that the server has, e.g. `arctic-inference`; None if unknown."""
    fail_on: FailOn = "error"
    """What gives exit code 1: `error`; `unknown` adds setups not judged in full, `warning` also warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult(Judgements):
    """Every judgement, by release and source."""

    VERB: ClassVar[str] = "check"
    judgements: tuple[Judgement, ...]
    skipped: tuple[str, ...] = ()
    """Files that start no vLLM server."""
    fail_on: FailOn = "error"


@verb(CheckRequest)
def check(request: CheckRequest, _progress: Progress) -> CheckResult:
    """Predict whether vLLM accepts, rejects or silently changes a setup, or fails later, with a fix for each problem.

    Loads nothing. Downloads only the config.json and the weights' index that `hub` or `config_from` request.
    """
    sources = find_sources(request)
    asked = [request.vllm] if isinstance(request.vllm, str) else list(request.vllm)
    versions = [str(release) for release in releases()] if "all" in asked else asked
    for version in versions:
        open_release(version, nearest=request.nearest)
    found = [sources.read(version) for version in versions or (None,)]
    installed = None if request.installed is None else _name_packages(request.installed)
    with open_configs(chain.from_iterable(one.setups for one in found), request.config_from, hub=request.hub):
        first, *others = ([*_judge(one, installed, nearest=request.nearest)] for one in found)
    first += (Judgement.of(report, where=name) for name, report in found[0].unread)
    first += _judge_objects(sources.texts, first)
    return CheckResult(
        judgements=(*first, *chain.from_iterable(others)), skipped=found[0].skipped, fail_on=request.fail_on
    )


def _judge(found: FoundSetups, installed: frozenset[str] | None, *, nearest: bool) -> Iterator[Judgement]:
    for reading in found.readings:
        report = judge(reading, installed=installed, nearest=nearest, look_further=_find_lack)
        yield Judgement.of(report, where=reading.where)


def _find_lack(report: Report) -> Iterator[Finding]:
    """Yield whether the memory of a known GPU is too small for a setup that vLLM would accept."""
    device = report.setup.device
    if not report.accepted or device is None or device.kind != "cuda":
        return
    from draftwise.plan.size import size  # most calls name no GPU

    try:
        found = size(report.setup).findings
    except InvalidSetup as error:
        if (why := error.findings[0]).code not in _NO_GPU:
            yield note("memory-not-judged", why=why.message, where=why.where)
        return
    for each in found:
        if each.code == "does-not-fit":
            yield Ruling(**asdict(each), effect=Effect.FAILS_LATER, stage=Stage.START_UP)
        elif each.code == "out-of-memory-ahead":
            yield each


def _name_packages(given: Iterable[str]) -> frozenset[str]:
    """Return names of packages as the index writes them, without versions."""
    named = {each: _PACKAGE.fullmatch(each) for each in map(str.strip, given) if each}
    if wrong := next((each for each, match in named.items() if match is None), None):
        refuse(f"{wrong!r} is not a package; write name or name==version.", where="--installed")
    names = frozenset(name_package(match[1]) for match in named.values() if match)
    from difflib import get_close_matches  # most calls name no package

    known = list_asked_packages()
    unknown = {each for each in names - known if not any(each.startswith(f"{name}-") for name in known)}
    is_list = unknown != names or not names.isdisjoint(WHOLE_LIST)
    odd = [each for each in unknown if not is_list or get_close_matches(each, known, cutoff=0.8)]
    if odd:
        refuse(f"No rule asks for {min(odd)!r}. Packages that count: {', '.join(sorted(known))}.", where="--installed")
    return names


def _judge_objects(texts: Sequence[SourceText], judged: Sequence[Judgement]) -> Iterator[Judgement]:
    """Yield what an API server would refuse or drop of objects, where no finding has said it yet.

    All of it is a warning: which release of Kubernetes or of a project takes the objects is unknown here.
    """
    said = " ".join(finding.where or "" for each in judged for finding in each.findings)
    for text in texts:
        if "apiVersion" in text.text and (text.is_chosen or text.may_start_vllm):
            found = [each for each in _find_refused(text) if (each.where or "").rpartition(" ")[2] not in said]
            if found:
                from draftwise.deploying.verify.manifest_files import report_of

                yield Judgement.of(report_of(*found), where=text.name, verdict="may not be taken whole")


def _find_refused(text: SourceText) -> Iterator[Finding]:
    from draftwise.deploying.api_server import validate_text

    with suppress(InvalidSetup):  # not YAML: whoever reads it says so
        for finding in validate_text(text.text, name=text.name):
            yield replace(finding, severity=Severity.WARNING)
