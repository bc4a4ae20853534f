"""Known defects that a setup meets: the rows of the ledger whose condition holds, as findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig, count_experts
from draftwise.core import Finding, Ruling, Severity
from draftwise.knowledge.defects import Defect, find_open
from draftwise.knowledge.stored import read_rows
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.cli.condition_values import UNKNOWN, decide, names_in
from draftwise.plan.check.engine.step_budget import SCHEDULE, find_gpu, get_limits
from draftwise.plan.check.model.model_config import HfConfig, has_interface, is_text_only
from draftwise.plan.check.stages import Context

_PRAISED_FOR: Mapping[str, str] = {
    "prefix-caching-with-drafts": "prefix_caching",
    "kv-transfer-with-drafts": "kv_connector",
    "lora-with-drafts": "lora",
    "structured-outputs-with-drafts": "structured",
    "logprobs-with-drafts": "logprobs",
    "chunked-prefill-with-drafts": "chunked_prefill",
}
"""Rule that says that a feature goes with speculation -> the fact that a row names whose fault is about the feature."""
_INTERFACES: Mapping[str, str] = {"IsHybrid": "hybrid", "SupportsMultiModal": "multimodal", "SupportsMRoPE": "mrope"}
_PLATFORMS: Mapping[str, tuple[str, ...]] = {
    "rocm": ("VLLM_ROCM_",),
    "ascend": ("VLLM_ASCEND_",),
    "xpu": ("VLLM_XPU_",),
}
"""Platform -> beginnings of the variables that only it reads."""
_OF_ENGINE = ("scheduler", "scheduling", "prefix cache", "KV connectors", "structured output", "configuration")
"""Beginnings of components that a hardware plugin takes from vLLM; runner, attention and drafters are its own."""


def find_met(context: Context, resolved: Resolved) -> tuple[tuple[Defect, ...], tuple[Defect, ...]]:
    """Return the rows of the release whose condition certainly holds, for any verb; and all that may hold."""
    rows = [*find_open(context.release.version, resolved.facts.name)]
    facts = read_facts(context, resolved) if rows else {}
    answers = [(row, decide(row.when, facts)) for row in rows]
    if facts.get("platform") == "ascend":
        own = ("vllm-ascend", *_OF_ENGINE)
        answers = [(row, holds if row.component.startswith(own) or not holds else UNKNOWN) for row, holds in answers]
    met = tuple(row for row, holds in answers if holds and holds is not UNKNOWN)
    return met, tuple(row for row, holds in answers if holds)


def find_met_by_plugin(context: Context) -> Iterator[Defect]:
    """Yield the rows of arctic-inference whose condition holds for the JSON as written; nothing else is known."""
    facts = {"keys": context.keys, "written_method": context.keys.get("method")}
    for row in find_open(context.release.version, None):
        if row.component == "arctic-inference" and decide(row.when, facts) is True:
            yield row


def find_defects(context: Context, met: Iterable[Defect], found: Iterable[Finding]) -> Iterator[Ruling]:
    """Yield the known defects that `check` reports for a setup."""
    said = {each.code for each in found}
    for row in met:
        if row.told_by != "watch" and said.isdisjoint(row.rules):
            yield row.ruling(context.release)


def find_on_some_gpus(context: Context, resolved: Resolved, possible: Iterable[Defect]) -> Iterator[Ruling]:
    """Yield notes on the defects of which only the GPU, which nobody named, decides whether the setup meets them."""
    rows = [row for row in possible if row.told_by == "check" and "sm" in names_in(row.when)]
    facts = read_facts(context, resolved) if rows else {}
    for row in rows if facts.get("sm") is UNKNOWN else ():
        met = [sm for sm in (75, 80, 89, 90, 100, 120, 121) if decide(row.when, {**facts, "sm": sm}) is True]
        if met:
            told = row.ruling(context.release)
            where = " or ".join(f"{sm / 10}" for sm in met)
            message = f"On GPUs of compute capability {where}. {told.message}"
            yield replace(told, severity=Severity.INFO, message=message, fix=f"{told.fix} Name your GPU with --gpu.")


def contradicts(finding: Finding, rows: Iterable[Defect]) -> bool:
    """Return whether a finding says that a feature works, and a row says that it has a fault."""
    fact = _PRAISED_FOR.get(finding.code)
    return fact is not None and any(fact in names_in(row.when) for row in rows)


def read_facts(context: Context, resolved: Resolved) -> Mapping[str, Any]:
    """Return the facts about a setup for the conditions of rows, by name; unknown ones are missing or `UNKNOWN`.

    `target` and `drafter` are lists of words: family, class, model type and traits. `flags`, `keys` and `env` hold
    given values over defaults.
    """
    flags, given, sizes = context.flags, context.given, context.sizes
    target = _describe_model(context.target, context.setup.target)
    if target is not UNKNOWN:
        target += [trait for interface, trait in _INTERFACES.items() if has_interface(context, interface)]
    limits = get_limits(context)
    compilation = context.objects.get("compilation_config", {})
    connector = context.objects.get("kv_transfer_config", {})
    hybrid = UNKNOWN if target is UNKNOWN else "hybrid" in target
    caches = _caches_prefixes(context, hybrid)
    gpu = find_gpu(context)
    return {
        "method": resolved.facts.name,
        "written_method": context.keys.get("method"),
        "has_drafter": resolved.facts.has_weights,
        "k": _or_unknown(resolved.num_speculative_tokens),
        "runner": resolved.runner or "",
        "async_scheduling": _or_unknown(resolved.async_scheduling),
        "parallel_drafting": resolved.parallel_drafting,
        "platform": _find_platform(context, None if gpu is None else gpu.architecture),
        "sm": UNKNOWN if gpu is None or gpu.capability is None else gpu.capability,
        "gpu": UNKNOWN if gpu is None else gpu.name,
        "target": target,
        "target_name": context.setup.target.lower(),
        "quantization": _find_quantization(context, context.target),
        "reasoning": bool(given.get("reasoning_parser")),
        "drafter": _describe_model(context.drafter, str(context.keys.get("model") or "")),
        "drafter_name": str(context.keys.get("model") or "").lower(),
        "drafter_quantization": _find_quantization(context, context.drafter, own=True),
        "drafter_config": context.draft_config,
        "drafter_length": _length_of(context.drafter),
        "max_model_len": sizes.get("max_model_len") or _length_of(context.target),
        "tp": sizes.get("tensor_parallel_size") or 1,
        "pp": context.stages,
        "dp": sizes.get("data_parallel_size") or 1,
        "dcp": sizes.get("decode_context_parallel_size") or 1,
        "ep": "enable_expert_parallel" in context.on,
        "prefix_caching": caches,
        "mamba_cache_mode": UNKNOWN if UNKNOWN in (caches, hybrid) else _find_state_mode(context, caches and hybrid),
        "chunked_prefill": context.chunks_prefill,
        "kv_connector": connector.get("kv_connector") or "",
        "kv_role": connector.get("kv_role") or "",
        "offload": bool(given.get("kv_offloading_size")) or "Offload" in str(connector.get("kv_connector")),
        "max_num_seqs": _or_unknown(limits.requests),
        "max_num_batched_tokens": _or_unknown(limits.tokens),
        "cudagraphs": "NONE" if context.runs_eagerly else context.cudagraph_mode,
        "compilation": compilation,
        "lora": "enable_lora" in context.on,
        "tool_parser": str(given.get("tool_call_parser") or ""),
        "reasoning_parser": str(given.get("reasoning_parser") or ""),
        "structured": bool(given.get("structured_outputs_config") or given.get("guided_decoding_backend")),
        "logprobs": bool(given.get("max_logprobs") or given.get("logprobs_mode")),
        "backend": str(given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND") or "").upper(),
        "draft_backend": str(context.keys.get("attention_backend") or "").upper(),
        "kv_dtype": str(given.get("kv_cache_dtype") or "auto"),
        "dtype": str(given.get("dtype") or "auto"),
        "schedule": bool(context.keys.get(SCHEDULE)),
        "text_only": is_text_only(context),
        "given": sorted(context.on),
        "flags": flags,
        "keys": {**resolved.fields, **context.keys},
        "env": context.env,
        "installed": UNKNOWN if context.installed is None else sorted(context.installed),
    }


def _or_unknown(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _describe_model(model: ModelConfig | None, name: str) -> Any:
    """Return words that describe a model, by its config.json, else by its name. UNKNOWN where neither tells."""
    words: list[str] = []
    types = () if model is None else (model.model_type, str(model.text_config.get("model_type") or ""))
    for row in _read_families():
        if set(row["types"]).intersection(types) or re.search(row["names"], name.lower()):
            words += [row["family"], *row["traits"]]
    if model is None:
        return words or UNKNOWN
    text = model.text_config
    traits = {
        "moe": bool(count_experts(model.config)),
        "dense": not count_experts(model.config),
        "mla": "kv_lora_rank" in text,
        "dsa": "index_topk" in text,
        "mrope": any(
            isinstance(rope := text.get(key), Mapping) and "mrope_section" in rope
            for key in ("rope_scaling", "rope_parameters")
        ),
        "sliding": bool(text.get("sliding_window")) and text.get("use_sliding_window") is not False,
        "mixed_layers": isinstance(kinds := text.get("layer_types"), list) and len(set(map(str, kinds))) > 1,
    }
    return [*words, *model.architectures, *filter(None, types), *(name for name, has in traits.items() if has)]


@cache
def _read_families() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_rows("model_families"))


def _find_quantization(context: Context, model: ModelConfig | None, *, own: bool = False) -> Any:
    """Return method and format of a model's weights in lower case, empty for plain ones. UNKNOWN where nobody says."""
    asked = context.keys.get("quantization") if own else context.given.get("quantization")
    name = str(context.keys.get("model") or "") if own else context.setup.target
    named = " ".join(re.findall(r"nvfp4|fp8|mxfp4|fp4|awq|gptq|int4|int8|w\d+a\d+", name.lower()))
    if model is None:
        return " ".join(filter(None, (str(asked or ""), named))).lower() or UNKNOWN
    declared = model.config.get("quantization_config") or model.config.get("compression_config")
    declared = declared if isinstance(declared, Mapping) else {}
    said = HfConfig(model.config).quantization or ""
    form = " ".join(str(declared.get(key) or "") for key in ("format", "quant_algo", "fmt"))
    return " ".join(f"{asked or ''} {said} {form} {named}".lower().split())


