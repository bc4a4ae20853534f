"""draftwise's half of the oracle: the same cases through `check`, and how far the two agree.

A case agrees when both accept it or both refuse it, and, if accepted, method, number of tokens, lookup bounds and draft
tensor parallel size are equal. Stage, exception class and every other resolved value are counted beside that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftwise.core import Device, Effect, InvalidSetup, Ruling, Setup, SpecConfig
from draftwise.plan.check import check, judge
from draftwise.setups.read import SetupReading, read_words

__all__ = [
    "DEVICES",
    "HEADLINE",
    "VALUES",
    "Agreement",
    "Prediction",
    "cases_of",
    "compare",
    "find_differences",
    "in_folder",
    "predict",
    "read_lines",
    "report_of",
    "setup_of",
]

DEVICES: Mapping[str, Device] = {
    "cuda": Device(name="NVIDIA H200", kind="cuda", count=8, memory_bytes=150_754_820_096),
    "cpu": Device(name="CPU", kind="cpu"),
}
"""What the worker's platforms pretend to run on."""

HEADLINE = (
    "method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_tensor_parallel_size",
)  # fmt: skip
"""Resolved values that a case must agree in."""

VALUES = (
    *HEADLINE, "model", "draft_architectures", "target_architectures", "draft_max_model_len", "quantization",
    "parallel_drafting", "synthetic_acceptance_rates", "runner", "async_scheduling",
)  # fmt: skip
"""Resolved values that are compared by name; the keys of `fields` come on top."""

_IN_FIELDS = ("parallel_drafting", "synthetic_acceptance_rates")
_FROM_ENGINE = ("disable_log_stats", "enable_chunked_prefill")
"""Fields that old releases copy from the engine's flags into the speculative config."""

_NOT_DECIDABLE = (
    ("Invalid repository ID or local directory", "drafter is a name of the hub, which the oracle cannot reach"),
    ("failed to be inspected", "model class does not import under the oracle's libraries"),
    ("No module named", "model class does not import under the oracle's libraries"),
    (
        "rope_scaling should have a 'rope_type' key",
        "the oracle's transformers rewrites rope_scaling for later releases",
    ),
    ("is a per-layer attribute and may vary across layers", "the oracle's transformers is newer than the release"),
    ("has no attribute 'get_vocab'", "a reasoning parser wants the tokenizer, which the oracle does without"),
    ("tokenizer must be passed to the ReasoningParser", "a reasoning parser wants the tokenizer"),
    ("must be an instance of MistralTokenizer", "a reasoning parser wants the tokenizer"),
    ("'NoneType' object has no attribute 'encode'", "a reasoning config wants the tokenizer"),
    ("has no attribute 'is_text_generation_model'", "a package that serves other models is asked for"),
    ("cumem allocator is not supported", "a kernel is asked for that the oracle does not have"),
    ("'function' object has no attribute", "Triton kernels are imported, which the oracle does not have"),
)

_OF_THE_MODEL = (
    "Number of experts in the model must be greater than 0",
    "only supports MoE models",
    "Cannot find the config file for",
)
"""Refusals that read a model's config or files, even where the swapped model has none either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What `check` says about a case, in the oracle's terms."""

    accepted: bool
    unjudged: bool = False
    """Whether `check` says that what it was given does not decide."""
    stages: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    """Codes of the findings that refuse it."""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    crash: str = ""
    """What `check` raised, which it never should."""


