"""Judges settings that do nothing, or something else than they say, and the effect of speculation on requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.checkpoints.config_json import count_experts
from draftwise.core import Ruling, Severity
from draftwise.knowledge.rules import get_rule
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.stages import SPEC, Context

_REJECTION = "rejection_sample_method"
_DRAFTING = "draft_sample_method"
_LARGE_BLOCK = 64
"""Block size in tokens from which losing one block of every prefix hit is worth a word."""
_IGNORED_ON_V2: Mapping[str, str] = {
    "draft-attention-backend-ignored-on-v2": "attention_backend",
    "dflash-attention-backend-ignored-on-v2": "attention_backend",
    "draft-moe-backend-ignored-on-v2": "moe_backend",
    "draft-load-config-ignored-on-v2": "draft_load_config",
    "local-argmax-ignored-on-v2": "use_local_argmax_reduction",
    "draft-eager-ignored-on-v2": "enforce_eager",
    "padded-batch-ignored-on-v2": "disable_padded_drafter_batch",
}
"""Rule -> the key that Model Runner V2 does not read while it holds, for methods for which V1 does."""


def find_settings(context: Context, resolved: Resolved) -> Sequence[Ruling]:
    """Return settings that do nothing, something else, or fail later with this method, runner and release."""
    return [
        *_find_backends(context, resolved),
        *_find_sampling(context, resolved),
        *_find_overlaps(context, resolved),
        *_find_idle_keys(context, resolved),
        *_find_logging(context, resolved),
    ]


def _find_backends(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    target = _read_backend(context.given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND"))
    own = _read_backend(context.keys.get("attention_backend"))
    if not _is_causal(context):
        yield from _find_non_causal(context, resolved, target, own)
    if target and not own and "attention_backend" in context.given and resolved.runner == "V1":
        yield from context.rules.ruling("draft-backend-not-inherited", method=resolved.method, target=target)
    k = resolved.num_speculative_tokens
    if target == "HPC_ATTN" and k is not None and k > 3:
        yield from context.rules.ruling("hpc-attention-limit", k=k)
    yield from _find_cache_type(context, resolved)
    yield from _find_experts(context)


def _read_backend(given: object) -> str:
    name = given.upper() if isinstance(given, str) else ""
    return "" if name == "AUTO" else name


def _is_causal(context: Context) -> bool:
    inner = context.draft_config.get("dflash_config")
    return context.rules.holds("dflash-may-be-causal") and isinstance(inner, dict) and bool(inner.get("causal"))


def _find_non_causal(context: Context, resolved: Resolved, target: str, own: str) -> Iterator[Ruling]:
    """Judge backends by whether they attend to later tokens, as DFlash's block does."""
    table = context.release.table("noncausal_backends")
    able = sorted(name for name, does in table.items() if does)
    unread = context.rules.holds("dflash-attention-backend-ignored-on-v2")
    if own and own not in able and (not unread or resolved.runner == "V1"):
        yield from context.rules.ruling("dflash-draft-backend", method=resolved.method, own=own, able=able)
    if not target or target in able:
        return
    yield from context.rules.ruling(
        "dflash-target-backend",
        method=resolved.method,
        target=target,
        able=able,
        fix=f"Write {able[0]}, or leave it out so that vLLM chooses one." if able else "",
    )
    if resolved.runner == "V2":
        yield from context.rules.ruling("dflash-target-backend-on-v2", method=resolved.method, target=target, able=able)


