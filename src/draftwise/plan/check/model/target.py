"""The target in the server's config: sizes, GPUs to split over, KV cache; drafters are split by the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig
from draftwise.checkpoints.gguf_files import is_gguf
from draftwise.core import Ruling, Stage
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.model_copies import ModelCopy
from draftwise.knowledge.model_types import needs_checkpoint
from draftwise.knowledge.models import near_models
from draftwise.plan.check.model.hf_config import find_other_name, read_hf_config
from draftwise.plan.check.model.model_config import (
    HfConfig,
    Model,
    build_model,
    find_architecture,
    find_class_faults,
    find_quantization,
    place_of,
    supports,
)
from draftwise.plan.check.stages import Context, Step

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_MISTRAL_FILE = "params.json"
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
_GGUF_ALWAYS_READ = ("llama", "qwen2")
"""What transformers read before the oldest release of vLLM that is judged."""
_QUANTIZED_CACHES = ("fp8", "int8_per_token_head", "nvfp4")


def read_target(context: Context) -> Step[Model | None]:
    """Return the target as ModelConfig resolves it, and yield why it is rejected; None if it cannot be read here."""
    yield from _find_sizes(context)
    if context.target is None:
        yield from _find_unread(context)
        yield from find_quantization(context, context.given.get("quantization"), "target")
        return None
    yield from find_other_name(context.rules, context.target.name, context.target, where="target")
    yield from _find_format(context, context.target)
    yield from _find_gguf(context, context.target)
    if context.target.copy is not None:
        yield from _find_copy(context, context.target.copy)
    if context.target.is_partial:
        yield from find_class_faults(context, HfConfig(context.target.config), "target")
        known = {"name": context.target.name, "names": ", ".join(context.target.architectures)}
        yield from context.rules.ruling("target-partly-known", **known, waiting=_count_waiting(context))
        yield from find_quantization(context, context.given.get("quantization"), "target")
        return None
    config = yield from read_hf_config(context, context.target, role="target")
    if config is None:
        return None
    length = context.given.get("max_model_len")
    quantization = context.given.get("quantization")
    return (
        yield from build_model(
            context,
            config,
            role="target",
            max_model_len=length if isinstance(length, int) else None,
            quantization=quantization if isinstance(quantization, str) else None,
        )
    )


def _find_unread(context: Context) -> Iterator[Ruling]:
    name = context.setup.target
    for fault in context.faults:
        if name and fault.where in (name, str(Path(name)), str(Path(name, "config.json"))):
            if is_gguf(name) and fault.code.startswith("unsupported-"):
                yield from context.rules.ruling("gguf-not-read-here", fault=fault.message)
                return
            yield from context.rules.ruling("target-config-unreadable", message=fault.message, fix=fault.fix)
            return
    if name and (others := [*find_other_name(context.rules, name, None, where="target")]):
        yield from others
        return
    waiting = _count_waiting(context)
    told = {"name": name, "near": near_models(name)}
    if not name:
        text = f"No target is named. {waiting} rules need its config.json and were not checked."
        told = {"message": text, "near": ""}
    yield from context.rules.ruling("target-not-here", waiting=waiting, **told)


def _count_waiting(context: Context) -> int:
    return context.rules.count_waiting("target", method=context.keys.get("method"), drafts="model" in context.keys)


def _find_format(context: Context, target: ModelConfig) -> Iterator[Ruling]:
    given, known = context.given.get("config_format"), context.release.table("config_fields")
    formats = known.get("ModelConfig.config_format", {}).get("choices", ())
    if isinstance(given, str) and formats and given not in formats:
        yield from context.rules.ruling("config-format-unknown", asked=given, known=formats)
    yield from find_mistral_format(context, target, role="target")


def find_mistral_format(context: Context, model: ModelConfig, *, role: str) -> Iterator[Ruling]:
    """Yield a finding if a model lacks a requested params.json; drafters are read like the target."""
    if context.flags.get("config_format") != "mistral":
        return
    if model.directory is not None:
        is_there: bool | None = (model.directory / _MISTRAL_FILE).is_file()
    else:  # of the hub: Mistral's own and their copies may have the file
        is_there = None if "tral" in " ".join((model.name, model.model_type, *model.architectures)).lower() else False
    if is_there is None:
        yield from context.rules.ruling("config-format-file-unknown", name=model.name, where=place_of(role))
    elif not is_there:
        code = "drafter-format-without-file" if role == "drafter" else "config-format-without-file"
        yield from context.rules.ruling(code, name=model.name)


def _find_copy(context: Context, copy: ModelCopy) -> Iterator[Ruling]:
    weights = "" if copy.has_known_weights else " The quantization of its weights is unknown."
    yield from context.rules.ruling("judged-as-base", what=copy.what, base=copy.base_name, weights=weights)


def _find_gguf(context: Context, target: ModelConfig) -> Iterator[Ruling]:
    if target.file is None and not (target.copy is not None and target.copy.is_gguf):
        return
    if target.model_type not in _GGUF_ALWAYS_READ:
        yield from context.rules.ruling("gguf-architecture-unread", model_type=target.model_type)
    yield from context.rules.ruling("gguf-needs-plugin")
    yield from context.rules.ruling("gguf-experimental")


def find_target(context: Context, target: Model, method: str | None) -> Iterator[Ruling]:
    """Yield what the engine's config rejects or changes for the target, after the speculative config."""
    for ruling in _find_target_parallel(context, target.config):
        yield replace(ruling, stage=Stage.CONFIG) if _stands_in(context, method) else ruling
    yield from _find_unquantized(context, target.config)
    names = target.config.architectures
    if context.flags.get("enable_lora") is True and not supports(context, names, "SupportsLoRA"):
        yield from context.rules.ruling("target-without-lora", names=names)
    known = context.release.table("architectures")
    if any(known.get(name, {}).get("group") == "speculative_decoding" for name in names[:1]):
        yield from context.rules.ruling("target-is-drafter", name=names[0])
    yield from _find_cache(context, target.config)
    yield from _find_hybrid(context, target)