@dataclass(slots=True)
class Agreement:
    """Counts over the cases of one release on one platform."""

    cases: int = 0
    accepted: int = 0
    agreed: int = 0
    verdicts: int = 0
    undecidable: Counter[str] = field(default_factory=Counter)
    values: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Value -> equal, compared."""
    groups: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Shape or outcome class -> agreed, cases."""
    false_accepted: list[str] = field(default_factory=list)
    """Ids of the cases that vLLM refuses and `check` accepts."""
    unjudged: int = 0
    """Cases that `check` does not judge, as their outcome depends on what it was not given: they agree."""
    false_refused: int = 0
    """Cases that vLLM accepts and `check` refuses."""
    disagreements: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Signature -> ids."""

    @property
    def rate(self) -> float:
        """Share of the decidable cases that agree."""
        return self.agreed / self.cases if self.cases else 0.0


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def predict(case: Mapping[str, Any], version: str, platform: str) -> Prediction:
    """Return what `check` makes of a case; call where the model directories lie."""
    try:
        report = (
            judge(_read_line(case, version, platform)) if "line" in case else check(setup_of(case, version, platform))
        )
    except InvalidSetup as error:
        return Prediction(accepted=False, codes=tuple(finding.code for finding in error.findings))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Prediction(accepted=False, crash=f"{type(error).__name__} in {Path(where.filename).name}:{where.name}")
    refusals = [f for f in report.findings if isinstance(f, Ruling) and f.effect is Effect.REJECTED]
    if refusals:
        return Prediction(
            accepted=False,
            stages=tuple(str(ruling.stage) for ruling in refusals),
            exceptions=tuple(ruling.exception for ruling in refusals),
            codes=tuple(ruling.code for ruling in refusals),
        )
    unjudged = report.accepted is None
    if report.resolved is None:
        return Prediction(accepted=True, unjudged=unjudged, resolved={"method": None})
    resolved = {name: _plain(getattr(report.resolved, name)) for name in VALUES}
    fields = {f"fields.{name}": _plain(value) for name, value in report.resolved.fields.items()}
    return Prediction(accepted=True, unjudged=unjudged, resolved=resolved | fields)


def setup_of(case: Mapping[str, Any], version: str, platform: str) -> Setup:
    spec = case["spec"]
    return Setup(
        target=case["target"], engine="vllm", engine_version=version, device=DEVICES[platform],
        spec=None if spec is None else SpecConfig.keep(spec), args=case["flags"], env=case["env"],
    )  # fmt: skip


def _read_line(case: Mapping[str, Any], version: str, platform: str) -> SetupReading:
    """Return a whole command line as `draftwise check` reads it, on the oracle's device."""
    reading = read_words(["vllm", "serve", *case["line"]], engine_version=version)
    return replace(reading, setup=replace(reading.setup, device=DEVICES[platform], env=case["env"]))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def find_differences(outcome: Mapping[str, Any], prediction: Prediction) -> dict[str, tuple[Any, Any]]:
    """Return what differs, vLLM's side first: `verdict`, `stage`, `exception` or the names of resolved values."""
    if prediction.crash or outcome["accepted"] != prediction.accepted:
        return {"verdict": (outcome["accepted"], prediction.crash or prediction.accepted)}
    if not prediction.accepted:
        pairs = {"stage": prediction.stages, "exception": prediction.exceptions}
        return {name: (outcome[name], said) for name, said in pairs.items() if outcome[name] not in said}
    truth = flatten(outcome["resolved"])
    return {
        name: (truth.get(name), said)
        for name, said in prediction.resolved.items()
        if name in truth and not _equal(truth[name], said)
    }


