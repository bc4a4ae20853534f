"""A setup resolved for sizing: model shapes, parallelism and limits, by the rules of the vLLM release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig
from draftwise.core import Effect, Finding, InvalidSetup, ModelShape, Ruling, Setup
from draftwise.knowledge.gpus import Gpu, get_gpu
from draftwise.knowledge.memory_overheads import Runner, get_batch_defaults
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release, history
from draftwise.plan.check import Context, Resolved, check_context, get_context
from draftwise.plan.check.engine import choose_runner
from draftwise.plan.size.drafter_parts import Drafter, describe_drafter
from draftwise.plan.size.shapes import read_shape, read_text_config
from draftwise.plan.size.weight_parts import Precision, get_precision, precision_of, spared_roles

NO_DRAFTER = Drafter()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """One server to size."""

    release: Release
    gpu: Gpu
    runner: Runner
    name: str
    """Display name of the target."""
    served: str
    """Name for looking the target up again; for a speculators checkpoint, the model that it names."""
    config: Mapping[str, Any]
    """The target's text config."""
    shape: ModelShape
    architecture: str = ""
    """Class of the target in vLLM, as config.json names it."""
    precision: Precision
    spared: frozenset[str] = frozenset()
    """Roles that the checkpoint's quantization leaves in 16 bits."""
    directory: Path | None = None
    """Folder of the target's weights; None if only its shape is known."""
    vision: Mapping[str, Any] | None = None
    drafter: Drafter = NO_DRAFTER
    drafter_precision: Precision
    drafter_directory: Path | None = None
    num_speculative_tokens: int = 0
    tensor_parallel_size: int = 1
    draft_tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    is_hybrid: bool = True
    """Whether layers with different windows form separate groups (the hybrid KV cache manager)."""
    prefix_caching: bool = True
    state_dtype: str | None = None
    """Data type of per-sequence states; None for config.json's."""
    enforce_eager: bool = False
    async_scheduling: bool = True
    cold_start: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    probabilistic: bool = False
    uncounted: tuple[str, ...] = ()
    """Flags of the setup whose effect on memory is unknown."""
    default_graphs: tuple[str, ...] = ()
    """Flags of the setup that change its CUDA graphs, which are counted as without them."""
    rulings: tuple[Finding, ...] = ()
    """Why this release would reject the setup, and what its graphs do not cover."""

    @property
    def rules(self) -> Rulebook:
        """The rules of this release."""
        return Rulebook(self.release.version)


def read_request(
    setup: Setup, *, gpu: Gpu | str | None = None, cold_start: bool = True, stored: str | None = None
) -> SizeRequest:
    """Resolve a setup as its vLLM release does.

    Args:
        setup: target, speculation, flags and vLLM version.
        gpu: GPU that it runs on; by default the setup's device.
        cold_start: whether vLLM compiles the model first.
        stored: precision of a quantized copy of the target that is served instead; None for the target as it is.

    Raises:
        InvalidSetup: target, version, GPU or method are unknown, or vLLM cannot read a flag.
    """
    context = get_context(setup)
    target = _get_target(context)
    found = gpu if isinstance(gpu, Gpu) else _read_gpu(gpu, setup)
    config = read_text_config(target.config, where=target.name)
    shape = read_shape(config, where=target.name)
    report = check_context(context)
    _check_method(context, report.findings)
    spec = _read_speculation(context, report.resolved)
    tp = _count(context, "tensor_parallel_size", 1)
    drafter = NO_DRAFTER if spec is None else _describe_drafter(context, spec, config)
    sizes = get_batch_defaults(found, context.release)
    length = _count(context, "max_model_len", shape.max_position_embeddings)
    quantization = stored or context.given.get("quantization")
    return SizeRequest(
        release=context.release,
        gpu=found,
        runner=_read_runner(context, spec),
        name=target.name,
        served=context.verifier or setup.target,
        config=config,
        shape=shape,
        architecture=_read_architecture(target.config),
        precision=get_precision(quantization) if quantization else precision_of(target.config),
        spared=frozenset() if quantization else spared_roles(target.config),
        directory=None if quantization else target.file or target.directory,
        vision=target.config.get("vision_config"),
        drafter=drafter,
        drafter_precision=_read_drafter_precision(context, context.drafter),
        drafter_directory=None if context.drafter is None else context.drafter.file or context.drafter.directory,
        num_speculative_tokens=(spec.num_speculative_tokens or 0) if spec else 0,
        tensor_parallel_size=tp,
        draft_tensor_parallel_size=spec.draft_tensor_parallel_size or tp if spec else tp,
        pipeline_parallel_size=_count(context, "pipeline_parallel_size", 1),
        gpu_memory_utilization=_read_share(context),
        max_model_len=length,
        max_num_seqs=_count(context, "max_num_seqs", sizes["max_num_seqs"]),
        max_num_batched_tokens=_count(context, "max_num_batched_tokens", sizes["max_num_batched_tokens"]),
        kv_cache_dtype=str(context.flags.get("kv_cache_dtype") or "auto"),
        block_size=_count(context, "block_size", _default_block_size(context, found, config, shape)),
        is_hybrid=not context.flags.get("disable_hybrid_kv_cache_manager"),
        prefix_caching=_has_prefix_caching(context, shape),
        state_dtype=_read_state_dtype(context),
        enforce_eager=bool(context.flags.get("enforce_eager")),
        async_scheduling=_is_async(context, spec),
        cold_start=cold_start,
        env=setup.env,
        probabilistic=context.keys.get("draft_sample_method") == "probabilistic",
        uncounted=tuple(_find_uncounted(context, {**config, **target.config})),
        default_graphs=tuple(f"--{name.replace('_', '-')}" for name in _OF_GRAPHS if name in context.given),
        rulings=tuple(each for each in report.findings if _matters(each)),
    )


