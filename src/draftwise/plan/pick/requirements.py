"""Requirements of a pick, and everything that they name looked up once: release, configs, machine, drafters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig, find_model_config
from draftwise.checkpoints.recognize import RecognizedDrafter, recognize
from draftwise.core import Calibration, Device, Setup, SpecConfig
from draftwise.knowledge.advice import TrafficKind, read_traffic_kinds
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.method_advice import Overlap
from draftwise.knowledge.model_copies import find_names
from draftwise.knowledge.models import KnownModel, find_model, is_hub_name, near_models
from draftwise.knowledge.published_drafters import PublishedDrafter, find_published_drafters
from draftwise.knowledge.vllm import Release, get_release
from draftwise.plan.cost.machine import Constants, DecodeBatch, Machine, gpu_prior
from draftwise.plan.cost.work import find_work
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.weight_parts import BF16, Precision, get_precision, precision_of

STRUCTURED_OUTPUT = "structured_outputs"
"""Name in `ExpectedTraffic.parameters` for requests with JSON, a grammar or tool calls."""
_OLD_STRUCTURED_OUTPUT = "guided_decoding"
"""The same in releases up to 0.11.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraffic:
    """Properties of the requests."""

    kind: str | None = None
    overlap: Overlap
    """How much of the output repeats the prompt."""
    place: float
    """Where in a method's acceptance prior this traffic is expected: 0 at the low end, 1 at the high end."""
    repetitive: bool = False
    """Whether answers repeat earlier answers."""
    temperature: float = 0.0
    """Median over requests."""
    mixed_temperatures: bool = False
    concurrency: int = 1
    """Median number of requests that decode together."""
    peak_concurrency: int
    prompt_tokens: int = 1024
    output_tokens: int = 256
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    parameters: frozenset[str] = frozenset()
    """Sampling parameters that requests use in addition to temperature, top_p and top_k."""
    text_in_pictures: bool = False
    """Whether answers repeat text from pictures, not from the prompt's tokens; earlier answers they may repeat."""

    @property
    def context(self) -> int:
        """Context length of a sequence halfway through its answer."""
        return self.prompt_tokens + self.output_tokens // 2


def describe_traffic(
    kind: str | None = None, *, overlap: Overlap | None = None, peak_concurrency: int | None = None, **known: Any
) -> ExpectedTraffic:
    """Return traffic of a named kind, in which known values replace those of the kind.

    Raises:
        InvalidSetup: there is no such kind.
    """
    row = _get_kind(kind) if kind is not None else None
    kind = None if row is None else row.name
    place = row.place if row else _PLACE_BY_OVERLAP[overlap] if overlap else 0.0
    is_usual = row is not None and not known.get("text_in_pictures")
    repetitive = row.repetitive if row and is_usual else overlap == "high"
    overlap = overlap or ("none" if known.get("text_in_pictures") else row.overlap if row else "some")
    return ExpectedTraffic(
        kind=kind,
        overlap=overlap,
        place=place,
        repetitive=repetitive,
        peak_concurrency=max(peak_concurrency or 0, known.get("concurrency", 1)),
        **known,
    )


_PLACE_BY_OVERLAP: Mapping[Overlap, float] = {"none": 0.0, "some": 0.5, "high": 1.0}


_SPELLINGS = {"summarisation": "summarization"}
"""Other spellings of kinds of traffic."""


