"""Writing the target's hidden states to disk: one token, given layers, and a connector that carries them away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_hidden_states"]


def find_hidden_states(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the method that drafts nothing needs beside its accepted config."""
    if resolved.facts.drafts_from != "none":
        return
    k, method = resolved.num_speculative_tokens, resolved.method
    if k not in (None, 1):
        message = f"{method} takes 1 token, not {k}."
        yield from context.rules.ruling(
            "hidden-states-one-token", message, where="num_speculative_tokens", fix="Write 1."
        )
    if not _layer_ids(context):
        yield from context.rules.ruling(
            "hidden-states-layer-ids",
            f"{method} is not told which layers to read.",
            where="draft_model_config",
            fix='Add "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}}.',
        )
    if context.keys.get("disable_padded_drafter_batch"):
        yield from context.rules.ruling(
            "hidden-states-padded-batch",
            f"{method} works on padded batches only.",
            where="disable_padded_drafter_batch",
            fix="Leave it out.",
        )
    if resolved.runner == "V2" and context.keys.get("draft_sample_method") not in (None, "greedy"):
        yield from context.rules.ruling(
            "hidden-states-greedy-on-v2",
            f"{method} on Model Runner V2 takes draft_sample_method greedy only.",
            where="draft_sample_method",
            fix="Leave it out.",
        )
    if not context.given.get("kv_transfer_config"):
        yield from context.rules.ruling(
            "hidden-states-without-connector",
            "The hidden states leave the server through a KV connector, and none is configured: nothing is written.",
            where="--kv-transfer-config",
            fix="Configure ExampleHiddenStatesConnector with a shared_storage_path.",
        )


def _layer_ids(context: Context) -> object:
    inner = context.keys.get("draft_model_config")
    hf_config = inner.get("hf_config") if isinstance(inner, Mapping) else None
    return hf_config.get("eagle_aux_hidden_state_layer_ids") if isinstance(hf_config, Mapping) else None