def _get_target(context: Context) -> ModelConfig:
    if rejected := [ruling for ruling in context.rulings if ruling.effect is Effect.REJECTED]:
        raise InvalidSetup([*rejected, *context.faults])
    if context.target is None and context.faults:
        raise InvalidSetup(context.faults)
    if context.target is None or context.target.is_partial:
        name = context.setup.target
        if Path(name).is_file():
            raise refusal("unknown-target", case="file", name=name)
        raise refusal("unknown-target", case="layers", name=name)
    return context.target


def _check_method(context: Context, findings: Iterable[Finding]) -> None:
    """Refuse a method that the release does not have, unless it is one of the embedded engine that vLLM never had."""
    method = str(context.keys.get("method"))
    refused = [each for each in findings if each.code == "unknown-method"]
    if refused and (find_method(method) is None or history("methods", method)):
        raise InvalidSetup(refused)


def _read_gpu(name: str | None, setup: Setup) -> Gpu:
    if name is not None:
        return get_gpu(name)
    device = setup.device
    if device is None or device.kind == "cpu":
        raise refusal("no-gpu")
    try:
        known = get_gpu(device.name)
    except InvalidSetup:
        if device.memory_bytes is None:
            raise
        return Gpu(name=device.name, architecture="other", memory_bytes=device.memory_bytes)
    return known if device.memory_bytes is None else replace(known, memory_bytes=device.memory_bytes)


def _matters(finding: Finding) -> bool:
    stops = isinstance(finding, Ruling) and finding.effect in (Effect.REJECTED, Effect.FAILS_LATER)
    return finding.code == "cudagraph-cliff" or stops


_MOST_TOKENS = 10_000
"""More draft tokens a step are a slip; a config that is rejected is sized without it."""


def _read_speculation(context: Context, found: Resolved | None) -> Resolved | None:
    """Return what the release makes of the speculative config, else what it says."""
    if context.spec is None or found is not None:
        return found
    method, k = context.keys.get("method"), context.keys.get("num_speculative_tokens")
    return Resolved(
        method=method if isinstance(method, str) else "draft_model",
        num_speculative_tokens=k if type(k) is int and 0 < k <= _MOST_TOKENS else 0,
        model=None,
    )


def _describe_drafter(context: Context, spec: Resolved, target: Mapping[str, Any]) -> Drafter:
    config = None if context.drafter is None else read_text_config(context.drafter.config)
    return describe_drafter(spec.method, spec.num_speculative_tokens or 0, target, config)


