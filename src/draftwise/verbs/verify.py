"""`verify`: compares files, or a running server, with the decided and ordered setup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import Baseline, InvalidSetup, Setup, Severity
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.deploying.verify.manifest_files import find_ordered, read_setup, report_of, verify_folder, verify_text
from draftwise.plan.check import Report
from draftwise.setups.read import SourceText, find_texts, read_stdin
from draftwise.verbs.field_types import Range
from draftwise.verbs.judgements import FailOn, Judgement, Judgements
from draftwise.verbs.request_headers import Header, read_headers
from draftwise.verbs.verb import refuse, verb


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Files, a server, a log or objects, and the setup to compare them with.

    Give `-` to read a source from standard input.
    """

    source: str | PathLike[str] | None = None
    """Folder of `deploy`, a manifest, or the URL of a server."""
    _: KW_ONLY
    setup: Setup | str | PathLike[str] | None = None
    """Setup that was ordered; default: setup.json in the folder of the source."""
    select: str = ""
    """Container, object or service to compare, if the file has several."""
    returned: str | PathLike[str] | None = None
    """Output of `kubectl apply --dry-run=server -o json` for the source, to find dropped fields."""
    against: str | None = None
    """URL of a server without speculation, whose outputs should be the same."""
    answers: bool = False
    """Whether to compare answers with cached prefixes, tools, a JSON schema and long contexts with `against`."""
    expected: Annotated[float, Range(1)] | None = None
    """Tokens per step of an earlier probe; fewer are an error."""
    baseline: Baseline | str | PathLike[str] | None = None
    """Baseline with earlier answers to the probe, to tell whether engine and drafter are the same."""
    prompts: Annotated[int, Range(3, 60)] = 24
    """Prompts of the probe, 64 output tokens each, at temperature 0."""
    headers: Sequence[Header | str] = ()
    """Headers for the URLs; ${VARIABLE} stands for an environment variable."""
    key_variables: Sequence[str] = ()
    """Environment variables that hold the API key of the URLs."""
    log: str | PathLike[str] | None = None
    """Start-up log of vLLM."""
    kubectl: str | PathLike[str] | None = None
    """Output of `kubectl get pod NAME -o yaml`."""
    gpu: str | None = None
    """GPU, such as H200, if the source does not name it."""
    fail_on: FailOn = "error"
    """What gives exit code 1: `error`; `unknown` adds setups not judged in full, `warning` also warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Judgements):
    """Every difference from what was ordered."""

    VERB: ClassVar[str] = "verify"
    judgements: tuple[Judgement, ...]
    fail_on: FailOn = "error"
    commands: tuple[tuple[str, str], ...] = field(default=(), metadata=HIDDEN)
    """Commands that show more about the objects: (purpose, command)."""


@verb(VerifyRequest)
def verify(request: VerifyRequest, _progress: Progress) -> VerifyResult:
    """List every difference between a source and what was ordered.

    For a folder that `deploy` wrote, checks the checksums, then reads back, judges and sizes both twins. Sends a server
    a few prompts. Reports what it cannot see as unknown.
    """
    source = None if request.source is None else str(request.source)
    if source is None and request.log is None and request.kubectl is None:
        refuse("Give a folder, a manifest, the URL of a server, --log or --kubectl.")
    is_file = source is not None and not source.startswith(("http://", "https://")) and not Path(source).is_dir()
    if not is_file and (request.select or request.returned is not None):
        refuse("--select and --returned apply to a single file: give it as SOURCE.")
    judged: list[Judgement] = []
    if source is not None and source.startswith(("http://", "https://")):
        judged += _see_server(source, request)
    elif request.answers or request.against is not None or request.expected is not None or request.baseline is not None:
        refuse("--against, --answers, --expected and --baseline judge a server: give its URL as SOURCE.")
    elif source is not None:
        judged += _judge(source, request)
    if request.log is not None:
        judged.append(_read_log(request.log, _get_setup(request)))
    commands: list[tuple[str, str]] = []
    if request.kubectl is not None:
        found, commands = _read_objects(request.kubectl, _get_setup(request))
        judged += found
    return VerifyResult(judgements=tuple(judged), fail_on=request.fail_on, commands=tuple(commands))


def _judge(source: str, request: VerifyRequest) -> Iterator[Judgement]:
    if Path(source).is_dir():
        if request.setup is not None:
            refuse("A folder has its own setup: leave --setup out, or give a single file of it.")
        for where, report in verify_folder(Path(source), gpu=request.gpu):
            yield _describe(where, report, "as it was written")
        return
    text = _open(source)
    setup = find_ordered(Path(source)) if request.setup is None else _get_setup(request)
    if setup is None and request.returned is None:
        refuse(f"No setup.json is next to {source}. Give the setup with --setup.")
    if setup is not None:
        for index in _find_servers(text, setup, request.select):
            report = verify_text(text, setup, gpu=request.gpu, index=index)
            yield _describe(text.name, report, "as it was ordered")
    if request.returned is not None:
        yield _describe(text.name, _compare(text, request.returned), "came back whole")


def _find_servers(text: SourceText, setup: Setup, select: str) -> Iterable[int | None]:
    """Return the indices of the servers that are meant, one for each setup; None where the text decides."""
    from draftwise.deploying.edit import choose_server

    try:
        chosen, readings = choose_server(text, select, engine_version=setup.engine_version)
    except InvalidSetup:
        if select:
            raise
        return (None,)
    return {repr(readings[index].setup): index for index in chosen}.values()


def _get_setup(request: VerifyRequest) -> Setup:
    if request.setup is None:
        refuse("Give the setup that it should have, such as --setup deploy/setup.json.")
    return request.setup if isinstance(request.setup, Setup) else read_setup(Path(request.setup))


def _see_server(url: str, request: VerifyRequest) -> Iterator[Judgement]:
    if request.answers and request.against is None:
        refuse("--answers compares with a plain server: name it with --against.")
    if request.setup is not None or not request.answers:
        yield _probe(url, _get_setup(request), request)
    if request.answers and request.against is not None:
        yield _check_answers(url, request.against, request)


def _check_answers(url: str, against: str, request: VerifyRequest) -> Judgement:
    import secrets

    from draftwise.backends.url import UrlBackend
    from draftwise.backends.wire import run_with_sockets
    from draftwise.machine.network import find_proxy
    from draftwise.measure.answer_checks import check_answers, describe_check

    headers = {each.name: each.value for each in read_headers(request.headers, request.key_variables)}
    server, plain = (
        UrlBackend(name, each, headers=headers, proxy=find_proxy(each))
        for name, each in (("server", url), ("plain", against))
    )
    checks = run_with_sockets(check_answers(server, plain, salt=secrets.token_hex(4)))
    outcomes = {check.outcome for check in checks}
    findings = [describe_check(check, where=url, decides=outcomes == {"not judged"}) for check in checks]
    verdict = "the same" if outcomes == {"same"} else "different" if "different" in outcomes else "not judged in full"
    report = report_of(*findings)
    return Judgement.of(report, where=url, verdict=f"answers are {verdict}")


def _probe(url: str, setup: Setup, request: VerifyRequest) -> Judgement:
    import secrets

    from draftwise.backends.url import UrlBackend
    from draftwise.backends.wire import run_with_sockets
    from draftwise.deploying.verify.running_server import verify_server
    from draftwise.machine.network import find_proxy
    from draftwise.measure.probe import load_probe, probe
    from draftwise.runs.documents import read_baseline
    from draftwise.watching.fingerprint import judge_probe

    given = request.baseline
    known = given if given is None or isinstance(given, Baseline) else read_baseline(Path(given))
    if known is not None and not known.probe:
        refuse(
            "--baseline has no probe. Add one with `draftwise deploy --probe` or `draftwise watch --record-baseline`."
        )
    headers = {each.name: each.value for each in read_headers(request.headers, request.key_variables)}
    server = UrlBackend("server", url, headers=headers, proxy=find_proxy(url))
    plain = None
    if (against := request.against) is not None:
        plain = UrlBackend("plain", against, headers=headers, proxy=find_proxy(against))
    probed = run_with_sockets(probe(server, plain, load_probe(request.prompts), salt=secrets.token_hex(4)))
    findings = [*verify_server(setup, probed, where=url, expected=request.expected)]
    if known is not None:
        judged = judge_probe(probed.server, known, where=url)[0]
        undecided = judged.severity is Severity.WARNING  # the caller asked for this check
        findings.append(replace(judged, severity=Severity.ERROR) if undecided else judged)
    return _describe(url, report_of(*findings, setup=setup), "as ordered, as far as draftwise can see")


def _read_log(name: str | PathLike[str], setup: Setup) -> Judgement:
    from draftwise.deploying.verify.running_server import verify_log

    text = _open(name)
    return _describe(text.name, report_of(*verify_log(text, setup), setup=setup), "started as ordered")


def _read_objects(name: str | PathLike[str], setup: Setup) -> tuple[list[Judgement], list[tuple[str, str]]]:
    from draftwise.deploying.verify.cluster_objects import find_absent, list_commands, read_objects, verify_object

    text = _open(name)
    objects = read_objects(text)
    reports = [report_of(*verify_object(each, setup), setup=setup) for each in objects]
    absent = list(find_absent(objects, setup))
    reports += [report_of(*absent, setup=setup)] if absent else []
    judged = [_describe(text.name, each, "as ordered, as far as the cluster shows") for each in reports]
    return judged, list(list_commands(objects))


def _describe(where: str, report: Report, good: str) -> Judgement:
    found = {finding.severity for finding in report.findings}
    return Judgement.of(report, where=where, verdict=f"not {good}" if Severity.ERROR in found else good)


def _open(source: str | PathLike[str]) -> SourceText:
    if str(source) == "-":
        return read_stdin()
    (text,) = find_texts(Path(source))
    return text


def _compare(sent: SourceText, returned: str | PathLike[str]) -> Report:
    from draftwise.deploying.api_server import compare_returned

    try:
        return report_of(*compare_returned(sent, _open(returned)))
    except InvalidSetup as error:
        if type(error) is not InvalidSetup:
            raise
        return report_of(*error.findings)
