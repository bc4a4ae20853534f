"""`deploy`: writes the files that put a setup into production, and those that undo it."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from draftwise.core import Baseline, Finding, InvalidSetup, Setup, Severity
from draftwise.core.progress import Progress
from draftwise.deploying import TARGETS, Mode, Platform, RunEvidence, make_order, read_layout
from draftwise.deploying import deploy as write_files
from draftwise.deploying.deployment_folder import Folder
from draftwise.deploying.order import Scale, ServiceOrder
from draftwise.deploying.proxies import ProxyKind, ProxyOptions
from draftwise.deploying.surroundings import Surroundings, read_surroundings
from draftwise.deploying.targets import name_targets
from draftwise.knowledge.messages import refusal
from draftwise.verbs import sources
from draftwise.verbs.field_types import Range
from draftwise.verbs.model_configs import open_configs
from draftwise.verbs.request_headers import Header, read_headers
from draftwise.verbs.sources import JudgedRequest, Source, find_sources, flags_of_vllm, open_release, with_gpu
from draftwise.verbs.verb import Result, refuse, verb

if TYPE_CHECKING:
    from draftwise.core import Decision, Run

__all__ = ["TARGETS", "DeployRequest", "DeployResult", "Mode", "ProxyKind", "deploy"]


@dataclass(frozen=True, slots=True)
class DeployRequest(JudgedRequest):
    """A run whose adopted candidate to deploy, or a setup, and the platform."""

    _: KW_ONLY
    to: str | None = None
    """Platform: one of `TARGETS`."""
    out: str | PathLike[str] | None = None
    """New folder for the files."""
    edit: str | PathLike[str] | None = None
    """File to edit instead of `to` and `out`: its server gets the source's speculative config."""
    select: str = ""
    """Container, object or service to edit, if that file has several."""
    write: bool = False
    """Whether to save the change to the file, with `edit`."""
    candidate: str | None = None
    """Candidate of the run to deploy; default: the adopted one."""
    vllm: str | None = None
    """Release; default: the source's."""
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""
    name: str = ""
    """Name of the service; default: made from the target's name."""
    owner: str = ""
    """Owner of the service."""
    image: str = ""
    """Server image; default: vLLM's own, by its tag."""
    cold_start_s: Annotated[float, Range(above=0)] | None = None
    """Seconds that a cold start took; the startup deadline is 1.5 times that."""
    start_log: str | PathLike[str] | None = None
    """vLLM's log of a cold start, instead of `cold_start_s`."""
    kserve: str = ""
    """Release of KServe; default: the newest known."""
    mode: Mode = "Standard"
    """KServe deployment mode."""
    layout: str | None = None
    """Where the weights are on KServe: one, storage-uris, modelcar:IMAGE, pvc:CLAIM or mixed:CLAIM."""
    service_account: str = ""
    """KServe service account whose secrets give access to the weights."""
    max_replicas: Annotated[int, Range(2)] | None = None
    """Scale both twins up to this many replicas, by requests in flight."""
    requests_per_replica: Annotated[int, Range(1)] | None = None
    """Requests in flight per replica; default: the highest load at which the run measured a gain."""
    observe: bool = True
    """Whether to write rules, alerts, a dashboard and the analysis of a canary."""
    metrics_prefix: str = ""
    """Prefix of the metrics' names; default: vllm:, or the platform's."""
    verifier: str = ""
    """Image with draftwise: the analysis of a canary runs `draftwise verify` in it."""
    proxy: ProxyKind | None = None
    """Proxy in front of both twins, which sends each only the requests it can serve."""
    share: Annotated[int, Range(0, 100)] = 10
    """Percent of the proxy's requests that go to the speculative pool."""
    spec_address: str = ""
    """HOST:PORT where the proxy reaches that pool."""
    plain_address: str = ""
    """HOST:PORT of its twin; default: the platform's names."""
    probe: str | None = None
    """URL of a running server of this setup: its answers to a few prompts go into baseline.json."""
    headers: Sequence[Header | str] = ()
    """Headers for that URL; ${VARIABLE} stands for an environment variable."""
    key_variables: Sequence[str] = ()
    """Environment variables that hold the API key of that URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFolder:
    """The folder that was written."""

    out: str
    files: tuple[str, ...]
    limits: tuple[Finding, ...]
    """What the platform cannot do."""
    not_measured: tuple[str, ...]
    """What the files assume without a measurement, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedFile:
    """The file that was, or would be, changed."""

    file: str
    difference: str
    """Unified diff; empty if the file already starts that server."""
    written: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployResult(Result):
    """What was written."""

    VERB: ClassVar[str] = "deploy"
    JSON_OF: ClassVar[str] = "answer"
    answer: WrittenFolder | EditedFile