def _stands_in(context: Context, method: str | None) -> bool:
    """Say whether vLLM puts the target in the place of the drafter that a method does not have, and checks it first."""
    found = find_method(method)
    return (
        found is not None
        and found.weights == "none"
        and not context.rules.applies("suffix-without-draft-config", method)
    )


def _find_sizes(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of sizes below 1, and of more GPUs than a node has."""
    length = context.given.get("max_model_len")
    as_fits = -1 if context.rules.holds("max-model-len-auto") else 0
    if isinstance(length, int) and (length == 0 or length < as_fits):
        yield from context.rules.ruling("target-length-not-positive", length=length)
    for name in _SIZES:
        size = context.given.get(name)
        if isinstance(size, int) and size < 1:
            yield from _find_size_below_one(context, name, size)
    yield from _find_world(context)


def _find_size_below_one(context: Context, name: str, size: int) -> Iterator[Ruling]:

    yield from context.rules.ruling("parallel-size-not-positive", name=name, size=size)
    # Old releases divide by the size without a check: with the drafter, where there is one. They run with other faults.
    if size or name == "pipeline_parallel_size":
        return
    method = context.keys.get("method")
    drafts = context.spec is not None and not context.rules.applies("suffix-without-draft-config", method)
    for ruling in context.rules.ruling("parallel-size-zero", name=name, size=size):
        yield replace(ruling, stage=Stage.CONFIG if drafts else Stage.ENGINE)


def _find_world(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of more GPUs than a single node has, where it is known how many that are."""
    device = context.setup.device
    if device is None or device.kind != "cuda" or context.flags.get("nnodes", 1) != 1:
        return
    if device.count <= 1:  # what a description says that does not count its GPUs
        return
    if context.given.get("distributed_executor_backend") or context.flags.get("data_parallel_backend") == "ray":
        return
    names = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
    sizes = {name: size for name in names if isinstance(size := context.flags.get(name, 1), int)}
    world = prod(sizes.values())
    if len(sizes) == len(names) and world > device.count:
        shown = " times ".join(f"{name} {size}" for name, size in sizes.items() if size != 1)
        yield from context.rules.ruling("world-beyond-node", world=world, shown=shown, count=device.count)


def find_drafter_parallel(context: Context, config: HfConfig, tensor: int) -> Iterator[Ruling]:
    """Yield why the drafter cannot be split over `tensor` GPUs, and the stages that it runs on."""
    stages = context.flags.get("pipeline_parallel_size", 1)
    experts = context.flags.get("enable_expert_parallel", False)
    if context.rules.holds("drafter-on-one-stage"):
        stages = 1
        experts = experts and (config.num_experts > 0 or not context.rules.holds("drafter-experts-by-class"))
    else:
        experts = False
    yield from _find_split(context, config, tensor, stages, experts, "drafter")


def _find_target_parallel(context: Context, config: HfConfig) -> Iterator[Ruling]:
    tensor = context.flags.get("tensor_parallel_size", 1)
    stages = context.flags.get("pipeline_parallel_size", 1)
    yield from _find_split(
        context, config, tensor, stages, context.flags.get("enable_expert_parallel", False), "target"
    )
    yield from _find_decode_contexts(context, config, tensor)


def _find_split(
    context: Context, config: HfConfig, tensor: Any, stages: Any, experts: Any, role: str
) -> Iterator[Ruling]:
    heads = config.num_attention_heads
    if isinstance(tensor, int) and tensor > 0 and heads % tensor:
        key = "draft_tensor_parallel_size" if role == "drafter" else "tensor_parallel_size"
        yield from context.rules.ruling(f"{role}-heads-not-divisible", key=key, tensor=tensor, heads=heads)
    if experts and config.num_experts < 1:
        yield from context.rules.ruling(f"{role}-has-no-experts")
    yield from find_stages(context, config, stages, role)


def find_stages(context: Context, config: HfConfig, stages: Any, role: str) -> Iterator[Ruling]:
    """Yield why a model cannot be split into pipeline stages."""
    if not isinstance(stages, int) or stages <= 1:
        return
    if find_architecture(context, config.architectures, served=True) is None:
        # Only releases that did not look for the class before come here: they do now.
        yield from context.rules.ruling(
            f"{role}-class-unknown",
            names=config.architectures,
            where=place_of(role),
            fix="Use a release that registers it.",
        )
    elif not supports(context, config.architectures, "SupportsPP"):
        yield from context.rules.ruling(f"{role}-without-pipeline", names=config.architectures, where=place_of(role))


def _find_decode_contexts(context: Context, config: HfConfig, tensor: Any) -> Iterator[Ruling]:
    contexts = context.flags.get("decode_context_parallel_size", 1)
    if not isinstance(contexts, int) or contexts <= 1 or not isinstance(tensor, int) or config.text.get("kv_lora_rank"):
        return
    heads = config.num_attention_heads
    kv_heads = next((value for key in _KV_HEADS if isinstance(value := config.text.get(key), int)), heads)
    if not kv_heads:
        return
    if tensor <= kv_heads or contexts > tensor // kv_heads or (heads // kv_heads) % contexts:
        yield from context.rules.ruling(
            "target-decode-contexts", contexts=contexts, kv_heads=kv_heads, group=heads // kv_heads
        )


def _find_unquantized(context: Context, config: HfConfig) -> Iterator[Ruling]:
    method = context.given.get("quantization")
    if isinstance(method, str) and needs_checkpoint(method.lower()) and is_unquantized(context.target, config):
        yield from context.rules.ruling("target-not-quantized", method=method)


def is_unquantized(target: ModelConfig | None, config: HfConfig) -> bool:
    """Say whether a checkpoint is known to have no quantization: no GGUF file, and no file next to it tells of one."""
    if config.weights or target is None or target.file is not None:
        return False
    directory = target.directory
    return directory is None or not any((directory / name).is_file() for name in _QUANTIZATION_FILES)


def _find_cache(context: Context, config: HfConfig) -> Iterator[Ruling]:
    asked = context.given.get("kv_cache_dtype")
    known = context.release.table("flags")["--kv-cache-dtype"].get("suggestions", ())
    if isinstance(asked, str) and asked not in known:
        near = get_close_matches(asked.lower(), known, n=1)
        yield from context.rules.ruling(
            "kv-cache-dtype-unknown",
            asked=asked,
            fix=f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}.",
        )
    yield from _find_type_on_cpu(context)
    yield from _find_window_on_v0(context, config.text)


