"""Drafts with a smaller model of the same vocabulary (Leviathan et al. 2023, arXiv 2211.17192).

Shape letters: N rows of a pass, R rows that need logits, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from draftwise.checkpoints.config_values import find_mask_token
from draftwise.checkpoints.tokenizer_fit import check_same_tokens
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.models.draft_head import Mask
from draftwise.engine.proposers.paged import build_chain
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.resolved_spec import ResolvedSpec


class DraftModel:
    """A causal language model as a `ChainDrafter`. It reads only tokens.

    Attributes:
        mask: from the model's config.json, for models trained to draft in parallel (PARD, arXiv 2504.18583).
    """

    aux_layers: tuple[int, ...] = ()
    target_ids_U: Tensor | None = None

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.kv_shape, self.vocab_size = model.shape, model.shape.vocab_size
        token_id = find_mask_token(model.config)
        self.mask = None if token_id is None else Mask(token_id=token_id)
        self.chain = model.chain()

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""
        return self._model.dtype

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._model.device

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return the states unchanged. They are not read."""
        return features_NF

    def forward(
        self,
        tokens_N: Tensor,
        carry_NH: Tensor | None,  # noqa: ARG002 - it reads tokens only
        positions_N: Tensor,
        kv: PagedKV,
        plan: AttentionPlan,
    ) -> tuple[Tensor, None]:
        """Return hidden_NH after the final norm, and nothing to carry."""
        hidden_NH, _ = self._model(tokens_N, positions_N, kv, plan)
        return hidden_NH, None

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RV."""
        return self._model.logits(hidden_RH)


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of a draft model. Its token ids must equal the target's."""
    path = find_weights(spec, config)
    if not config.skip_tokenizer_init:
        check_same_tokens(Path(path), Path(config.model))
    model = load_model(
        path,
        dtype=target.dtype,
        device=target.device,
        load_format=config.load_format,
        quantization="int8" if target.is_quantized else None,
        keep_blocks=target.is_quantized or target.dtype == torch.bfloat16,
    )
    return build_chain(DraftModel(model), spec, config, target)