def _read_runner(context: Context, spec: Resolved | None) -> Runner:
    found = spec.runner if spec is not None else None
    return "V2" if (found or choose_runner(context, spec).name) == "V2" else "V1"


def _is_async(context: Context, spec: Resolved | None) -> bool:
    """Say whether two batches are under way at once. The default of every release in which it matters here."""
    if spec is not None and spec.async_scheduling is not None:
        return spec.async_scheduling
    return context.flags.get("async_scheduling") is not False


_UNCOUNTED = (
    "decode_context_parallel_size", "prefill_context_parallel_size", "kv_cache_dtype_skip_layers", "mamba_block_size",
    "mamba_cache_dtype", "mamba_cache_mode", "num_gpu_blocks_override", "kv_cache_memory_bytes", "cpu_offload_gb",
    "cpu_offload_params", "offload_backend", "offload_group_size", "offload_params", "kv_sharing_fast_prefill",
    "enable_lora", "enable_eplb", "enable_elastic_ep", "enable_dbo", "ubatch_size", "use_replayssm",
    "replayssm_buffer_len", "swa_bounded_replay", "engram_config", "quantization_config", "model_impl", "worker_cls",
    "enable_return_routed_experts", "mm_ipc_gpu_memory_gb", "weight_transfer_config",
)  # fmt: skip
"""Flags that change what weights or cache take, or the room for them."""
_OF_PICTURES = (
    "language_model_only",
    "mm_encoder_only",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "mm_processor_device",
)
_OF_GRAPHS = ("compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "optimization_level")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NOTHING: tuple[Any, ...] = (None, False, 0, 1, (), [], {}, "auto", "vllm", "cpu")
"""Values of these flags that change nothing."""
_WIDE = frozenset({"float32", "float"})


def _find_uncounted(context: Context, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the given flags whose effect on the memory is not counted."""
    names: tuple[str, ...] = _UNCOUNTED
    if config.get("vision_config") or config.get("audio_config"):
        names += _OF_PICTURES
    if any(config.get(each) for each in _EXPERTS):  # data-parallel ranks share the experts
        names += ("data_parallel_size",)
    for name in names:
        if (value := context.given.get(name)) is True or value not in _NOTHING:
            yield f"--{name.replace('_', '-')}"
    if context.given.get("dtype") in _WIDE:
        yield "--dtype float32"


def _read_architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list | tuple) and named else ""


def _default_block_size(context: Context, gpu: Gpu, config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return the tokens of a block that suit the attention backend which the release takes on a GPU.

    16, but for a latent: FlashMLA, which reads 8-bit and sparse latents on Hopper, wants 64, FlashInfer 32.
    """
    if not shape.latent_dim:
        return 16
    small = config.get("index_n_heads") or not Rulebook(context.release.version).holds("size-small-latent-blocks")
    if small or (gpu.architecture == "hopper" and str(context.flags.get("kv_cache_dtype") or "auto").startswith("fp8")):
        return 64
    return 32 if gpu.architecture == "blackwell" else 16


def _has_prefix_caching(context: Context, shape: ModelShape) -> bool:
    """Say whether the server keeps prefixes: as given, else as the release has it for models with states."""
    given = context.given.get("enable_prefix_caching")
    rules = Rulebook(context.release.version)
    supported = not shape.state_layers or rules.holds("size-states-cached")
    default = supported and not (shape.state_layers and rules.holds("size-states-cached-on-request"))
    return default if given is None else bool(given)


def _read_state_dtype(context: Context) -> str | None:
    given = context.given.get("mamba_ssm_cache_dtype")
    return given if isinstance(given, str) and given != "auto" else None


def _read_drafter_precision(context: Context, drafter: ModelConfig | None) -> Precision:
    given = context.keys.get("quantization")
    if isinstance(given, str):
        return get_precision(given, where="speculative quantization")
    return precision_of({} if drafter is None else drafter.config)


def _read_share(context: Context) -> float:
    share = context.flags.get("gpu_memory_utilization")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise refusal("bad-utilization", share=share)
    return float(share)


def _count(context: Context, name: str, default: int) -> int:
    value = context.flags.get(name)
    if value is None or value == -1:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refusal("bad-number", flag=name.replace("_", "-"), value=value)
    return value