def _get_kind(name: str) -> TrafficKind:
    found = read_traffic_kinds().get(_SPELLINGS.get(name, name))
    if found is None:
        raise refusal("unknown-traffic", name=name, names=", ".join(read_traffic_kinds()))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The deployment that a method is picked for."""

    target: str
    """A directory with config.json, a well-known model id, or the JSON itself."""
    gpu: Gpu
    gpus: int = 1
    version: str = "newest"
    """Release of vLLM."""
    traffic: ExpectedTraffic
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags of the deployment, by their long name with underscores."""
    drafters: tuple[str, ...] = ()
    """Drafters that the operator has: directories, or names of models."""
    air_gapped: bool = False
    """Whether the server cannot fetch anything."""
    can_train: bool = False
    calibration: Calibration | None = None
    """Measured step times on the deployment's machine; None to estimate them from the GPU's data sheet."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDrafter:
    """A drafter that the operator has."""

    name: str
    drafter: RecognizedDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class PickCase:
    """Input of every rule of `pick`."""

    requirements: Requirements
    release: Release
    target: ModelConfig
    precision: Precision
    machine: Machine | None
    """None if the target's shape or the GPU's speed is unknown; then nothing is estimated."""
    given: tuple[GivenDrafter, ...]
    published: tuple[PublishedDrafter, ...]
    names: tuple[str, ...]
    """Names of the target and of checkpoints with the same config."""
    similar: tuple[PublishedDrafter, ...]
    """Drafters for another checkpoint with the same config: the base of an instruct model, or a same-named folder."""

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs that share every layer."""
        return _tensor_parallel_size(self.requirements)

    def batch(self, sequences: int | None = None) -> DecodeBatch:
        """Return a batch of sequences of the traffic's length, by default with the median concurrency."""
        traffic = self.requirements.traffic
        return DecodeBatch(sequences=sequences or traffic.concurrency, context=traffic.context)

    def setup(self, spec: Mapping[str, Any] | None, **args: Any) -> Setup:
        """Return the deployment with a speculative config, or without one."""
        requirements, gpu, size = self.requirements, self.requirements.gpu, self.tensor_parallel_size
        parallel = {"tensor_parallel_size": size} if size > 1 else {}
        return Setup(
            target=requirements.target,
            engine="vllm",
            engine_version=str(self.release),
            device=Device(name=gpu.name, kind="cuda", count=requirements.gpus, memory_bytes=gpu.memory_bytes),
            spec=None if spec is None else SpecConfig.keep(spec),
            args={**parallel, **requirements.args, **args},
        )


def open_case(requirements: Requirements) -> PickCase:
    """Look up everything that the requirements name.

    Raises:
        InvalidSetup: the target or a drafter is not found, or the release is unknown.
    """
    target = _get_target(requirements.target)
    release = get_release(requirements.version)
    known = {*release.table("sampling_params"), STRUCTURED_OUTPUT} - {_OLD_STRUCTURED_OUTPUT}
    if unknown := sorted(requirements.traffic.parameters - known):
        names = ", ".join(map(repr, unknown))
        raise refusal("unknown-parameter", names=names, release=release, known=", ".join(sorted(known)))
    precision = _precision(requirements, target)
    exact, similar = _names(target)
    return PickCase(
        requirements=requirements,
        release=release,
        target=target,
        precision=precision,
        machine=_machine(requirements, target, precision),
        given=tuple(_open_drafter(name) for name in requirements.drafters),
        names=(*exact, *similar),
        published=find_published_drafters(exact),
        similar=find_published_drafters(similar),
    )


def _get_target(name: str) -> ModelConfig:
    found = find_model_config(name, partly=True)
    if found is not None:
        return found
    if name.count("/") == 1 and is_hub_name(name):  # what needs no config.json can still be said
        return ModelConfig(name=name, config={}, origin="table", is_partial=True)
    raise refusal("unknown-target", case="pick", name=name, near=near_models(name))


def _open_drafter(name: str) -> GivenDrafter:
    found = find_model_config(name)
    if found is None:
        raise refusal("unknown-drafter", name=name)
    return GivenDrafter(name=name, drafter=recognize(found.config, ()))


