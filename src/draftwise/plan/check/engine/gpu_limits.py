"""Judges weights and KV cache: layouts that have kernels, the GPU's compute capability, its generation's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Effect, Ruling, Stage
from draftwise.core.finding import join_names
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.model_copies import UNKNOWN as UNKNOWN_WEIGHTS
from draftwise.plan.check.engine.step_budget import find_gpu
from draftwise.plan.check.model import Model
from draftwise.plan.check.model.model_config import HfConfig, find_kernels, has_interface, place_of
from draftwise.plan.check.stages import Context

_AMPERE, _ADA, _HOPPER, _BLACKWELL = 80, 89, 90, 100
"""Compute capabilities: of most kernels for quantized weights, and of the first GPUs with FP8, FA3 and NVFP4."""
_SCHEMED = "compressed-tensors"
_OF_MANY_SCHEMES = (_SCHEMED, "quark", "torchao")
"""Methods whose schemes need more than the method itself: vLLM chooses their kernels layer by layer."""
_QUANTIZED = ("fp8", "nvfp4", "int4", "int8")
"""How the KV-cache types begin that few backends take."""
_CHOSEN = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
_CHOSEN_FOR_MLA = ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA")
"""Backends among which vLLM chooses, by kind of attention."""
_GEFORCE = 120
"""Compute capability from which few kernels of data-center GPUs run."""
_GROUPS = (-1, 32, 64, 128)
"""Sizes of groups that Marlin's kernels take in every release; -1 for whole columns."""
_PADDED = 8
"""GPUs for which a publisher pads its quantized copies: Qwen2.5-72B's have 29,696 columns in the place of 29,568."""
_HEADS = (64, 128, 256)
"""Head sizes that FlashInfer takes in every release."""