def _find_type_on_cpu(context: Context) -> Iterator[Ruling]:
    asked = context.given.get("kv_cache_dtype")
    if context.platform != "cpu" or asked in (None, "auto"):
        return
    quantized = context.rules.holds("cpu-kv-cache-any-dtype") or str(asked).startswith(_QUANTIZED_CACHES)
    caches = context.flags.get("enable_prefix_caching")
    if context.rules.holds("cpu-kv-cache-takes-v0"):
        features = caches is True or context.flags.get("enable_chunked_prefill") is True
    else:
        features = caches is not False or context.chunks_prefill
    if quantized and features:
        yield from context.rules.ruling("cpu-kv-cache-dtype", asked=asked)


def _find_window_on_v0(context: Context, config: HfConfig) -> Iterator[Ruling]:
    window = None if config.get("use_sliding_window") is False else config.get("sliding_window")
    asked = "enable_prefix_caching" in context.on and "disable_sliding_window" not in context.on
    if window is not None and asked and context.runs_on_v0:
        yield from context.rules.ruling("v0-rejects-prefixes-with-window", window=window)


def _find_hybrid(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield why a hybrid target cannot cache prefixes as the flags, or the release's defaults, have it."""
    names = target.config.architectures
    if not (supports(context, names, "IsHybrid") or supports(context, names, "IsAttentionFree")):
        return
    asked = context.flags.get("enable_prefix_caching")
    if asked is False or (asked is not True and not context.rules.holds("hybrid-caches-prefixes")):
        return
    if supports(context, names, "SupportsMambaPrefixCaching") and not context.rules.holds("hybrid-always-aligned"):
        return
    if context.flags.get("enable_chunked_prefill") is False:
        yield from context.rules.ruling("hybrid-needs-chunked-prefill")
    if context.spec is not None:
        yield from context.rules.ruling("hybrid-prefixes-or-drafts")
