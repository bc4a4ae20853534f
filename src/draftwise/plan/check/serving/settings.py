"""Accepted settings without effect, or with another effect: backends, schedule, sampling, keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftwise.checkpoints.config_json import count_experts
from draftwise.core import Ruling
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.stages import Context

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
