"""Finds faults at server start, after the config was accepted: the platform, and the drafter's build and load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.core import Finding, Ruling
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine.step_budget import find_schedule
from draftwise.plan.check.model.model_config import has_interface, is_text_only
from draftwise.plan.check.serving.cuda_graphs import find_graphs
from draftwise.plan.check.serving.settings import find_combined, find_requests, find_settings
from draftwise.plan.check.stages import Context

_DEFAULT_MEDUSA_HEADS = 5
"""Default of vLLM's MedusaConfig, for a config.json without the key."""
_INDEX = ".safetensors.index.json"
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


def find_serving(context: Context, resolved: Resolved) -> Sequence[Finding]:
    """Return what happens to a server with an accepted config; the rules cover the V1 engine's runners."""
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
    if context.platform != "cpu":
        return
    yield from context.rules.ruling("cpu-without-speculation")
    yield from context.rules.ruling("cpu-ngram-gpu", method=resolved.method)
    if context.keys.get("rejection_sample_method") == "synthetic":
        yield from context.rules.ruling("cpu-synthetic")
    if resolved.facts.drafts_from != "none":
        yield from context.rules.ruling("cpu-sampling-wrong")
    layers = context.draft_config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > 1:
        yield from context.rules.ruling("cpu-dflash-norm", method=resolved.method, layers=layers)


def _find_drafters(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    yield from _find_tensor_parallel(context, resolved)
    if has_interface(context, "SupportsEagle3") is False and not _declines_aux_states(context, resolved):
        name = ", ".join(context.target.architectures) if context.target else ""
        yield from context.rules.ruling("target-without-aux-states", method=resolved.method, name=name)
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
    if resolved.facts.drafts_from == "own_model" and resolved.runner != "V2":
        if resolved.runner is not None:
            yield from context.rules.ruling("draft-tensor-parallel-differs", given=given, target=target)
    else:
        yield from context.rules.ruling("draft-tensor-parallel-ignored", given=given, target=target)


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
        yield from context.rules.ruling("padded-batch-required")
    if _has_mrope(context.draft_config):
        yield from context.rules.ruling("draft-with-mrope")
    if has_interface(context, "SupportsMultiModal") and not is_text_only(context):
        name = context.target.architectures[0] if context.target else ""
        yield from context.rules.ruling("draft-model-with-multimodal-target", name=name)
        yield from context.rules.ruling("draft-model-reads-text-only", name=name)


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
        method=resolved.method,
        keys=keys,
        fix="Write dflash_config.mask_token_id as trained." if resolved.facts.parallel == "always" else fix,
    )