def _names(target: ModelConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names under which a target's drafters are published: its own, and those of similar checkpoints.

    A directory is taken for the well-known model that it is named after, if the shapes agree. It may hold a fine-tuned
    copy, so no name of it is exact.
    """
    if target.copy is not None:
        return (), target.copy.base.names
    if target.origin == "table":
        names = find_names(target.name) or (target.name,)
        tail = target.name.lower().rpartition("/")[2]
        exact = tuple(name for name in names if name.lower().rpartition("/")[2] == tail)
        return exact, tuple(name for name in names if name not in exact)
    named = target.config.get("_name_or_path")
    candidates = [named] if isinstance(named, str) else []
    if target.directory is not None:
        candidates.append(Path(target.directory).resolve().name)
    for name in candidates:
        row = find_model(name)
        if row is not None and _same_shape(row, target):
            return (), row.names
    return (), ()


def _same_shape(row: KnownModel, target: ModelConfig) -> bool:
    keys = ("hidden_size", "num_hidden_layers", "vocab_size")
    ours, theirs = target.text_config, row.config.get("text_config", row.config)
    return all(ours.get(key) == theirs.get(key) for key in keys)


def _precision(requirements: Requirements, target: ModelConfig) -> Precision:
    given = requirements.args.get("quantization")
    if not isinstance(given, str) and not _knows_weights(target):
        return BF16  # it stands for nothing: without a machine nothing is computed from it
    return get_precision(given) if isinstance(given, str) else precision_of(target.config)


def _knows_weights(target: ModelConfig) -> bool:
    declared = target.config.get("quantization_config")
    return not isinstance(declared, Mapping) or declared.get("quant_method", "") is not None


def _tensor_parallel_size(requirements: Requirements) -> int:
    given = requirements.args.get("tensor_parallel_size")
    if isinstance(given, int) and given > 0:
        return given
    others = (requirements.args.get(key) for key in ("pipeline_parallel_size", "data_parallel_size"))
    share = requirements.gpus
    for size in others:
        share //= size if isinstance(size, int) and size > 0 else 1
    return max(1, share)


def _machine(requirements: Requirements, target: ModelConfig, precision: Precision) -> Machine | None:
    if target.is_partial or not (_knows_weights(target) or "quantization" in requirements.args):
        return None
    size = _tensor_parallel_size(requirements)
    work = find_work(target.config, precision, size)
    if work is None or not requirements.gpu.bandwidth_gbs or not requirements.gpu.bf16_tflops:
        return None
    return Machine(
        constants=_find_constants(requirements, target, precision),
        work=work,
        shape=read_shape(target.config),
        tensor_parallel_size=size,
        kv_bytes_per_value=1 if str(requirements.args.get("kv_cache_dtype", "")).startswith("fp8") else 2,
        asynchronous=_schedules_asynchronously(requirements),
    )


def _find_constants(requirements: Requirements, target: ModelConfig, precision: Precision) -> Constants:
    """Return the constants of the deployment's machine: measured, else those of its data sheet."""
    calibration = requirements.calibration
    if calibration is None:
        return gpu_prior(requirements.gpu, fast_arithmetic=precision.name.startswith("fp8")).constants
    if differences := list(_compare(calibration, requirements, target)):
        raise refusal("calibration-of-another", names="; ".join(differences))
    from draftwise.plan.cost.calibrated import CalibratedCosts  # numpy is absent in a browser

    return CalibratedCosts(calibration).model.machine.constants


def _compare(calibration: Calibration, requirements: Requirements, target: ModelConfig) -> Iterator[str]:
    """Yield what of a calibration is not the deployment's."""
    if calibration.gpu != requirements.gpu.name:
        yield f"it was measured on {calibration.gpu or calibration.hardware}, not {requirements.gpu.name}"
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        measured, asked = calibration.config.get(key), target.config.get(key)
        if measured != asked:
            yield f"{key} is {measured}, not {asked}"
    for flag in ("tensor_parallel_size", "quantization", "kv_cache_dtype", "enable_lora"):
        measured, asked = calibration.args.get(flag), requirements.args.get(flag)
        if measured != asked:
            yield f"{flag} is {measured or 'not given'}, not {asked or 'left out'}"


def _schedules_asynchronously(requirements: Requirements) -> bool:
    """Return whether the release schedules asynchronously by default, unless a flag says otherwise."""
    given = requirements.args.get("async_scheduling")
    table = get_release(requirements.version).table("async_scheduling")
    return given if isinstance(given, bool) else bool(table.get("default"))
