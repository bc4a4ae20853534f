"""The target: what ModelConfig makes of the served model, and where speculation takes its drafter from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from draftwise.core import Ruling, Stage
from draftwise.facts.quantization import needs_checkpoint
from draftwise.facts.rules import get_rule
from draftwise.plan.check.architecture import supports
from draftwise.plan.check.context import Context
from draftwise.plan.check.hf_config import read_hf_config
from draftwise.plan.check.later.legacy import find_window, has_chunked_prefill
from draftwise.plan.check.lookup import MODEL_FREE
from draftwise.plan.check.model import Model, judge_model
from draftwise.plan.check.parallel import find_target_parallel
from draftwise.plan.check.work import Work

__all__ = ["fill_in_target", "find_target", "read_target"]

_FROM_TARGET = ("mtp", "dspark")
"""Methods that can draft with the target's own weights."""
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
_QUANTIZED_CACHES = ("fp8", "int8_per_token_head", "nvfp4")
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
_IMPLIED = {
    "deepseek_v3": "target-implies-mtp",
    "mimo": "target-implies-mtp",
    "ernie4_5_moe": "more-targets-imply-mtp",
    "qwen3_next": "more-targets-imply-mtp",
}
"""Targets whose MTP layers old releases use whatever method is asked for, and the rule of those releases."""


def read_target(context: Context) -> tuple[Model | None, tuple[Ruling, ...]]:
    """Return the target as ModelConfig holds it, and why it is refused; None where it cannot be read here."""
    if context.target is None:
        return None, (_tell_unknown(context),)
    config = read_hf_config(context, context.target, role="target")
    if isinstance(config, Ruling):
        return None, (config,)
    length = context.given.get("max_model_len")
    quantization = context.given.get("quantization")
    model, rulings = judge_model(
        context, config, role="target", max_model_len=length if isinstance(length, int) else None,
        quantization=quantization if isinstance(quantization, str) else None,
    )  # fmt: skip
    return model, (*_find_sizes(context), *rulings)


def find_target(context: Context, target: Model, method: str | None) -> Iterator[Ruling]:
    """Yield what the engine's config says of the target once the speculative config stands.

    Args:
        context: the setup.
        target: the served model.
        method: as resolved; a model-free one has the target checked in the drafter's place, and thereby earlier.
    """
    for ruling in find_target_parallel(context, target.config):
        yield replace(ruling, stage=Stage.CONFIG) if method in MODEL_FREE and method != "suffix" else ruling
    yield from _find_quantization(context, target)
    lora = context.rule("target-without-lora")
    names = target.config.architectures
    if lora is not None and context.flag("enable_lora") is True and not supports(context, names, "SupportsLoRA"):
        yield lora.ruling(f"is set, and {', '.join(names)} has no LoRA support.", where="enable_lora", fix="Remove it.")
    yield from _find_cache(context)
    yield from _find_cpu_cache(context)
    text = target.config.text
    yield from find_window(context, None if text.get("use_sliding_window") is False else text.get("sliding_window"))


def _find_cache(context: Context) -> Iterator[Ruling]:
    rule = context.rule("kv-cache-dtype-unknown")
    asked = context.given.get("kv_cache_dtype")
    known = context.release.table("flags")["--kv-cache-dtype"].get("suggestions", ())
    if rule is not None and isinstance(asked, str) and asked not in known:
        near = get_close_matches(asked.lower(), known, n=1)
        yield rule.ruling(
            f"{asked!r} is no KV cache dtype of vLLM {context.release}.", where="kv_cache_dtype",
            fix=f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}.",
        )  # fmt: skip