def _find_cache_type(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge a KV-cache type chosen for the target, which the drafter's own layers share."""
    given = context.given.get("kv_cache_dtype")
    if given in (None, "auto") or context.keys.get("kv_cache_dtype"):
        return
    has_own = "kv_cache_dtype" in context.release.table("spec_fields")
    own = ' with "kv_cache_dtype": "auto" in the speculative config' if has_own else ""
    yield from context.rules.ruling("kv-cache-type-inherited", method=resolved.method, given=given, own=own)


def _find_experts(context: Context) -> Iterator[Ruling]:
    """Judge an expert backend chosen for a quantized target, which a drafter with plain experts inherits."""
    target, drafter = context.target, context.drafter
    if target is None or drafter is None:
        return
    quantized = target.config.get("quantization_config") or context.given.get("quantization")
    own = drafter.config.get("quantization_config") or context.keys.get("quantization")
    backend = context.given.get("moe_backend")
    if not quantized or own or backend in (None, "auto") or "moe_backend" in context.keys:
        return
    if not count_experts(drafter.config):
        return
    yield from context.rules.ruling("moe-backend-inherited", backend=backend)


def _find_sampling(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    rejection, drafting = context.keys.get(_REJECTION), context.keys.get(_DRAFTING)
    if resolved.runner == "V1":
        if rejection not in (None, "strict"):
            yield from context.rules.ruling("rejection-method-ignored-on-v1", rejection=rejection)
        if rejection == "probabilistic":
            yield from context.rules.ruling("probabilistic-rejection-ignored-on-v1")
        if rejection == "block":
            yield from context.rules.ruling("block-verification-ignored-on-v1")
        if drafting == "gumbel":
            yield from context.rules.ruling("gumbel-drafts-ignored-on-v1")
        if drafting not in (None, "greedy"):
            yield from context.rules.ruling("medusa-drafts-greedily", method=resolved.method, drafting=drafting)
    if drafting not in (None, "greedy") and resolved.facts.drafts_from == "text":
        yield from context.rules.ruling("draft-sampling-without-model", drafting=drafting, method=resolved.method)
    if drafting == "probabilistic" and resolved.facts.keeps_kv:
        yield from context.rules.ruling("probabilistic-drafts-keep-logits")


def _find_overlaps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    method = resolved.method
    if "enable_dbo" in context.on and resolved.runner == "V1" and resolved.facts.keeps_kv:
        yield from context.rules.ruling("batch-overlap-breaks-drafter")
    if context.stages > 1 and resolved.runner == "V2":
        yield from context.rules.ruling("aux-states-over-pipeline", method=method, stages=context.stages)
    yield from _find_dropped_block(context, method)


def _find_dropped_block(context: Context, method: str) -> Iterator[Ruling]:
    """Judge the last block of each prefix hit, which is computed again because the drafter needs its hidden states."""
    block = context.sizes.get("block_size")
    large = context.given.get("block_size") is not None and block is not None and block >= _LARGE_BLOCK
    if context.flags.get("enable_prefix_caching") is False or context.keys.get("disable_eagle_block_drop"):
        return
    if large or has_interface(context, "IsHybrid"):
        size = f"blocks of {block} tokens" if large else "the large blocks of a hybrid model"
        yield from context.rules.ruling("prefix-hits-lose-a-block", method=method, size=size)


def _find_idle_keys(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    limit = context.keys.get("disable_by_batch_size")
    if limit is not None:
        yield from context.rules.ruling("disable-by-batch-size-idle", limit=limit)
    yield from _find_of_text_methods(context, resolved)
    if context.keys.get("parallel_drafting") and resolved.facts.network in ("none", "heads"):
        yield from context.rules.ruling("parallel-drafting-idle", method=resolved.method)
    if resolved.runner == "V2":
        for code, key in _IGNORED_ON_V2.items():
            if context.keys.get(key) not in (None, False, "auto"):
                yield from context.rules.ruling(code, method=resolved.method, key=key)


def _find_of_text_methods(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    own = resolved.facts.keys
    suffix = sorted(key for key in context.keys if key.startswith("suffix_decoding_"))
    if suffix and not any(key.startswith("suffix_decoding_") for key in own):
        yield from context.rules.ruling("suffix-keys-idle", method=resolved.method, suffix=suffix, where=suffix[0])
    lookup = sorted(key for key in context.keys if key in ("prompt_lookup_min", "prompt_lookup_max"))
    if lookup and not set(lookup) & set(own):
        yield from context.rules.ruling("lookup-keys-idle", method=resolved.method, lookup=lookup, where=lookup[0])


def _find_logging(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "enable_logging_iteration_details" in context.on and resolved.async_scheduling:
        yield from context.rules.ruling("iteration-details-are-waits")


_OVERRIDE = "--override-generation-config"
_NEUTRAL_PENALTIES: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties and the value at which each does nothing."""
_FATES: Mapping[str, tuple[str, str]] = {
    "requests-refused": ("rejected", "vLLM rejects requests that set one of these (HTTP 400)"),
    "requests-not-drafted": ("not_speculated", "vLLM silently answers requests that set one of these without drafting"),
    "requests-parameters-ignored": ("ignored", "Requests may set these, but they do nothing while speculating"),
}
"""Rule -> what the release's table calls the parameters that it is about, and what is said of them."""
_SHORT_LOOKUP = 2
"""Shortest lookup for which users reported broken tool calls; 8 cured them."""
_FEATURES: Mapping[str, tuple[str, ...]] = {
    "lora-with-drafts": ("enable_lora",),
    "structured-outputs-with-drafts": ("structured_outputs_config", "guided_decoding_backend"),
    "logprobs-with-drafts": ("max_logprobs", "logprobs_mode"),
    "kv-transfer-with-drafts": ("kv_transfer_config",),
    "prefix-caching-with-drafts": ("enable_prefix_caching",),
    "chunked-prefill-with-drafts": ("enable_chunked_prefill",),
}
"""Rule that says since when a feature goes with speculation -> the flags that ask for the feature."""


def find_requests(context: Context, resolved: Resolved) -> Sequence[Ruling]:
    """Return effects on requests: first on every request, then on those with certain parameters."""
    return [
        *_find_traps(context, resolved),
        *_find_defaults(context),
        *_find_parameters(context),
        *_find_structured(context, resolved),
        *_find_processors(context, resolved),
    ]


def _find_traps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "enable_auto_tool_choice" in context.on or "tool_call_parser" in context.on:
        yield from _find_short_lookup(context, resolved)
    if resolved.facts.drafts_from == "own_model" and resolved.runner == "V2":
        yield from context.rules.ruling("draft-model-runs-eagerly")
        if context.keys.get("use_heterogeneous_vocab"):
            yield from context.rules.ruling("heterogeneous-vocab-unmapped")


def _find_short_lookup(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    shortest = resolved.prompt_lookup_min
    if shortest is None or shortest > _SHORT_LOOKUP:
        return
    yield from context.rules.ruling("short-lookup-with-tools", method=resolved.method, shortest=shortest)


def _find_defaults(context: Context) -> Iterator[Ruling]:
    """Judge the sampling parameters that every request gets unless it says otherwise."""
    defaults, where = _read_defaults(context)
    min_p = defaults.get("min_p")
    if isinstance(min_p, (int, float)) and min_p > 0:
        yield from context.rules.ruling("default-min-p-refused", min_p=min_p, where=where)
    penalties = [
        f"{key} {value}"
        for key, neutral in _NEUTRAL_PENALTIES.items()
        if isinstance(value := defaults.get(key), (int, float)) and value != neutral
    ]
    if penalties:
        yield from context.rules.ruling("default-penalty-stops-drafting", penalties=penalties, where=where)


def _read_defaults(context: Context) -> tuple[Mapping[str, Any], str]:
    """Return the default sampling parameters as far as they are known here, and where they are written."""
    override = context.objects.get("override_generation_config", {})
    source = context.given.get("generation_config") or "auto"
    directory = None if context.target is None else context.target.directory
    if source != "auto" or directory is None:
        return override, _OVERRIDE
    try:
        own = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        own = {}
    own = own if isinstance(own, dict) else {}
    return own | dict(override), _OVERRIDE if override else "generation_config.json"


def _find_parameters(context: Context) -> Iterator[Ruling]:
    table = context.release.table("sampling_params")
    for code, (fate, said) in _FATES.items():
        names = ", ".join(sorted(name for name, value in table.items() if value == fate))
        if names:
            yield from context.rules.ruling(code, message=f"{said}: {names}.", where=SPEC)
    yield from context.rules.ruling("requests-beam-allowlist-refused")
    if context.given.get("async_scheduling") is True:
        yield from context.rules.ruling("requests-refused-async")
    if context.keys.get("enable_adaptive_verification"):
        yield from context.rules.ruling("requests-logprobs-refused")


def _find_structured(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if resolved.async_scheduling and resolved.runner == "V1":
        yield from context.rules.ruling("structured-outputs-misaligned", method=resolved.method)
    backend = context.objects.get("structured_outputs_config", {}).get("backend")
    if (backend or context.given.get("guided_decoding_backend")) == "lm-format-enforcer":
        yield from context.rules.ruling("structured-outputs-backend")


def _find_processors(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "logits_processors" in context.on and resolved.runner == "V1":
        yield from context.rules.ruling("logits-processors-refused")


def find_combined(context: Context, resolved: Resolved, found: Sequence[Ruling]) -> Iterator[Ruling]:
    """Yield which requested features work with speculation, and which the release does not combine yet."""
    wrong = {each.where for each in found if each.severity is not Severity.INFO}
    for code, names in _FEATURES.items():
        flags = [f"--{name.replace('_', '-')}" for name in names if name in context.on]
        if flags and wrong.isdisjoint(flags):
            rule = get_rule(code)
            yield from context.rules.ruling(
                code, message=f"{rule.title}, from vLLM {rule.spans[0][0]} on.", where=flags[0]
            )
    if "kv_transfer_config" in context.on:
        yield from context.rules.ruling("kv-transfer-before-drafts", method=resolved.method)
    if resolved.async_scheduling and resolved.runner == "V1":
        yield from context.rules.ruling("async-waits-for-acceptance")