@verb(DeployRequest)
def deploy(request: DeployRequest, _progress: Progress) -> DeployResult:
    """Write the files that serve a setup on a platform, and its twin without speculation.

    Refuses to write what vLLM would reject. Applies nothing: MEMO.md in the folder has the commands.
    """
    own = {f"--{each.name.replace('_', '-')}" for each in fields(DeployRequest)} & set(request.engine_flags)
    own -= set(flags_of_vllm())
    if own:
        refuse(f"{min(own)} is an option of draftwise: put it before --, which separates vLLM's flags.")
    version = None if request.vllm is None else str(open_release(request.vllm, nearest=request.nearest))
    run, around = _find_run(request), None
    if run is not None:
        setup, evidence = _read_run(run, request, version)
    else:
        reading = find_sources(request).read(version).require_one()
        setup, evidence = reading.setup, RunEvidence()
        around = read_surroundings(reading)
    with open_configs([setup], request.config_from, hub=request.hub):
        return DeployResult(answer=_answer(request, setup, evidence, around, version))


def _answer(
    request: DeployRequest, setup: Setup, evidence: RunEvidence, around: Surroundings | None, version: str | None
) -> WrittenFolder | EditedFile:
    given = {each.name for each in fields(DeployRequest) if getattr(request, each.name) != each.default}
    of_edit = {"edit", "select", "write"}
    of_files = DeployRequest.__annotations__.keys() - of_edit - {"candidate", "vllm", "nearest"}
    unused = sorted(given & (of_files if request.edit is not None else of_edit))
    if unused:
        flags = ", ".join("--no-observe" if name == "observe" else f"--{name.replace('_', '-')}" for name in unused)
        refuse(
            f"--edit changes an existing file; {flags} {'applies' if len(unused) == 1 else 'apply'} to new ones (--to)."
            if request.edit is not None
            else f"Add --edit: only an edit takes {flags}."
        )
    if request.edit is not None:
        return _edit(Path(request.edit), request, setup, version)
    if request.to is None or request.out is None:
        refuse("Name the platform and a new folder (--to, --out), or a file to change (--edit).")
    if request.to not in TARGETS:
        refuse(f"Unknown platform {request.to!r}: give one of {', '.join(TARGETS)}.", where="--to")
    order = make_order(
        setup,
        name=request.name,
        image=request.image,
        cold_start_s=_find_start(request),
        evidence=evidence,
        around=around,
    )
    folder = _make_folder(request, request.to, order)
    if request.probe is not None:
        folder = _add_probe(folder, setup, request.probe, request)
    folder.write(Path(request.out))
    return WrittenFolder(
        out=str(request.out),
        files=tuple(folder.files),
        limits=tuple(folder.limits),
        not_measured=tuple(order.evidence.unmeasured),
    )


def _find_run(request: DeployRequest) -> Path | None:
    """Return the run directory that is the only source. None where it is something else."""
    given = [request.sources] if isinstance(request.sources, Source) else list(request.sources)
    if len(given) != 1 or isinstance(given[0], Setup) or not (Path(given[0]) / "manifest.json").is_file():
        return None
    if request.engine_flags or request.env_files:
        refuse("A run already has its setup: --env-file and flags after -- apply to other sources.")
    return Path(given[0])


