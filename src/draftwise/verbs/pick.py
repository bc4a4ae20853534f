"""`pick`: recommends the method to start with, for a target, hardware, release and traffic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, overload

from draftwise.core import Calibration, Finding, Ruling, Setup, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.knowledge.advice import all_advice, give_advice
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.models import read_models, read_names
from draftwise.plan.pick import STRUCTURED_OUTPUT, MethodRanking, RankedMethod, Requirements, Weight, describe_traffic
from draftwise.plan.pick import pick as choose
from draftwise.plan.pick.recommend import decide_command
from draftwise.setups.read import read_words
from draftwise.setups.write import write_shell
from draftwise.verbs.field_types import Range
from draftwise.verbs.judgements import Judgement
from draftwise.verbs.model_configs import open_configs
from draftwise.verbs.sources import open_release, remarks_on
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["STRUCTURED_OUTPUT", "MethodRanking", "PickRequest", "PickResult", "RankedMethod", "list_models", "pick"]

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class PickRequest:
    """What to serve, on which hardware, for which traffic."""

    target: str | PathLike[str]
    """Directory with config.json, a well-known model id, or the JSON itself."""
    _: KW_ONLY
    gpu: str
    """H200, H100, A100, L40S, B200, MI300X ..."""
    gpus: Annotated[int, Range(1)] = 1
    """Number of GPUs in the deployment."""
    vllm: str = "newest"
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""
    workload: str | None = None
    """Kind of requests: a name of `offered_names.list_traffic_kinds()`."""
    overlap: Literal["none", "some", "high"] | None = None
    """How much of the output repeats the prompt; default: the workload's."""
    temperature: Annotated[float, Range(0)] = 0.0
    """Median sampling temperature of the requests."""
    mixed_temperatures: bool = False
    """Whether requests of different temperatures share a batch."""
    concurrency: Annotated[int, Range(1)] = 1
    """Median number of requests that decode together."""
    peak_concurrency: Annotated[int, Range(1)] | None = None
    """Maximum number of requests that decode together; default: `concurrency`."""
    prompt_tokens: Annotated[int, Range(1)] = 1024
    output_tokens: Annotated[int, Range(1)] = 256
    slo_ttft_ms: Annotated[float, Range(above=0)] | None = None
    """Objective for the time to the first token, in milliseconds."""
    slo_tpot_ms: Annotated[float, Range(above=0)] | None = None
    """Objective for the time per output token, in milliseconds."""
    uses: Sequence[str] = ()
    """Sampling parameters in use: min_p, logit_bias, structured_outputs ..."""
    text_in_pictures: bool = False
    """Whether answers repeat text from pictures, which lookups cannot find."""
    drafters: Sequence[str] = ()
    """Directories of drafters that you have."""
    can_train: bool = False
    """Whether you can train a drafter."""
    calibration: Calibration | str | PathLike[str] | None = None
    """Calibration of this hardware, from `calibrate`; replaces step times computed from the data sheet."""
    air_gapped: bool = False
    """Whether the server cannot fetch models."""
    engine_flags: Sequence[str] = ()
    """Flags of `vllm serve`, as written on its command line."""
    config_from: str | PathLike[str] | None = None
    """Directory, config.json, or URL of either, for a target that draftwise does not know by name."""
    hub: bool = False
    """Whether to fetch config.json and the weights' index of unknown models from the Hugging Face hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A reason against speculation."""

    weight: Weight
    code: str
    severity: str
    message: str
    where: str = ""
    fix: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """Expected acceptance and speed-up at `k` and at `sequences` requests that decode together; null if unknown.

    Acceptance is the chance of a draft token if those before it were accepted, after `temperature_factor`. Speed-ups
    are ratios of tokens per second to plain decoding.
    """

    k: int
    sequences: int
    speedup: float | None
    speedup_range: tuple[float, float] | None
    acceptance_prior: tuple[float, float]
    acceptance_expected: float
    acceptance_needed: float | None
    """Acceptance that reaches break-even; null if none does."""
    temperature_factor: float
    length_prior: tuple[float, float]
    """Tokens per step at both ends of `acceptance_prior`; the other lengths are in tokens per step too."""
    length_expected: float
    length_break_even: float | None
    tpot_ms: float | None
    plain_tpot_ms: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Memory of each GPU in GiB, and the tokens that its KV cache holds."""

    drafter_gib: float
    weights_gib: float
    kv_gib: float
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A published result of a drafter, and how it was measured."""

    result: str
    conditions: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """A method to try."""

    method: str
    pays: bool
    """Whether its expected acceptance reaches break-even; true if that cannot be estimated."""
    speculative_config: SpecConfig | None
    command: str
    """Command that serves it."""
    measure: str
    """Command that measures it on your prompts."""
    scheduled: Mapping[str, Any] | None
    """Config with k by batch size, for varying load."""
    estimate: EstimateRow | None
    memory: MemoryRow | None
    check: Judgement
    reasons: tuple[Ruling | Finding, ...]
    caveats: tuple[Ruling | Finding, ...]
    alternatives: tuple[str, ...]
    """Other published drafters."""
    published: tuple[PublishedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """A method that is not recommended."""

    method: str
    reasons: tuple[Ruling | Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule behind the answer."""

    code: str
    title: str
    explains: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PickResult(Result):
    """Methods in the order to try them, and why the others are not recommended."""

    VERB: ClassVar[str] = "pick"
    vllm: str
    target: str
    sentence: str
    """The answer in one or two sentences."""
    against: tuple[Objection, ...]
    """Reasons against speculation, strongest first."""
    ranked: tuple[CandidateRow, ...]
    refused: tuple[RefusalRow, ...]
    asked: str
    """Requested release; differs from `vllm` if that is only the nearest known one."""
    remarks: tuple[Ruling | Finding, ...]
    """Findings about the release."""
    advice: MethodRanking = field(metadata=HIDDEN)
    to_paste: str = field(metadata=HIDDEN)
    """Command that serves the first method, one flag per line."""
    schedule: Finding | None = field(metadata=HIDDEN)
    """Advice on running the first method under varying load."""
    rules: tuple[RuleRow, ...] = field(metadata=HIDDEN)

    @property
    def exit_code(self) -> int:
        """1 if nothing can be recommended."""
        return int(self.advice.is_against or not self.ranked)


@verb(PickRequest)
def pick(request: PickRequest, _progress: Progress) -> PickResult:
    """Recommend drafting methods for a target: ranked, checked against the release, sized, and with reasons.

    Loads and downloads nothing. The answer is a starting point for measurements and ends with the command for one.
    """
    release = open_release(request.vllm, nearest=request.nearest)
    remarks = remarks_on(release)
    target = Setup(target=str(request.target), engine="vllm", engine_version=str(release))
    with open_configs([target], request.config_from, hub=request.hub):
        advice = choose(_read_requirements(request, str(release)))
    first = advice.ranked[0] if advice.ranked else None
    scheduled = None if first is None or first.scheduled is None else json.dumps(dict(first.scheduled))
    return PickResult(
        vllm=advice.version,
        target=advice.requirements.target,
        sentence=advice.sentence,
        against=tuple(
            Objection(
                weight=lever.weight, **_parts(lever.finding, "code", "severity", "message", "where", "fix", "source")
            )
            for lever in advice.levers
        ),
        ranked=tuple(_describe(advice, each) for each in advice.ranked),
        refused=tuple(RefusalRow(method=each.method, reasons=each.reasons) for each in advice.refused),
        asked=release.asked or str(release),
        remarks=remarks,
        advice=advice,
        to_paste="" if first is None else write_shell(first.setup, line_per_flag=True),
        schedule=None if scheduled is None else give_advice("schedule", message=f"For varying load: {scheduled}"),
        rules=tuple(_list_rules(advice)),
    )


def list_models() -> list[str]:
    """Return the models that draftwise knows by name; for some it knows only the architecture."""
    names = {name for model in (*read_models(), *read_names()) for name in model.names}
    return sorted(names, key=str.lower)


def _read_requirements(request: PickRequest, version: str) -> Requirements:
    calibration = request.calibration
    if calibration is not None and not isinstance(calibration, Calibration):
        from draftwise.runs.documents import read_calibration  # numpy is absent in a browser

        calibration = read_calibration(Path(calibration))
    if request.peak_concurrency is not None and request.peak_concurrency < request.concurrency:
        refuse("The peak is below the median, --concurrency.", where="--peak-concurrency")
    traffic = describe_traffic(
        request.workload,
        overlap=request.overlap,
        peak_concurrency=request.peak_concurrency,
        slo_ttft_s=request.slo_ttft_ms and request.slo_ttft_ms / 1e3,
        slo_tpot_s=request.slo_tpot_ms and request.slo_tpot_ms / 1e3,
        parameters=frozenset(request.uses),
        **_parts(
            request,
            "temperature",
            "mixed_temperatures",
            "concurrency",
            "prompt_tokens",
            "output_tokens",
            "text_in_pictures",
        ),
    )
    return Requirements(
        target=str(request.target),
        gpu=get_gpu(request.gpu),
        gpus=request.gpus,
        version=version,
        traffic=traffic,
        args=_read_args(request, version),
        drafters=tuple(request.drafters),
        air_gapped=request.air_gapped,
        can_train=request.can_train,
        calibration=calibration,
    )


def _parts(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _read_args(request: PickRequest, version: str) -> Mapping[str, Any]:
    if not request.engine_flags:
        return {}
    words = ["vllm", "serve", str(request.target), *request.engine_flags]
    setup = read_words(words, engine_version=version).require()
    if setup.spec is not None:
        raise refusal("pick-chooses-the-config")
    return setup.args


def _describe(advice: MethodRanking, candidate: RankedMethod) -> CandidateRow:
    budget = None if candidate.sizing is None else candidate.sizing.budget
    return CandidateRow(
        method=candidate.method,
        pays=candidate.pays,
        speculative_config=candidate.setup.spec,
        command=write_shell(candidate.setup),
        measure=decide_command(candidate.setup, advice.requirements.traffic),
        scheduled=None if candidate.scheduled is None else dict(candidate.scheduled),
        estimate=_describe_estimate(candidate),
        memory=None
        if budget is None
        else MemoryRow(
            drafter_gib=round(budget.drafter / _GIB, 3),
            weights_gib=round(budget.weights / _GIB, 3),
            kv_gib=round(budget.kv_bytes / _GIB, 3),
            kv_tokens=budget.kv_tokens,
        ),
        check=Judgement.of(candidate.report),
        reasons=candidate.reasons,
        caveats=candidate.caveats,
        alternatives=tuple(each.model for each in candidate.alternatives),
        published=tuple(
            PublishedRow(result=each.result, conditions=each.conditions, source=each.source)
            for each in candidate.published_results
        ),
    )


def _describe_estimate(candidate: RankedMethod) -> EstimateRow | None:
    found = candidate.estimate
    if found is None:
        return None
    expected = found.expectation
    return EstimateRow(
        k=found.k,
        sequences=found.sequences,
        speedup=_round(found.gain),
        speedup_range=found.gain_range and (_round(found.gain_range[0]), _round(found.gain_range[1])),
        acceptance_prior=(_round(expected.low), _round(expected.high)),
        acceptance_expected=_round(expected.expected),
        acceptance_needed=_round(found.needed_acceptance),
        temperature_factor=_round(expected.factor),
        length_prior=(_round(found.length_range[0]), _round(found.length_range[1])),
        length_expected=_round(found.expected_length),
        length_break_even=_round(found.break_even),
        tpot_ms=_round(found.tpot_s, 1e3),
        plain_tpot_ms=_round(found.baseline_s, 1e3),
        source=expected.source,
    )


@overload
def _round(value: float, unit: float = 1) -> float: ...
@overload
def _round(value: None, unit: float = 1) -> None: ...
@overload
def _round(value: float | None, unit: float = 1) -> float | None: ...
def _round(value: float | None, unit: float = 1) -> float | None:
    """Return a number with the digits on which the mathematical libraries of all platforms agree."""
    return None if value is None else float(f"{value * unit:.6g}")


def _list_rules(advice: MethodRanking) -> Iterator[RuleRow]:
    rules = all_advice()
    for code, source in dict.fromkeys((each.code, each.source) for each in _find_findings(advice)):
        if code in rules:
            yield RuleRow(code=code, title=rules[code].title, explains=rules[code].explains, source=source)


def _find_findings(advice: MethodRanking) -> Iterator[Finding]:
    yield from (lever.finding for lever in advice.levers)
    for candidate in advice.ranked:
        yield from (*candidate.reasons, *candidate.caveats)
    for refused in advice.refused:
        yield from refused.reasons
    yield give_advice("guide-order")
    yield give_advice("starting-point")
