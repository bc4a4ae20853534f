"""The drafting methods of the embedded engine, by vLLM's names."""

from __future__ import annotations

from collections.abc import Callable

from draftwise.core import InvalidSetup
from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers.base import Confirmed, Draft, Proposer
from draftwise.engine.spec import ResolvedSpec
from draftwise.engine.tokenizer import check_same_tokenizer

__all__ = ["Confirmed", "Draft", "Proposer", "make_proposer"]


def _ngram(spec: ResolvedSpec, config: EngineConfig, _target: CausalLM) -> Proposer:
    from draftwise.engine.proposers.ngram import NgramProposer

    return NgramProposer(**_lookup(spec, config))


def _ngram_gpu(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    from draftwise.engine.proposers.ngram_gpu import NgramGpuProposer

    return NgramGpuProposer(**_lookup(spec, config), device=target.device)


def _lookup(spec: ResolvedSpec, config: EngineConfig) -> dict:
    return {
        "prompt_lookup_min": spec.prompt_lookup_min,
        "prompt_lookup_max": spec.prompt_lookup_max,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
    }


def _suffix(spec: ResolvedSpec, _config: EngineConfig, _target: CausalLM) -> Proposer:
    from draftwise.engine.proposers.suffix import SuffixProposer

    return SuffixProposer(
        max_tree_depth=spec.suffix_decoding_max_tree_depth,
        max_cached_requests=spec.suffix_decoding_max_cached_requests,
        max_spec_factor=spec.suffix_decoding_max_spec_factor,
        min_token_prob=spec.suffix_decoding_min_token_prob,
    )


def _draft_model(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    from draftwise.engine.proposers.draft_model import DraftModelProposer

    assert spec.model is not None
    findings = check_same_tokenizer(config.model, spec.model)
    if findings:
        raise InvalidSetup(findings)
    return DraftModelProposer(
        load_model(spec.model, dtype=target.dtype, device=target.device),
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len or target.shape.max_position_embeddings,
        block_size=config.block_size,
        probabilistic=spec.draft_sample_method == "probabilistic",
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


_BUILDERS: dict[str, Callable[[ResolvedSpec, EngineConfig, CausalLM], Proposer]] = {
    "ngram": _ngram,
    "ngram_gpu": _ngram_gpu,
    "suffix": _suffix,
    "draft_model": _draft_model,
}


def make_proposer(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer that a resolved speculative config asks for.

    Raises:
        InvalidSetup: the drafter's files are missing or do not fit the target.
    """
    return _BUILDERS[spec.method](spec, config, target)