def _find_method_faults(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the method's own proposer cannot do. Each rule is about the methods that its row names."""
    k = resolved.num_speculative_tokens
    if context.drafter is not None:
        heads = _count_heads(context.draft_config)
        if k is not None and k > heads:
            yield from context.rules.ruling("medusa-too-few-heads", method=resolved.method, k=k, heads=heads)
        cut, whole = (context.draft_config.get(key) for key in ("truncated_vocab_size", "vocab_size"))
        if isinstance(cut, int) and isinstance(whole, int) and cut < whole:
            yield from context.rules.ruling("medusa-truncated-vocabulary", method=resolved.method, cut=cut, whole=whole)
    yield from _find_other_block(context, resolved, k)
    yield from _find_beyond_depth(context, resolved, k)
    yield from context.rules.ruling("mlp-speculator-not-on-v1", method=resolved.method)
    if "." not in (resolved.model or ""):
        yield from context.rules.ruling("custom-class-path", method=resolved.method, model=resolved.model)


def _count_heads(config: Mapping[str, Any]) -> int:
    """Return the trained heads as vLLM reads them: any key with "num" and "heads" counts."""
    heads = [value for key, value in config.items() if "num" in key and "heads" in key and isinstance(value, int)]
    return heads[-1] if heads else _DEFAULT_MEDUSA_HEADS


def _find_other_block(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    block = context.draft_config.get("block_size")
    if not isinstance(block, int) or k is None:
        return
    if k < block - 1:
        yield from context.rules.ruling("dflash-short-block", method=resolved.method, k=k, masks=block - 1)
    if k > block:
        yield from context.rules.ruling("dflash-beyond-block", method=resolved.method, k=k, block=block)


def _find_beyond_depth(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    key = "suffix_decoding_max_tree_depth"
    depth = context.keys.get(key)
    depth = depth if isinstance(depth, int) else resolved.fields.get(key)
    if isinstance(depth, int) and k is not None and k > depth:
        yield from context.rules.ruling("suffix-beyond-depth", method=resolved.method, k=k, depth=depth)


def _find_hidden_states(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if resolved.facts.drafts_from != "none":
        return
    k, method = resolved.num_speculative_tokens, resolved.method
    if k not in (None, 1):
        yield from context.rules.ruling("hidden-states-one-token", method=method, k=k)
    if not _layer_ids(context):
        yield from context.rules.ruling("hidden-states-layer-ids", method=method)
    if context.keys.get("disable_padded_drafter_batch"):
        yield from context.rules.ruling("hidden-states-padded-batch", method=method)
    if resolved.runner == "V2" and context.keys.get("draft_sample_method") not in (None, "greedy"):
        yield from context.rules.ruling("hidden-states-greedy-on-v2", method=method)
    if not context.given.get("kv_transfer_config"):
        yield from context.rules.ruling("hidden-states-without-connector")


def _layer_ids(context: Context) -> object:
    inner = context.keys.get("draft_model_config")
    hf_config = inner.get("hf_config") if isinstance(inner, Mapping) else None
    return hf_config.get("eagle_aux_hidden_state_layer_ids") if isinstance(hf_config, Mapping) else None


def _find_weights(context: Context, resolved: Resolved) -> Iterator[Finding]:
    """Yield what is wrong or worth knowing about the files of a setup that is accepted.

    Directories that hold a config.json and no weights at all are a question about configs, and nothing is said of them.
    """
    told = [*_judge_pair_of_configs(context, resolved)]
    yield from told
    known = {each.code for each in told}
    yield from (each for each in _find_in_files(context, resolved) if each.code not in known)


def _judge_pair_of_configs(context: Context, resolved: Resolved) -> Iterator[Finding]:
    head, target = context.drafter, context.target
    if head is None or target is None or resolved.facts.drafts_from != "target_states":
        return
    from draftwise.checkpoints.head_fit import judge_configs  # most setups have no head with a config.json

    where = str(head.directory / "config.json") if head.directory is not None else "model"
    yield from judge_configs(context.rules, head.config, target.config, method=resolved.facts, where=where)


def _find_in_files(context: Context, resolved: Resolved) -> Iterator[Finding]:
    target = None if context.target is None else context.target.directory
    if target is None or resolved.facts.weights == "none":
        return
    drafter = None if context.drafter is None else context.drafter.directory
    own = drafter is not None and drafter.resolve() == target.resolve()
    if resolved.facts.weights == "target" and (own or not context.keys.get("model")):
        if _has_weights(target):
            from draftwise.checkpoints.pair import find_mtp_findings  # most setups name no directory: a slow import

            known = context.release.table("mtp_places")
            places = [place for name in resolved.draft_architectures or () for place in known.get(name, ())]
            yield from find_mtp_findings(target, places=places, version=context.release.version)
    elif drafter is not None and not own and (_has_weights(target) or _has_weights(drafter)):
        from draftwise.checkpoints.pair import find_pair_findings

        yield from find_pair_findings(drafter, target, version=context.release.version)


def _has_weights(directory: Path) -> bool:
    try:
        return any(entry.suffix in _WEIGHTS or entry.name.endswith(_INDEX) for entry in directory.iterdir())
    except OSError:
        return False