def _find_cpu_cache(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of a KV-cache dtype that a CPU server has no kernels for."""
    rule, asked = context.rule("cpu-kv-cache-dtype"), context.given.get("kv_cache_dtype")
    if context.platform != "cpu" or rule is None or asked in (None, "auto"):
        return
    quantized = context.holds("cpu-kv-cache-any-dtype") or str(asked).startswith(_QUANTIZED_CACHES)
    caches = context.flag("enable_prefix_caching")
    if context.holds("cpu-kv-cache-takes-v0"):
        features = caches is True or context.flag("enable_chunked_prefill") is True
    else:
        features = caches is not False or has_chunked_prefill(context)
    if quantized and features:
        yield rule.ruling(
            f"is {asked!r}, which a CPU server of {context.release} does not combine with chunked prefill or prefix "
            "caching.", where="kv_cache_dtype", fix="Leave it out, or use 0.21.0 or newer.",
        )  # fmt: skip


def _find_sizes(context: Context) -> Iterator[Ruling]:
    length = context.given.get("max_model_len")
    not_positive = context.rule("target-length-not-positive")
    as_fits = -1 if context.holds("length-auto") else 0
    if not_positive is not None and isinstance(length, int) and (length == 0 or length < as_fits):
        yield not_positive.ruling(f"is {length}; it must be above 0.", where="max_model_len", fix="Leave it out.")
    for name in _SIZES:
        size = context.given.get(name)
        if isinstance(size, int) and size < 1:
            rule = context.rule("parallel-size-not-positive") or get_rule("parallel-size-zero")
            ruling = rule.ruling(f"is {size}; it must be 1 or more.", where=name, fix="Give 1 or more.")
            yield ruling if rule.exception == "ValidationError" else replace(ruling, stage=_divided_at(context))
    yield from _find_world(context)


def _divided_at(context: Context) -> Stage:
    """Return where old releases divide by a parallel size: with the drafter, where there is one."""
    drafts = context.spec is not None and context.spec.get("method") != "suffix"
    return Stage.CONFIG if drafts else Stage.ENGINE


def _find_world(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of more GPUs than a single node has, where it is known how many that are."""
    rule, device = context.rule("world-beyond-node"), context.setup.device
    if rule is None or device is None or device.kind != "cuda" or context.flag("nnodes", 1) != 1:
        return
    if device.count <= 1:  # what a description says that does not count its GPUs
        return
    if context.given.get("distributed_executor_backend") or context.flag("data_parallel_backend") == "ray":
        return
    tensor, stages = (context.flag(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    if isinstance(tensor, int) and isinstance(stages, int) and tensor * stages > device.count:
        yield rule.ruling(
            f"{tensor} times {stages} pipeline stages need {tensor * stages} GPUs, and the node has {device.count}.",
            where="tensor_parallel_size", fix="Set distributed_executor_backend to ray, or nnodes.",
        )  # fmt: skip


def _find_quantization(context: Context, model: Model) -> Iterator[Ruling]:
    """Yield the refusal of a method that needs a quantized checkpoint, for one that is not."""
    method = context.given.get("quantization")
    if not isinstance(method, str) or model.config.quantization is not None or not needs_checkpoint(method.lower()):
        return
    directory = None if context.target is None else context.target.directory
    if directory is None or not any((directory / name).is_file() for name in _QUANTIZATION_FILES):
        yield get_rule("target-not-quantized").ruling(
            f"is {method!r}, which loads quantized checkpoints only, and this one is not.", where="quantization",
            fix="Leave it out, or use a method that quantizes while it loads, such as fp8.",
        )  # fmt: skip


def _tell_unknown(context: Context) -> Ruling:
    name = context.setup.target
    for fault in context.faults:
        if fault.where == name:
            return get_rule("target-config-unreadable").ruling(fault.message, where="target", fix=fault.fix)
    return get_rule("target-not-here").ruling(
        f"{name!r} is neither a directory here nor in the table of known models; what depends on its config.json is "
        "not checked.", where="target", fix="Give a directory with its config.json to have the rest checked.",
    )  # fmt: skip


def fill_in_target(work: Work) -> None:
    """Give a config without `model` the drafter that its method implies."""
    if work.model is not None or not work.known("method", "model", "num_speculative_tokens") or work.tokens is None:
        return
    context, method = work.context, work.method
    target_type = "" if work.target is None else work.target.config.text.model_type
    if target_type in _IMPLIED and context.holds(_IMPLIED[target_type]):
        if method != "deepseek_mtp":
            work.add(_IMPLIED[target_type], f"is of type {target_type!r}; without `model`, this release drafts with "
                 "its MTP layers whatever the method.", where="target", becomes="deepseek_mtp")  # fmt: skip
        _draft_with_target(work)
    elif method in _FROM_TARGET:
        _draft_with_target(work)
    elif method == "custom_class":
        work.add("custom-class-needs-path", "needs `model` with the path of the class.", where="model",
                 fix='Add "model": "package.module.Class".', opens=("model",))  # fmt: skip
    elif method in MODEL_FREE:
        work.model = method
    elif target_type or not context.holds("target-implies-mtp"):
        _refuse_missing(work)


def _draft_with_target(work: Work) -> None:
    context = work.context
    work.model = context.setup.target if context.verifier is None else context.verifier
    if not work.quantization and work.target is not None and context.holds("mtp-inherits-quantization"):
        work.quantization = work.target.quantization
    eager = work.target is not None and work.target.config.text.model_type == "deepseek_v32"
    if eager and context.holds("mtp-v32-eager"):
        work.filled["enforce_eager"] = True
        work.add("mtp-v32-eager", "makes the drafter run without CUDA graphs on this target.", where="method",
                 becomes='"enforce_eager": true', fix="Use 0.29.0 or newer.")  # fmt: skip


def _refuse_missing(work: Work) -> None:
    said = f"needs `model`, the drafter for {work.method}" if work.method is not None else "needs `method` or `model`"
    work.add("model-missing", f"{said}.", where="model", fix='Add "model": "<directory or id of the drafter>".',
             opens=("model", "draft"))  # fmt: skip
