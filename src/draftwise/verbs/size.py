"""`size`: computes the memory that a setup takes on each GPU, without loading anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from typing import Annotated, Any, ClassVar

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Finding, InvalidSetup, Setup, Severity, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.knowledge.model_types import needs_checkpoint
from draftwise.knowledge.vllm import Release, find_remarks
from draftwise.plan.size import Sizing
from draftwise.plan.size import size as measure_setup
from draftwise.plan.size.view import GpuMemory, Item, contexts_of, describe_memory, items
from draftwise.verbs.field_types import Range
from draftwise.verbs.model_configs import open_configs
from draftwise.verbs.sources import SetupRequest, find_sources, open_release, read_spec, require_model
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["Item", "SizeRequest", "SizeResult", "items", "size"]


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """A target with or without a drafter, on a GPU."""

    target: str | PathLike[str]
    """Directory of a checkpoint, a well-known model id, a config.json, a command line, or a file (compose, Kubernetes,
    JSON, script) that starts one server; the fields below replace what it sets."""
    _: KW_ONLY
    gpu: str | None = None
    """Name, such as H200, L40S or A100-80GB, or memory, such as 48GiB; default: the target's."""
    engine_flags: Sequence[str] = ()
    """Flags of `vllm serve`, as on its command line, for a model."""
    drafter: str | PathLike[str] | None = None
    """Draft model or head: directory or known id."""
    method: str | None = None
    """Drafting method; None to infer it as vLLM does."""
    num_speculative_tokens: Annotated[int, Range(1)] | None = None
    speculative_config: SpecConfig | Mapping[str, Any] | str | PathLike[str] | None = None
    """vLLM's own JSON or a file that holds it, instead of the three fields above."""
    tensor_parallel_size: Annotated[int, Range(1, 1024)] | None = None
    pipeline_parallel_size: Annotated[int, Range(1, 1024)] | None = None
    quantization: str | None = None
    """Quantization of the target's weights: a method of vLLM that quantizes while it loads, or the precision of a
    quantized copy; None for the stored one."""
    kv_cache_dtype: str | None = None
    block_size: Annotated[int, Range(1)] | None = None
    """Tokens per KV block."""
    max_model_len: Annotated[int, Range(1)] | None = None
    max_num_seqs: Annotated[int, Range(1)] | None = None
    max_num_batched_tokens: Annotated[int, Range(1)] | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    """Whether vLLM runs without CUDA graphs."""
    enable_prefix_caching: bool | None = None
    """Whether the server caches prefixes; None for the release's default with this target."""
    contexts: Sequence[Annotated[int, Range(1)]] = ()
    """Context lengths in tokens at which to count sequences; default: powers of two."""
    vllm: str | None = None
    """Release; default: the target's, else the newest."""
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""
    compiled: bool = False
    """Whether vLLM's compile cache exists already."""
    config_from: str | PathLike[str] | None = None
    """Directory, config.json, or URL of either, for a target that draftwise does not know by name."""
    hub: bool = False
    """Whether to fetch config.json and the weights' index of unknown models from the Hugging Face hub."""
    usual_vllm: str | None = None
    """Release for a target that names none, unless the request names one."""
    usual_gpu: str | None = None
    """GPU for a target that names none, unless the request names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGpu:
    """The GPU of a sizing."""

    name: str
    memory: int
    """Bytes, as its driver reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult(Result):
    """Memory of one GPU with and without the drafter; sizes are bytes."""

    VERB: ClassVar[str] = "size"
    target: str
    method: str | None
    """Drafting method; null without speculation."""
    num_speculative_tokens: int | None
    vllm: str
    runner: str
    gpu: SizedGpu
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    with_drafter: GpuMemory
    without_drafter: GpuMemory
    findings: tuple[Finding, ...]
    asked: str
    """Requested release; differs from `vllm` if that is only the nearest known one."""
    contexts: tuple[int, ...] = field(metadata=HIDDEN)
    """Context lengths in tokens at which sequences are counted."""
    sizing: Sizing = field(metadata=HIDDEN)

    @property
    def exit_code(self) -> int:
        """1 if the setup does not fit, or vLLM would reject it."""
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))

    def to_svg(self) -> str:
        """Return a plot of memory and concurrency, with and without the drafter.

        Raises:
            InvalidSetup: matplotlib is not installed.
        """
        from draftwise.reporting.appearance import check_can_draw

        check_can_draw()
        from draftwise.reporting.memory_plot import draw

        return draw(self.sizing)