def flatten(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the oracle's resolved values under the names of `VALUES` and `fields.KEY`."""
    fields = resolved.get("fields", {})
    named = {name: resolved[name] for name in VALUES if name in resolved}
    for name in ("runner", "async_scheduling"):
        if named.get(name, "") is None:
            del named[name]  # the release knows one runner, or one way to schedule, and does not say so
    named |= {name: fields[name] for name in _IN_FIELDS if name in fields}
    own = {f"fields.{name}": value for name, value in fields.items() if name not in VALUES + _FROM_ENGINE}
    return named | own


def _equal(truth: Any, said: Any) -> bool:
    if isinstance(truth, list) and isinstance(said, list):
        return len(truth) == len(said) and all(map(_equal, truth, said))
    if isinstance(truth, float) and isinstance(said, int | float):
        return abs(truth - said) < 1e-9
    return bool(truth == said)


def not_decidable(case: Mapping[str, Any], outcome: Mapping[str, Any], models: Path) -> str:
    """Return why a case says nothing about `check`, or an empty string."""
    if "crashed" in outcome:
        return "the oracle's process died"
    for text, reason in _NOT_DECIDABLE:
        if text in outcome.get("message", ""):
            model = (case["spec"] or {}).get("model")
            local = isinstance(model, str) and (not model or (models / model).is_dir())
            return "" if "directory" in text and local else reason
    return ""


def compare(cases: Iterable[Mapping[str, Any]], outcomes: Mapping[str, Mapping[str, Any]], version: str, platform: str,
            models: Path, *, swapped: Mapping[str, Mapping[str, Any]] | None = None) -> Agreement:  # fmt: skip
    """Run `check` over the cases that have an outcome.

    Args:
        cases: what both judge.
        outcomes: vLLM's, by the case's id.
        version: the release.
        platform: `cuda` or `cpu`.
        models: where `check` runs.
        swapped: vLLM's outcomes with other models under the same names, where `check` gets the names alone. "Not
            judged" agrees with a refusal only if these differ; with an acceptance always, as a config can be refused.
    """
    agreement = Agreement()
    with contextlib.chdir(models):
        for case in cases:
            outcome = outcomes.get(case["id"])
            if outcome is None:
                continue
            if reason := not_decidable(case, outcome, Path()):
                agreement.undecidable[reason] += 1
                continue
            prediction = predict(case, version, platform)
            if swapped is not None and prediction.unjudged:
                other = swapped[case["id"]]
                if depends := outcome["accepted"] or _gist(outcome) != _gist(other) or _reads_model(outcome):
                    said = _leave_open(prediction.resolved, outcome, other)
                    prediction = Prediction(accepted=outcome["accepted"], stages=("",), exceptions=("",), resolved=said)
                agreement.unjudged += depends
            _count(agreement, case, outcome, prediction)
    return agreement


def _count(agreement: Agreement, case: Mapping[str, Any], outcome: Mapping[str, Any], prediction: Prediction) -> None:
    different = find_differences(outcome, prediction)
    agreement.cases += 1
    agreement.accepted += outcome["accepted"]
    agreement.verdicts += "verdict" not in different
    agreed = not different.keys() & {"verdict", *HEADLINE}
    agreement.agreed += agreed
    shape = case.get("shape", "guides")
    outcome_class = "accepted" if outcome["accepted"] else f"refused: {outcome['stage']}, {outcome['exception']}"
    for group in (f"shape {shape}", outcome_class):
        agreement.groups[group][0] += agreed
        agreement.groups[group][1] += 1
    if "verdict" not in different:
        compared = prediction.resolved if prediction.accepted else ("stage", "exception")
        truth = flatten(outcome["resolved"]) if prediction.accepted else outcome
        for name in compared:
            if name in truth:
                agreement.values[name][0] += name not in different
                agreement.values[name][1] += 1
    elif prediction.accepted:
        agreement.false_accepted.append(case["id"])
    else:
        agreement.false_refused += 1
    for name, (truth_value, said) in different.items():
        agreement.disagreements[_signature(name, outcome, prediction, truth_value, said)].append(case["id"])


def _reads_model(outcome: Mapping[str, Any]) -> bool:
    return any(text in outcome["message"] for text in _OF_THE_MODEL)


def _leave_open(resolved: Mapping[str, Any], outcome: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values that `check` gives for a case that it does not judge, where they hang on nothing hidden."""
    truth, swapped = flatten(outcome.get("resolved", {})), flatten(other.get("resolved", {}))
    return {
        name: value for name, value in resolved.items() if value is not None and truth.get(name) == swapped.get(name)
    }


def _gist(outcome: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one refusal from another."""
    return outcome["accepted"], outcome.get("stage"), outcome.get("exception"), outcome.get("message")


def _signature(name: str, outcome: Mapping[str, Any], prediction: Prediction, truth: Any, said: Any) -> str:
    gist = re.sub(r"\d+", "N", outcome.get("message", ""))
    gist = re.sub(r"^N validation errors? for ", "", gist)[:110]
    if name == "verdict":
        if prediction.crash:
            return f"check crashed | {prediction.crash}"
        if prediction.accepted:
            return f"false accepted | {outcome['stage']} | {outcome['exception']} | {gist}"
        return f"false refused | {', '.join(sorted(set(prediction.codes)))}"
    if name in ("stage", "exception"):
        return f"{name} | vLLM {truth} | check {', '.join(map(str, said))} | {', '.join(prediction.codes)} | {gist}"
    return f"{name} | vLLM {_short(truth)} | check {_short(said)}"


def _short(value: Any) -> str:
    return re.sub(r"\d{3,}", "N", json.dumps(value))[:60]


def report_of(agreement: Agreement) -> dict[str, Any]:
    """Return an agreement as JSON can hold it; pairs are (equal, compared)."""
    values = {name: tuple(counts) for name, counts in agreement.values.items()}
    return {
        "cases": agreement.cases,
        "accepted_by_vllm": agreement.accepted,
        "not_decidable": dict(agreement.undecidable),
        "agreement": round(agreement.rate, 5),
        "accept_or_refuse": round(agreement.verdicts / max(agreement.cases, 1), 5),
        "false_accepted": len(agreement.false_accepted),
        "false_accepted_guides": [name for name in agreement.false_accepted if name.startswith("guide-")],
        "values": {name: counts for name, counts in values.items() if not name.startswith("fields.")},
        "fields": [sum(column) for column in zip(*(values[n] for n in values if n.startswith("fields.")), strict=True)],
        "false_refused": agreement.false_refused,
        "not_judged_and_open": agreement.unjudged,
        "by_class": {name: tuple(counts) for name, counts in sorted(agreement.groups.items())},
        "disagreements": [
            {"signature": signature, "cases": len(ids), "example": ids[0]}
            for signature, ids in sorted(agreement.disagreements.items(), key=lambda item: -len(item[1]))
        ],
    }


def cases_of(folder: Path, version: str) -> Path:
    """Return the file of a release's cases: its own whole command lines, or the cases that all releases share."""
    own = folder / f"{version}.lines.jsonl"
    return own if own.exists() else folder / "cases.jsonl"


def in_folder(folder: Path) -> list[tuple[str, str]]:
    """Return (version, platform) of the outcome files in a folder, newest release first."""
    names = [re.fullmatch(r"(\d+(?:\.\d+)+)\.(cuda|cpu)\.jsonl", entry) for entry in os.listdir(folder)]
    found = [(match[1], match[2]) for match in names if match]
    return sorted(found, key=lambda pair: ([int(part) for part in pair[0].split(".")], pair[1]), reverse=True)
