"""Keys of the speculative config that are accepted and do nothing, or something else than they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import MODEL_FREE, Draft, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_idle_keys"]

_ONE_PASS = (*MODEL_FREE, "medusa", "mlp_speculator", "extract_hidden_states")
_HEADS = ("eagle", "eagle3", "mtp")

_IGNORED_ON_V2: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "draft-attention-backend-ignored-on-v2": ("attention_backend", _HEADS),
    "dflash-attention-backend-ignored-on-v2": ("attention_backend", ("dflash",)),
    "draft-moe-backend-ignored-on-v2": ("moe_backend", _HEADS),
    "draft-load-config-ignored-on-v2": ("draft_load_config", _HEADS),
    "local-argmax-ignored-on-v2": ("use_local_argmax_reduction", _HEADS),
    "draft-eager-ignored-on-v2": ("enforce_eager", (*_HEADS, "dflash", "dspark", "draft_model")),
    "padded-batch-ignored-on-v2": ("disable_padded_drafter_batch", (*_HEADS, "dflash", "dspark", "draft_model")),
}
"""Rule -> the key that Model Runner V2 does not read while it holds, and the methods for which another runner does."""


def find_idle_keys(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield keys that have no effect for this method, runner and release."""
    draft = Draft.resolved(context, resolved)
    spec = draft.spec
    yield from rule_if(
        context, "disable-by-batch-size-idle", spec.get("disable_by_batch_size") is not None,
        f"{spec.get('disable_by_batch_size')} is accepted and not read by the V1 engine: drafting never stops.",
        where="disable_by_batch_size",
        fix="Leave it out. From 0.24.0 on num_speculative_tokens_per_batch_size does what this promised.",
    )  # fmt: skip
    suffix = sorted(key for key in spec if key.startswith("suffix_decoding_"))
    yield from rule_if(
        context, "suffix-keys-idle", suffix and draft.method != "suffix",
        f"{', '.join(suffix)}: method {draft.method} reads none of them.", where=suffix[0] if suffix else "",
        fix="Leave them out, or write method suffix.",
    )  # fmt: skip
    lookup = sorted(key for key in spec if key in ("prompt_lookup_min", "prompt_lookup_max"))
    yield from rule_if(
        context, "lookup-keys-idle", lookup and draft.method not in ("ngram", "ngram_gpu"),
        f"{', '.join(lookup)}: method {draft.method} reads none of them; vLLM sets them to 0.",
        where=lookup[0] if lookup else "", fix="Leave them out, or write method ngram.", becomes="0",
    )  # fmt: skip
    yield from rule_if(
        context, "parallel-drafting-idle", spec.get("parallel_drafting") and draft.method in _ONE_PASS,
        f"method {draft.method} has no draft passes to make at once.", where="parallel_drafting", fix="Leave it out.",
    )  # fmt: skip
    if resolved.runner == "V2":
        yield from _find_ignored_on_v2(context, draft)


def _find_ignored_on_v2(context: Context, draft: Draft) -> Iterator[Ruling]:
    for code, (key, methods) in _IGNORED_ON_V2.items():
        yield from rule_if(
            context,
            code,
            _asks(draft, key) and draft.method in methods,
            f"Model Runner V2 takes the work and does not read it for {draft.method} in {context.release}.",
            where=key,
            fix="Set VLLM_USE_V2_MODEL_RUNNER=0 if you need it.",
        )


def _asks(draft: Draft, key: str) -> bool:
    return draft.spec.get(key) not in (None, False, "auto")