@verb(SizeRequest)
def size(request: SizeRequest, _progress: Progress) -> SizeResult:
    """Show the memory that a target and its drafter take on each GPU.

    Counts weights from safetensors headers if the target's directory has them, else from the model's shape. The rest is
    KV cache; the result has its capacity with and without the drafter.
    """
    setup, about = _read_setup(request)
    release = open_release(setup.engine_version or "newest", nearest=request.nearest)
    setup = replace(setup, engine_version=str(release))
    with open_configs([setup], request.config_from, hub=request.hub):
        stored = _find_stored(setup.target, release, request.quantization)
        if stored is not None:
            setup = replace(setup, args={name: value for name, value in setup.args.items() if name != "quantization"})
        sizing = measure_setup(setup, cold_start=not request.compiled, stored=stored)
    return _describe(
        replace(sizing, findings=(*find_remarks(release), *about, *sizing.findings)),
        contexts_of(sizing, tuple(request.contexts)),
        asked=release.asked or str(release),
    )


def _read_setup(request: SizeRequest) -> tuple[Setup, tuple[Finding, ...]]:
    """Return the setup of a target, with what the request replaces, and findings of reading both."""
    if request.vllm is not None:
        open_release(request.vllm, nearest=request.nearest)
    spec, about = _read_spec(request)
    changes: dict[str, Any] = {} if spec is None else {"spec": spec}
    sources = find_sources(
        SetupRequest(
            str(request.target),
            gpu=request.gpu,
            engine_flags=request.engine_flags,
            usual_vllm=request.usual_vllm if request.vllm is None else None,
            usual_gpu=request.usual_gpu if request.gpu is None else None,
        )
    )
    reading = replace(sources, changes=changes, about_changes=about).read(request.vllm).require_one()
    setup = reading.setup
    if any(each.code == "no-model-given" for each in reading.findings):
        refuse("The source names no model. Name it in the source, or give the model instead.")
    if reading.unknown:
        raise InvalidSetup(replace(each, severity=Severity.ERROR) for each in reading.unknown.values())
    return replace(setup, args={**setup.args, **_read_flags(request)}), reading.findings


def _describe(sizing: Sizing, contexts: tuple[int, ...], *, asked: str) -> SizeResult:
    of = sizing.request
    return SizeResult(
        target=of.name,
        method=of.drafter.method if of.num_speculative_tokens else None,
        num_speculative_tokens=of.num_speculative_tokens or None,
        vllm=str(of.release),
        runner=of.runner,
        gpu=SizedGpu(name=of.gpu.name, memory=of.gpu.memory_bytes),
        tensor_parallel_size=of.tensor_parallel_size,
        pipeline_parallel_size=of.pipeline_parallel_size,
        max_model_len=of.max_model_len,
        max_num_seqs=of.max_num_seqs,
        max_num_batched_tokens=of.max_num_batched_tokens,
        with_drafter=describe_memory(sizing.budget, contexts),
        without_drafter=describe_memory(sizing.plain, contexts),
        findings=sizing.findings,
        asked=asked,
        contexts=contexts,
        sizing=sizing,
    )


def _read_spec(request: SizeRequest) -> tuple[SpecConfig | None, tuple[Finding, ...]]:
    named = {
        "method": request.method,
        "model": None if request.drafter is None else require_model(request.drafter, "--drafter"),
        "num_speculative_tokens": request.num_speculative_tokens,
    }
    known = {key: value for key, value in named.items() if value is not None}
    given = request.speculative_config
    if given is None:
        return SpecConfig.keep({"num_speculative_tokens": 3, **known}) if known else None, ()
    if known:
        refuse("Give either --speculative-config or --drafter, --method and --num-speculative-tokens.")
    return read_spec(given)


def _find_stored(target: str, release: Release, name: str | None) -> str | None:
    """Return the precision of a quantized copy of the target. None where it is quantized already, or while it loads."""
    found = find_model_config(target)
    if name is None or found is None or found.config.get("quantization_config"):
        return None
    by_vllm = name in release.table("quantization_methods")
    return name if not by_vllm or needs_checkpoint(name) else None


def _read_flags(request: SizeRequest) -> dict[str, Any]:
    """Return the engine flags that the request sets."""
    names = (
        "tensor_parallel_size", "pipeline_parallel_size", "quantization", "kv_cache_dtype", "block_size",
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching",
    )  # fmt: skip
    flags = {name: value for name in names if (value := getattr(request, name)) is not None}
    return flags | ({"enforce_eager": True} if request.enforce_eager else {})