def _length_of(model: ModelConfig | None) -> Any:
    return UNKNOWN if model is None else _or_unknown(HfConfig(model.config).context_length)


def _caches_prefixes(context: Context, hybrid: Any) -> Any:
    asked = context.flags.get("enable_prefix_caching")
    if asked is not None or context.rules.holds("hybrid-caches-prefixes"):
        return asked is not False
    return UNKNOWN if hybrid is UNKNOWN else not hybrid


def _find_state_mode(context: Context, caches: bool) -> Any:
    """Return what the cache holds of a hybrid target's states: the mode that was asked for, or the release's own."""
    asked = context.given.get("mamba_cache_mode")
    if not caches:
        return "none"
    if asked in (None, "none"):
        holds = context.rules.holds
        asked = "all" if holds("size-state-each-block") and not holds("hybrid-aligned-with-drafts") else "align"
    able = asked != "all" or has_interface(context, "SupportsMambaPrefixCaching")
    return UNKNOWN if able is None else asked if able else "align"


def _find_platform(context: Context, architecture: str | None) -> str:
    """Return whose accelerators serve: NVIDIA's (`cuda`) where nothing says otherwise."""
    backend = str(context.given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND") or "").upper()
    if (architecture or "").startswith("cdna") or backend.startswith("ROCM"):
        return "rocm"
    if "vllm-ascend" in (context.installed or ()) or context.given.get("quantization") == "ascend":
        return "ascend"
    for name, beginnings in _PLATFORMS.items():
        if any(variable.startswith(beginnings) for variable in context.setup.env):
            return name
    return context.platform