def _make_folder(request: DeployRequest, to: str, order: ServiceOrder) -> Folder:
    platform = Platform(
        release=request.kserve,
        mode=request.mode,
        service_account=request.service_account,
        layout=None if request.layout is None else read_layout(request.layout),
    )
    if not TARGETS[to].options and platform != Platform():
        refuse(f"--kserve, --mode, --layout and --service-account apply to --to {name_targets('options')}.")
    platform = replace(platform, verifier=request.verifier, scale=_read_scale(request))
    proxy = (
        None
        if request.proxy is None
        else ProxyOptions(
            kind=request.proxy, share=request.share, spec=request.spec_address, plain=request.plain_address
        )
    )
    return write_files(
        replace(order, platform=platform, owner=request.owner),
        to,
        metrics_prefix=request.metrics_prefix if request.observe else None,
        proxy=proxy,
    )


def _add_probe(folder: Folder, setup: Setup, url: str, request: DeployRequest) -> Folder:
    """Return the folder with the answers of a server that runs the setup in its baseline."""
    from draftwise.backends.backend import ProbedPair
    from draftwise.backends.wire import run_with_sockets
    from draftwise.deploying.deployment_folder import BASELINE
    from draftwise.deploying.verify.running_server import verify_server
    from draftwise.verbs.probing import ask_again, load_prompts
    from draftwise.watching.fingerprint import record_baseline, take_answers

    headers = {each.name: each.value for each in read_headers(request.headers, request.key_variables)}
    repeats = run_with_sockets(ask_again(url, load_prompts(None), headers))
    found = verify_server(setup, ProbedPair(server=repeats[0]), where=url)
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    known = Baseline.from_json(folder.files[BASELINE], where=BASELINE)
    baseline = record_baseline(None, list(map(take_answers, repeats)), known)
    return replace(folder, files={**folder.files, BASELINE: baseline.to_json()})


def _read_scale(request: DeployRequest) -> Scale | None:
    if request.max_replicas is None:
        if request.requests_per_replica is not None:
            refuse("--requests-per-replica sets when to scale: give --max-replicas too.")
        return None
    return Scale(most=request.max_replicas, per_replica=request.requests_per_replica)


def _find_start(request: DeployRequest) -> float | None:
    """Return the seconds of a cold start, as given or by the log of one. None where nobody says."""
    if request.start_log is None:
        return request.cold_start_s
    if request.cold_start_s is not None:
        refuse("--cold-start-s and --start-log exclude each other: give one of them.")
    from draftwise.backends.vllm_log import find_start_s
    from draftwise.setups.read import find_texts

    (source,) = find_texts(Path(request.start_log))
    seconds = find_start_s(source.text.splitlines())
    if not seconds:
        raise refusal("start-not-told", start_log=request.start_log)
    return seconds


def _edit(path: Path, request: DeployRequest, setup: Setup, version: str | None) -> EditedFile:
    from draftwise.deploying.deployment_folder import replace_text
    from draftwise.deploying.edit import edit_as
    from draftwise.setups.read import find_texts

    if str(path) == "-":
        refuse("--edit changes a file, not standard input. Save the text, and name the file.")
    if path.is_dir():
        held = ", ".join(sorted(str(each) for each in path.iterdir() if each.is_file())[:5])
        refuse(f"--edit changes one file, and {path} is a folder. Name one of its files: {held or 'it has none'}.")
    (source,) = find_texts(path)
    raw = path.read_bytes()
    mark = raw[: len(BOM_UTF8)] if raw.startswith(BOM_UTF8) else b""
    if mark + source.text.encode() != raw:
        raise refusal("read-translated", path=path)
    wanted = setup if version is None else replace(setup, engine_version=version)
    changed = edit_as(source, with_gpu(wanted, request.gpu), select=request.select)
    is_written = request.write and bool(changed.difference)
    if is_written:
        replace_text(path, mark.decode() + changed.text)
    return EditedFile(
        file=str(path), difference=changed.difference, written=is_written, findings=tuple(changed.findings)
    )


