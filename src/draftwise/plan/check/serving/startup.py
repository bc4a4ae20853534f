"""What shows once the config is accepted and the server starts: its platform, and its drafter built and loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.core import Finding, Ruling
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.serving.graphs import find_graphs
from draftwise.plan.check.serving.requests import find_combined, find_requests
from draftwise.plan.check.serving.schedule import find_schedule
from draftwise.plan.check.serving.settings import find_settings

__all__ = ["find_serving"]

_TOKENS = "num_speculative_tokens"
_DEFAULT_MEDUSA_HEADS = 5
"""Of vLLM's MedusaConfig, for a config.json that does not say."""
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


def find_serving(context: Context, resolved: Resolved) -> Sequence[Finding]:
    """Return what a server of an accepted config meets: the rules are about the V1 engine's runners."""
    weights = [*_find_weights(context, resolved)]
    if context.runs_on_v0:
        return weights
    found = [
        *_find_cpu(context, resolved),
        *_find_drafters(context, resolved),
        *find_schedule(context, resolved),
        *find_settings(context, resolved),
        *find_graphs(context, resolved),
        *find_requests(context, resolved),
    ]
    return [*found, *find_combined(context, resolved, found), *weights]


def _find_cpu(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what speculation meets on a CPU server."""
    if context.platform != "cpu":
        return
    message = f"CPU servers of vLLM {context.release} do not speculate; start-up ends."
    yield from context.rules.ruling("cpu-without-speculation", message, where=SPEC, fix="Use 0.20.0 or newer.")
    message = f"{resolved.method} needs an accelerator's pinned memory."
    yield from context.rules.ruling("cpu-ngram-gpu", message, where="method", fix="Use ngram.", method=resolved.method)
    if context.keys.get("rejection_sample_method") == "synthetic":
        message = "Synthetic acceptance is not written for CPU sampling."
        yield from context.rules.ruling("cpu-synthetic", message, where="rejection_sample_method", fix="Leave it out.")
    if resolved.facts.drafts_from != "none":
        yield from context.rules.ruling(
            "cpu-sampling-wrong",
            "On CPU, requests with temperature > 0 are answered wrongly: their logits are divided by uninitialised "
            "memory.",
            where=SPEC,
            fix="Serve greedy requests only (temperature 0; the default of a request is 1).",
        )
    layers = context.draft_config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > 1:
        yield from context.rules.ruling(
            "cpu-dflash-norm",
            f"On CPU, the keys of all {layers} drafter layers get the first layer's norm: almost no drafted token is "
            "accepted.",
            where="method",
            fix="Judge DFlash on a GPU.",
            method=resolved.method,
        )


def _find_drafters(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what fails, or drafts less than it could, once the drafter is built."""
    yield from _find_tensor_parallel(context, resolved)
    yield from _find_aux_states(context, resolved)
    yield from _find_standalone(context, resolved)
    yield from _find_mask_token(context, resolved)
    yield from _find_method_faults(context, resolved)
    yield from _find_hidden_states(context, resolved)


def _find_tensor_parallel(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    target = context.sizes.get("tensor_parallel_size") or 1
    given, key = resolved.draft_tensor_parallel_size, "draft_tensor_parallel_size"
    if given is None or given == target or key not in context.keys:
        return
    if resolved.facts.drafts_from in ("text", "own_code"):
        return
    fix = f"Leave it out, or write {target}."
    if resolved.facts.drafts_from == "own_model" and resolved.runner != "V2":
        if resolved.runner is not None:
            message = f"The config accepts {key} {given}, but a draft model needs the target's {target}: start-up ends."
            yield from context.rules.ruling("draft-tensor-parallel-differs", message, where=key, fix=fix)
    else:
        message = f"{key} {given} is accepted and not read: the drafter is split over the target's {target} GPUs."
        yield from context.rules.ruling("draft-tensor-parallel-ignored", message, where=key, fix=fix)


def _find_aux_states(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge methods that read hidden states out of the target's middle layers."""
    if has_interface(context, "SupportsEagle3") is False and not _declines_aux_states(context, resolved):
        name = ", ".join(context.target.architectures) if context.target else ""
        yield from context.rules.ruling(
            "target-without-aux-states",
            f"{name} of vLLM {context.release} cannot give out its middle layers' hidden states, which "
            f"{resolved.method} needs.",
            where="--model",
            fix="Use ngram, suffix, eagle or a draft model, or a release whose class for this target has "
            "SupportsEagle3.",
            method=resolved.method,
        )


def _declines_aux_states(context: Context, resolved: Resolved) -> bool:
    """Say whether a head declares that it takes the last layer's output only."""
    inner = context.draft_config.get("eagle_config")
    declined = isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False
    return declined and context.rules.applies("eagle3-may-decline-aux-states", resolved.method)


def _find_standalone(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge draft models and parallel heads, whose V1 proposer lays out its own batch."""
    own_model = resolved.facts.drafts_from == "own_model"
    parallel_head = resolved.parallel_drafting and context.rules.applies("parallel-heads", resolved.method)
    if resolved.runner != "V1" or not (own_model or parallel_head):
        return
    if context.keys.get("disable_padded_drafter_batch"):
        yield from context.rules.ruling(
            "padded-batch-required",
            "A draft model or a parallel head drafts on padded batches only.",
            where="disable_padded_drafter_batch",
            fix="Leave it out.",
        )
    if _has_mrope(context.draft_config):
        yield from context.rules.ruling(
            "draft-with-mrope",
            "The drafter uses M-RoPE positions, which a draft model or a parallel head cannot have.",
            where="model",
            fix="Use a text-only draft model of the same vocabulary.",
        )
    if has_interface(context, "SupportsMultiModal") and not _is_text_only(context):
        yield from _find_multimodal(context)


def _find_multimodal(context: Context) -> Iterator[Ruling]:
    name = context.target.architectures[0] if context.target else ""
    yield from context.rules.ruling(
        "draft-model-with-multimodal-target",
        f"{name} takes images or sound, which a draft model or a parallel head cannot follow.",
        where="--model",
        fix="Serve text only, or use ngram or eagle3.",
    )
    yield from context.rules.ruling(
        "draft-model-reads-text-only",
        f"{name} takes images or sound; the drafter sees the text alone, so fewer of its tokens are accepted after "
        "them.",
        where="--model",
    )


def _is_text_only(context: Context) -> bool:
    return bool(context.given.get("language_model_only") or context.given.get("limit_mm_per_prompt"))


def _has_mrope(config: Mapping[str, Any]) -> bool:
    for part in config, (config.get("text_config") or {}):
        for key in ("rope_scaling", "rope_parameters"):
            rope = part.get(key)
            if isinstance(rope, Mapping) and "mrope_section" in rope:
                return True
    return False


def _find_mask_token(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    config = context.draft_config
    if not resolved.parallel_drafting or context.drafter is None or "speculators_model_type" in config:
        return
    keys = ["pard_token", "ptd_token_id"]
    inner = config.get("dflash_config")
    found = isinstance(inner, Mapping) and "mask_token_id" in inner and context.rules.holds("mask-token-of-dflash")
    if context.rules.holds("mask-token-at-top-level"):
        keys += ["mask_token_id", "dspark_noise_token_id"]
    if found or any(config.get(key) is not None for key in keys):
        return
    fix = "Use a drafter trained for parallel drafting, or set parallel_drafting to false."
    yield from context.rules.ruling(
        "parallel-drafting-needs-mask-token",
        f"The drafter's config.json names no mask token ({', '.join(keys)}), and parallel drafting needs one.",
        where="model",
        fix="Write dflash_config.mask_token_id as trained." if resolved.facts.parallel == "always" else fix,
        method=resolved.method,
    )


def _find_method_faults(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the method's own proposer cannot do; each rule is about the methods that its row names."""
    k = resolved.num_speculative_tokens
    if context.drafter is not None:
        yield from _find_medusa_heads(context, resolved, k)
        yield from _find_cut_vocabulary(context, resolved)
    yield from _find_other_block(context, resolved, k)
    yield from _find_beyond_depth(context, resolved, k)
    yield from context.rules.ruling(
        "mlp-speculator-not-on-v1",
        f"The V1 engine has no code for {resolved.method}; start-up ends with 'Unknown speculative decoding method'.",
        where="method",
        fix="Train or find an EAGLE-3 head for this target, or use ngram.",
        method=resolved.method,
    )
    if "." not in (resolved.model or ""):
        yield from context.rules.ruling(
            "custom-class-path",
            f"The model {resolved.model!r} is not the dotted path of a Python class.",
            where="model",
            fix="Write it as package.module.Class, importable on the server.",
            method=resolved.method,
        )


def _find_medusa_heads(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    heads = _count_heads(context.draft_config)
    if k is not None and k > heads:
        yield from context.rules.ruling(
            "medusa-too-few-heads",
            f"{_TOKENS} {k} asks for more heads than the {heads} in the checkpoint; loading ends with 'weights were "
            "not initialized'.",
            where=_TOKENS,
            fix=f"Write at most {heads}.",
            method=resolved.method,
        )


def _count_heads(config: Mapping[str, Any]) -> int:
    """Return the trained heads as vLLM reads them: any key with "num" and "heads" counts."""
    heads = [value for key, value in config.items() if "num" in key and "heads" in key and isinstance(value, int)]
    return heads[-1] if heads else _DEFAULT_MEDUSA_HEADS


def _find_cut_vocabulary(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    cut, whole = (context.draft_config.get(key) for key in ("truncated_vocab_size", "vocab_size"))
    if isinstance(cut, int) and isinstance(whole, int) and cut < whole:
        yield from context.rules.ruling(
            "medusa-truncated-vocabulary",
            f"The heads have truncated_vocab_size {cut} of {whole}: loading takes the token_map for a weight that is "
            "missing.",
            where="model",
            fix="Save the heads over the whole vocabulary.",
            method=resolved.method,
        )


def _find_other_block(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    block = context.draft_config.get("block_size")
    if not isinstance(block, int) or k is None:
        return
    if k < block - 1:
        yield from context.rules.ruling(
            "dflash-short-block",
            f"{_TOKENS} {k} drafts {k} masks at once, and the drafter learnt blocks of {block - 1}: all of its "
            "draft tokens may become worse, the first one too.",
            where=_TOKENS,
            fix=f"Write {block - 1}, or measure both: draftwise decide.",
            method=resolved.method,
        )
    if k > block:
        yield from context.rules.ruling(
            "dflash-beyond-block",
            f"{_TOKENS} {k} exceeds the drafter's block_size {block}: it loads, and was not trained for that.",
            where=_TOKENS,
            fix=f"Write at most {block}, or one less if the block counts the token before the draft.",
            method=resolved.method,
        )


def _find_beyond_depth(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    key = "suffix_decoding_max_tree_depth"
    depth = context.keys.get(key)
    depth = depth if isinstance(depth, int) else resolved.fields.get(key)
    if isinstance(depth, int) and k is not None and k > depth:
        yield from context.rules.ruling(
            "suffix-beyond-depth",
            f"{_TOKENS} {k} cannot be reached: matched and drafted tokens share a tree of depth {depth}.",
            where=_TOKENS,
            fix=f"Raise {key}, or keep k below it; memory is reserved for k.",
            method=resolved.method,
        )


def _find_hidden_states(context: Context, resolved: Resolved) -> Iterator[Ruling]:
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


def _find_weights(context: Context, resolved: Resolved) -> Iterator[Finding]:
    """Yield what is wrong or worth knowing about the files of a setup that is accepted.

    Directories that hold a config.json and no weights at all are a question about configs, and nothing is said of them.

    Args:
        context: the setup.
        resolved: its speculative config.
    """
    target = None if context.target is None else context.target.directory
    if target is None or resolved.facts.weights == "none":
        return
    drafter = None if context.drafter is None else context.drafter.directory
    own = drafter is not None and drafter.resolve() == target.resolve()
    if resolved.facts.weights == "target" and (own or not context.keys.get("model")):
        if _has_weights(target):
            from draftwise.checkpoints.pair import find_mtp_findings  # most setups name no directory: a slow import

            yield from find_mtp_findings(target, version=context.release.version)
    elif drafter is not None and not own and (_has_weights(target) or _has_weights(drafter)):
        from draftwise.checkpoints.pair import find_pair_findings

        yield from find_pair_findings(drafter, target, version=context.release.version)


def _has_weights(directory: Path) -> bool:
    try:
        return any(entry.suffix in _WEIGHTS for entry in directory.iterdir())
    except OSError:
        return False
