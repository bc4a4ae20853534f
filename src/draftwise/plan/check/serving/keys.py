"""Keys of the speculative config that are accepted and do nothing, or something else than they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_idle_keys"]

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


def find_idle_keys(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield keys that have no effect for this method, runner and release."""
    limit = context.keys.get("disable_by_batch_size")
    if limit is not None:
        yield from context.rules.ruling(
            "disable-by-batch-size-idle",
            f"disable_by_batch_size {limit} is accepted and not read by the V1 engine: drafting never stops.",
            where="disable_by_batch_size",
            fix="Leave it out. From 0.24.0 on num_speculative_tokens_per_batch_size does what this promised.",
        )
    yield from _find_of_text_methods(context, resolved)
    if context.keys.get("parallel_drafting") and resolved.facts.network in ("none", "heads"):
        yield from context.rules.ruling(
            "parallel-drafting-idle",
            f"parallel_drafting has no effect: the method {resolved.method} has no draft passes to make at once.",
            where="parallel_drafting",
            fix="Leave it out.",
        )
    if resolved.runner == "V2":
        yield from _find_ignored_on_v2(context, resolved)


def _find_of_text_methods(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield the keys of suffix decoding and of prompt lookup beside another method."""
    own = resolved.facts.keys
    suffix = sorted(key for key in context.keys if key.startswith("suffix_decoding_"))
    if suffix and not any(key.startswith("suffix_decoding_") for key in own):
        yield from context.rules.ruling(
            "suffix-keys-idle",
            f"The method {resolved.method} does not read {', '.join(suffix)}.",
            where=suffix[0],
            fix="Leave them out, or write method suffix.",
        )
    lookup = sorted(key for key in context.keys if key in ("prompt_lookup_min", "prompt_lookup_max"))
    if lookup and not set(lookup) & set(own):
        yield from context.rules.ruling(
            "lookup-keys-idle",
            f"The method {resolved.method} does not read {', '.join(lookup)}; vLLM sets them to 0.",
            where=lookup[0],
            fix="Leave them out, or write method ngram.",
            becomes="0",
        )


def _find_ignored_on_v2(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    for code, key in _IGNORED_ON_V2.items():
        if context.keys.get(key) not in (None, False, "auto"):
            yield from context.rules.ruling(
                code,
                f"Model Runner V2 takes the work and does not read {key} for {resolved.method} in this release.",
                where=key,
                fix="Set VLLM_USE_V2_MODEL_RUNNER=0 if you need it.",
                method=resolved.method,
            )
