"""Makes the proposers of the built-in methods; the column `proposer` of a method's row names its function.

Modules are imported with the first use of their method: some compile kernels when they are imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftwise.checkpoints.identity import check_identity
from draftwise.checkpoints.tokenizer_fit import check_same_tokens
from draftwise.core import InvalidSetup
from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers.base import Proposer
from draftwise.engine.spec import ResolvedSpec
from draftwise.machine.cache import one_at_a_time

if TYPE_CHECKING:
    from draftwise.engine.models.drafter import Drafter

__all__ = [
    "make_dflash",
    "make_draft_model",
    "make_eagle",
    "make_eagle3",
    "make_extract_hidden_states",
    "make_medusa",
    "make_mlp_speculator",
    "make_mtp",
    "make_ngram",
    "make_ngram_gpu",
    "make_suffix",
]


def make_ngram(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return prompt lookup on the host; on a GPU that of `ngram_gpu`, which drafts the same and waits for no token."""
    if target.device.type == "cuda":
        return make_ngram_gpu(spec, config, target)
    from draftwise.engine.proposers.ngram import NgramProposer

    return NgramProposer(**_lookup(spec, config))


def make_ngram_gpu(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return prompt lookup on the target's device."""
    from draftwise.engine.proposers.ngram_gpu import NgramGpuProposer

    return NgramGpuProposer(**_lookup(spec, config), device=target.device)


def _lookup(spec: ResolvedSpec, config: EngineConfig) -> dict:
    return {
        "prompt_lookup_min": spec.prompt_lookup_min,
        "prompt_lookup_max": spec.prompt_lookup_max,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
    }


def make_suffix(spec: ResolvedSpec, _config: EngineConfig, _target: CausalLM) -> Proposer:
    """Return the suffix trees' proposer."""
    with one_at_a_time("suffix-kernels"):  # importing them compiles them, once for all processes
        from draftwise.engine.proposers.suffix import SuffixProposer
        from draftwise.lookup.suffix import SuffixCache

        cache = SuffixCache(
            max_tree_depth=spec.suffix_decoding_max_tree_depth,
            max_cached_requests=spec.suffix_decoding_max_cached_requests,
            max_spec_factor=spec.suffix_decoding_max_spec_factor,
            min_token_prob=spec.suffix_decoding_min_token_prob,
        )
    return SuffixProposer(cache)


def make_draft_model(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer that decodes with a smaller language model."""
    from draftwise.engine.proposers.draft_model import DraftModel

    path = _find_drafter(spec, config)
    if not config.skip_tokenizer_init:
        check_same_tokens(Path(path), Path(config.model))
    return _chain(
        DraftModel(load_model(path, dtype=target.dtype, device=target.device, load_format=config.load_format)),
        spec,
        config,
        target,
    )


def make_eagle(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the chain over one layer that reads the target's last hidden state."""
    from draftwise.engine.models.eagle import load_eagle

    return _chain(load_eagle(_find_drafter(spec, config), target), spec, config, target)


def make_eagle3(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the chain over a layer that reads hidden states of three depths."""
    from draftwise.engine.models.eagle3 import load_eagle3

    return _chain(load_eagle3(_find_drafter(spec, config), target), spec, config, target)


def make_mtp(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the chain over the target's own modules."""
    from draftwise.engine.models.mtp import check_k, load_mtp

    drafter = load_mtp(_find_drafter(spec, config), target)
    check_k(drafter.n_predict, spec.k)
    return _chain(drafter, spec, config, target)


def _chain(drafter: Drafter, spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    from draftwise.engine.proposers.chain import ChainProposer

    if spec.parallel_drafting and drafter.mask is None:
        raise InvalidSetup.because(
            "parallel-drafting-needs-mask-token",
            "The drafter's config.json names no mask token, so it cannot draft in parallel.",
            where="speculative_config.parallel_drafting",
            fix="Leave parallel_drafting out, or use a drafter trained for it (PARD, P-EAGLE).",
        )
    return ChainProposer(
        drafter,
        max_model_len=_max_model_len(config, target),
        probabilistic=spec.probabilistic,
        parallel=spec.parallel_drafting,
    )


def make_medusa(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of Medusa's heads."""
    from draftwise.engine.proposers.medusa import MedusaProposer

    return MedusaProposer.load(_find_drafter(spec, config), target, k=spec.k, probabilistic=spec.probabilistic)


def make_mlp_speculator(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of a small recurrent network."""
    from draftwise.engine.proposers.mlp_speculator import MlpSpeculatorProposer

    return MlpSpeculatorProposer.load(_find_drafter(spec, config), target, k=spec.k, probabilistic=spec.probabilistic)


def make_dflash(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the block drafter's proposer."""
    from draftwise.engine.proposers.dflash import DFlashProposer

    return DFlashProposer.load(
        _find_drafter(spec, config),
        target,
        max_model_len=_max_model_len(config, target),
        k=spec.k,
        probabilistic=spec.probabilistic,
    )


def make_extract_hidden_states(spec: ResolvedSpec, config: EngineConfig, _target: CausalLM) -> Proposer:
    """Return what writes hidden states to disk and drafts nothing."""
    from draftwise.engine.proposers.extract_hidden_states import ExtractHiddenStatesProposer

    return ExtractHiddenStatesProposer(aux_layers=spec.layer_ids, folder=config.hidden_states_folder)


def _find_drafter(spec: ResolvedSpec, config: EngineConfig) -> str:
    """Return the directory of the drafter's weights, after checking that they were trained for this target."""
    path = spec.model or config.model
    check_identity(path, config.model)
    return path


def _max_model_len(config: EngineConfig, target: CausalLM) -> int:
    return config.max_model_len or target.shape.max_position_embeddings