def _read_run(path: Path, request: DeployRequest, version: str | None) -> tuple[Setup, RunEvidence]:
    from draftwise.deciding.comparison.latencies import trace_step_times
    from draftwise.deciding.conclusions import conclude_run
    from draftwise.deploying.observe.promise import find_expected
    from draftwise.reporting.sentences import describe_decision
    from draftwise.runs import RunDirectory

    found = conclude_run(RunDirectory(path).read())
    decision = found.decision
    name = request.candidate or _find_adopted(decision, path)
    arm = next((arm for arm in found.run.plan.arms if arm.name == name and arm.name != decision.baseline), None)
    if arm is None:
        names = ", ".join(each.name for each in found.run.plan.arms if each.name != decision.baseline)
        raise refusal("no-such-candidate", name=name, names=names)
    rules = tuple(rule for rule in decision.rollback if rule.arm == name)
    measured, gaps = arm.setup, _list_gaps(found.run, adopted=bool(rules))
    if request.speculative_config is not None:
        if measured.spec is not None:
            refuse(f"The run knows the config of {name}: leave it out.", where="-sc")
        measured = replace(measured, spec=sources.read_spec(request.speculative_config)[0])
        gaps.append("The speculative config: you named it, and the run cannot prove it.")
    elif measured.spec is None and request.edit is not None:
        refuse(f"The run does not hold the config of {name}. Name it.", where="-sc")
    version, target = version or measured.engine_version, str(request.target or measured.target)
    setup = with_gpu(replace(measured, engine="vllm", engine_version=version, target=target), request.gpu)
    evidence = RunEvidence(
        run=path.resolve().name,
        headline=describe_decision(decision),
        rollback=rules,
        wanted_gain=found.thresholds.margin,
        not_adopted=tuple(_list_not_adopted(decision, name)),
        speed_ups=_find_speed_ups(decision, name),
        arm=name,
        plain_arm=decision.baseline,
        expected=find_expected(decision, name),
        curve_ms=trace_step_times(found.run),
        unmeasured=tuple(gaps),
    )
    return setup, evidence.carry_over(measured, setup, hardware=decision.scope.hardware)


def _find_speed_ups(decision: Decision, candidate: str) -> dict[str, float]:
    """Return what was measured of each workload alone, under its heaviest load."""
    from draftwise.core.comparison import ALL

    found = [each for each in decision.comparisons if each.candidate == candidate and each.workload != ALL]
    found.sort(key=lambda each: each.condition.place or ("", 0.0))
    return {each.workload: each.speedup.value for each in found if each.condition.temperature == 0}


def _list_not_adopted(decision: Decision, candidate: str) -> Iterator[str]:
    """Yield where the run does not say that a candidate pays."""
    from draftwise.core import Verdict
    from draftwise.core.comparison import ALL
    from draftwise.reporting.units import describe_load

    for each in decision.comparisons:
        if each.candidate == candidate and each.workload != ALL and each.verdict is not Verdict.ADOPT:
            at = f" at temperature {each.condition.temperature:g}" if each.condition.temperature else ""
            yield (
                f"Traffic like {each.workload}{at}, {describe_load(each.condition)}: the run says {each.verdict} "
                f"({each.speedup.value:.2f}x)."
            )


def _find_adopted(decision: Decision, path: Path) -> str:
    names = {each.candidate for found in decision.recommendations for each in found.adopted}
    if len(names) == 1:
        return names.pop()
    text = f"adopted {len(names)} candidates ({', '.join(sorted(names))})" if names else "adopted no candidate"
    raise refusal("nothing-to-deploy", path=path, text=text)


def _list_gaps(run: Run, *, adopted: bool) -> list[str]:
    gaps = [] if adopted else ["Whether it pays: the run did not adopt it."]
    if any(arm.url for arm in run.plan.arms):
        gaps.append("The flags of the measured servers, unless they are written here.")
    return gaps