def find_gpu_limits(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield what a GPU of NVIDIA cannot compute, and what its kernels decide only at start-up."""
    gpu = find_gpu(context)
    weights = [*_list_weights(context, target)]
    for role, method, config in weights if context.platform == "cuda" else ():
        for what in _find_unusual(context, role, method, config):
            yield from context.rules.ruling("weights-kernel-open", role=role, what=what, where=place_of(role))
    if gpu is None or (gpu.capability is None and gpu.architecture != "other"):
        return
    asked = context.given.get("kv_cache_dtype")
    kind = asked if isinstance(asked, str) and asked.startswith(_QUANTIZED) else None
    stored = {} if target is None or asked not in (None, "auto") else target.config.weights
    inner = stored.get("quantization", stored)
    is_stored = isinstance(inner, Mapping) and bool(inner.get("kv_cache_scheme") or inner.get("kv_cache_quant_algo"))
    kind = "fp8" if is_stored else kind  # releases differ in whether they follow it
    if (has := gpu.capability) is None:
        named = [f"weights in {method}" for _, method, _ in weights] + [f"a KV cache in {kind}"] * (kind is not None)
        if named:
            yield from context.rules.ruling("gpu-by-memory", gpu=gpu.name, count=len(named), what=join_names(named))
        return
    if has < _AMPERE and context.flags.get("dtype") == "bfloat16":
        yield from context.rules.ruling("gpu-without-bfloat16", gpu=gpu.name)
    for role, method, config in weights:
        yield from _judge_weights(context, gpu.name, has, role, method, config)
    text = {} if target is None else target.config.text.values
    if has >= _GEFORCE and "kv_lora_rank" in text and "index_topk" in text:
        yield from context.rules.ruling("old-gpu-not-judged", gpu=gpu.name, what="sparse attention", where="target")
    if kind is not None:
        yield from _judge_cache(context, gpu.name, has, kind, target, is_asked=not is_stored)


def _list_weights(context: Context, target: Model | None) -> Iterator[tuple[str, str, HfConfig]]:
    """Yield role, method and config of each model with quantized weights."""
    config = HfConfig({}) if target is None else target.config
    drafter = HfConfig(context.draft_config)
    asked = {
        "target": (context.given.get("quantization") if target is None else target.quantization, config),
        "drafter": (context.keys.get("quantization") or drafter.quantization, drafter),
    }
    for role, (method, model) in asked.items():
        if isinstance(method, str) or model.weights == UNKNOWN_WEIGHTS:
            yield role, find_kernels(model, str(method)) if method else "an unknown method", model


def _judge_weights(context: Context, gpu: str, has: int, role: str, method: str, config: HfConfig) -> Iterator[Ruling]:
    where = "--quantization" if role == "target" else place_of(role)
    table = context.release.table("weight_schemes")
    row = context.release.table("quantization_methods").get(method, {})
    needs = [(method, {"capability": row.get("capability"), "only": False})]
    schemes = _find_schemes(context, config) if method == _SCHEMED else []
    needs += [(f"{method} ({scheme})", table[scheme]) for scheme in schemes if scheme]
    for what, each in needs:
        needed = each["capability"]
        if needed is not None and (has != needed if each["only"] else has < needed):
            is_late = role == "drafter" or what != method  # vLLM asks while it loads the layers
            code = "gpu-only-for-scheme" if each["only"] else "gpu-too-old-for-weights"
            told = {"role": role, "method": what, "gpu": gpu, "needed": needed / 10, "has": has / 10}
            for ruling in context.rules.ruling(code, where=where, **told):
                yield replace(ruling, effect=Effect.FAILS_LATER, stage=Stage.START_UP) if is_late else ruling
            return
    is_open = "" in schemes or (has < _AMPERE and (row.get("capability") is None or method in _OF_MANY_SCHEMES))
    if is_open or (has < _ADA and config.weights == UNKNOWN_WEIGHTS):
        yield from context.rules.ruling("old-gpu-not-judged", gpu=gpu, what=f"weights in {method}", where=where)


def _find_unusual(context: Context, role: str, method: str, config: HfConfig) -> Iterator[str]:
    """Yield what of a model's weights not every release has a kernel for, or no kernel can split over these GPUs."""
    stored = config.weights if isinstance(config.weights, Mapping) else {}
    if method == _SCHEMED:
        if "" in _find_schemes(context, config):
            yield f"in a scheme of {method} that draftwise does not know"
        return
    if not method.removeprefix("auto_").startswith(("gptq", "awq")):
        return
    bits, group = stored.get("bits", stored.get("w_bit", 4)), stored.get("group_size", stored.get("q_group_size", 128))
    usual = (4,) if "awq" in method else (4, 8)
    if bits not in usual or group not in _GROUPS or stored.get("sym") is False:
        kind = "" if stored.get("sym") is not False else ", not symmetric"
        yield f"in {method} with {bits} bits in groups of {group}{kind}"
        return
    text = config.text.values
    ranks = (context.sizes.get("tensor_parallel_size") or 1) if role == "target" else 1
    inner = text.get("intermediate_size")
    if not isinstance(inner, int) or config.num_experts or group <= 0:
        return
    padded = -(-inner // (_PADDED * group)) * _PADDED * group if _is_by_publisher(context, role) else inner
    if inner % (ranks * group) and padded % (ranks * group):
        yield f"in groups of {group}, which do not fit into {inner} columns over {ranks} GPU{'s' * (ranks > 1)}"


def _is_by_publisher(context: Context, role: str) -> bool:
    """Say whether the weights are a copy that the base's publisher made, and only the base's config is known."""
    model = context.target if role == "target" else context.drafter
    copy = None if model is None else model.copy
    return copy is not None and copy.name.partition("/")[0] == copy.base_name.partition("/")[0]


def _find_schemes(context: Context, config: HfConfig) -> list[str]:
    """Return the release's scheme of each group of layers; an empty name where it has none, or none is known."""
    table = context.release.table("weight_schemes")
    return [next((each for each in names if each in table), "") for names in [*_name_schemes(config)] or [()]]


def _name_schemes(config: HfConfig) -> Iterator[tuple[str, ...]]:
    """Yield the names that vLLM's releases have for the scheme of each group of layers; none for an unread group."""
    stored = config.weights
    groups = stored.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        parts = group if isinstance(group, Mapping) else {}
        weights, inputs = parts.get("weights"), parts.get("input_activations")
        form = parts.get("format") or stored.get("format")
        sparse = stored.get("sparsity_config") or {}
        is_dense = isinstance(sparse, Mapping) and sparse.get("format") in (None, "dense")
        if is_dense and isinstance(weights, Mapping) and isinstance(inputs, Mapping | None):
            yield _name_scheme(weights, inputs or {}, form)
        else:
            yield ()


def _name_scheme(weights: Mapping[str, Any], inputs: Mapping[str, Any], form: object) -> tuple[str, ...]:
    taken = (inputs.get("type"), inputs.get("num_bits"))
    match (weights.get("type", "int"), weights.get("num_bits"), weights.get("group_size")):
        case ("float", 4, 16):
            return ("W4A4Fp4", "W4A16Fp4") if inputs else ("W4A16Fp4", "W4A4Fp4")  # old GPUs fell back to 16 bits
        case ("float", 4, 32):
            return ("W4A8Mxfp4", "W4A4Mxfp4") if taken == ("float", 8) else ("W4A16Mxfp4", "W4A4Mxfp4")
        case ("float", 8, 32):
            return ("W8A8Mxfp8",)
        case ("float", 8, _):
            return ("W8A16Fp8",)  # which runs W8A8 on older GPUs too
        case ("int", 4, _) if taken == ("float", 8):
            return ("W4A8Fp8",)
        case ("int", 8, None | -1) if (*taken, form) == ("int", 8, "int-quantized") and weights.get("symmetric", True):
            return ("W8A8Int8",)
        case ("int", 4 | 8, group) if not inputs and form in ("pack-quantized", None) and group in (None, *_GROUPS):
            return ("WNA16",)
    return ()


def _judge_cache(
    context: Context, gpu: str, has: int, kind: str, target: Model | None, *, is_asked: bool
) -> Iterator[Ruling]:
    """Yield that no attention backend keeps such a KV cache on the GPU, or that nobody knows whether one does."""
    table = context.release.table("cache_backends")
    asked = context.given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND")
    text = {} if target is None else target.config.text.values
    is_mla = "kv_lora_rank" in text
    names = (str(asked).upper(),) if asked else _CHOSEN_FOR_MLA if is_mla else _CHOSEN
    answers = {_takes(context, name, table[name], kind, has, text) for name in names if name in table}
    # releases before 0.11.1 list no backends: of these, FA3 is known to take it
    is_plain = has == _HOPPER and kind in ("fp8", "fp8_e4m3") and not (is_mla or asked)
    is_special = target is None or (is_mla and any("index" in key for key in text))
    if True in answers:
        return
    if answers == {False} and not is_special and is_asked:
        yield from context.rules.ruling("cache-type-without-backend", kind=kind, gpu=gpu, names=names)
    elif has < _ADA or None in answers or not is_asked or not (answers or is_plain):
        what, where = f"a KV cache in {kind}", "--kv-cache-dtype"
        yield from context.rules.ruling("old-gpu-not-judged", gpu=gpu, what=what, where=where)


def _takes(
    context: Context, name: str, row: Mapping[str, Any], kind: str, has: int, text: Mapping[str, Any]
) -> bool | None:
    """Say whether a backend keeps a KV cache of a type on a GPU; None if that depends on what nobody gave."""
    runs = row["capabilities"]
    is_flash = name.startswith("FLASH_ATTN")
    if kind not in row["kinds"] and not (row["decides"] and is_flash and kind.startswith("fp8")):
        return False
    if (runs is not None and has not in runs) or (has < (row["fp8_from"] or 0) and kind.startswith("fp8")):
        return False
    if kind.startswith("nvfp4"):
        family = has // 10 * 10
        if family not in row["nvfp4"] or (family != _BLACKWELL and kind != "nvfp4"):
            return False if row["nvfp4"] else None
    if name == "FLASHINFER":
        size = text.get("head_dim") or text.get("hidden_size", 0) // (text.get("num_attention_heads") or 1)
        is_causal = context.keys.get("method") not in methods_where(network="one_pass")
        # Sinks, attention to whole images, and heads of two sizes have fewer backends.
        is_plain = text.get("model_type") != "gpt_oss" and has_interface(context, "SupportsMultiModal") is False
        is_plain = is_plain and "global_head_dim" not in text
        return True if size in _HEADS and is_causal and is_plain and has >= _AMPERE else None
    if is_flash:
        return True if has == _HOPPER and kind in ("fp8", "fp8_e4m3") else None if has > _HOPPER else False
    return None if runs is None or (name.startswith("TRITON") and has < _ADA and kind.startswith("fp8")) else True
