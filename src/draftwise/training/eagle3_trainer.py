"""Trains EAGLE-3, which drafts from hidden states of the target at several depths (Li et al. 2025, arXiv 2503.01840).

With `parallel` it becomes P-EAGLE, which drafts all tokens in one pass (arXiv 2602.01469).

Shape letters: B sequences, T tokens, R rows of a sequence, L labels, H hidden size, F width of the
auxiliary states, U draft vocabulary, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from draftwise.checkpoints.config_values import AUX_KEY
from draftwise.knowledge.messages import refusal
from draftwise.training.chain_training import ChainNetwork, ChainTraining
from draftwise.training.draft_losses import Answers, answer_as_target
from draftwise.training.drafter_export import save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import DecoderLayer, Norm, make_linear, to_compute_dtype
from draftwise.training.method import (
    Blueprint,
    Option,
    check_aux_layers,
    choose_mask_token,
    read_options,
    usual_aux_layers,
)


class _FirstLayer(DecoderLayer):
    """Its attention reads an embedding and a state, concatenated."""

    def __init__(self, blueprint: Blueprint) -> None:
        hidden, eps = blueprint.shape.hidden_size, blueprint.eps
        super().__init__(blueprint.shape, eps, num_in=2 * hidden)
        self.hidden_norm = Norm(hidden, eps)


class _Network(ChainNetwork):
    """Reads embedding and state, concatenated; its output is the next row's state."""

    def __init__(
        self, embedding_VH: Tensor, blueprint: Blueprint, num_aux_layers: int, num_named: int, options: Any
    ) -> None:
        shape, eps, hidden = blueprint.shape, blueprint.eps, blueprint.shape.hidden_size
        super().__init__(
            embedding_VH, [_FirstLayer(blueprint), *(DecoderLayer(shape, eps) for _ in range(1, shape.num_layers))]
        )
        self.fc = make_linear(num_aux_layers * hidden, hidden)
        self.norm = Norm(hidden, eps)
        if options["lm_head"] == "own":
            self.lm_head = make_linear(hidden, num_named)
        self.norm_before_residual = bool(options["norm_before_residual"])
        if options["parallel"]:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, num_aux_layers * hidden) * 0.02)

    def enter(self, features_BTF: Tensor) -> Tensor:
        """Return the fused states [B, T, H]."""
        return self.fc(features_BTF)

    def stem(self, embedded_BRH: Tensor, carry_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state, and the concatenation of embedding and state, both normed."""
        first = self.layers[0]
        assert isinstance(first, _FirstLayer)
        normed_BRH = first.hidden_norm(carry_BRH)
        embedded_BRH = first.input_layernorm(embedded_BRH)
        x_BRH = normed_BRH if self.norm_before_residual else carry_BRH
        return x_BRH, torch.cat((embedded_BRH, normed_BRH), dim=-1)

    def leave(self, x_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed stream for the head, and the stream itself for the next row."""
        return self.norm(x_BRH), x_BRH


class Eagle3Training(ChainTraining):
    """Trains on the drafter's own draft tokens to match the target's distributions ("training-time test").

    The loss is the cross entropy to the target's distribution over the draft vocabulary, for each draft token. Labels
    outside that vocabulary are not learned.
    """

    name: ClassVar[str] = "eagle3"
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("eagle3")

    network: _Network

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        self.aux_layers = check_aux_layers(options["target_layers"] or usual_aux_layers(target.num_layers), target)
        blueprint = Blueprint.for_target(
            target,
            num_layers=options["num_layers"],
            intermediate_size=options["intermediate_size"],
            num_key_value_heads=options["num_key_value_heads"],
        )
        vocab_size = target.vocab_size
        num_named = min(options["draft_vocab_size"] or vocab_size, vocab_size)
        self._owns_head = options["lm_head"] == "own"
        if num_named < vocab_size and not self._owns_head:
            raise refusal("bad-option", num_named=num_named, vocab_size=vocab_size)
        network = _Network(target.embedding_VH, blueprint, len(self.aux_layers), num_named, options)
        super().__init__(network, target, blueprint, options)
        self.parallel = options["parallel"]
        self._mask_token_id = choose_mask_token(options["mask_token_id"], target) if self.parallel else None
        self._name_tokens(torch.arange(num_named))

    def prepare(self, counts_V: Tensor) -> None:
        """Take the most frequent tokens as the draft vocabulary; see `DrafterTraining.prepare`."""
        num_named = len(self._target_ids_U)
        self._name_tokens(counts_V.cpu().argsort(descending=True, stable=True)[:num_named].sort().values)

    def _name_tokens(self, target_ids_U: Tensor) -> None:
        """Set the draft vocabulary; a head of its own starts with its rows of the target's."""
        target = self._target
        self._target_ids_U = target_ids_U.to(target.device)
        self._draft_ids_V = torch.full((target.vocab_size,), -1, device=target.device)
        self._draft_ids_V[self._target_ids_U] = torch.arange(len(target_ids_U), device=target.device)
        self._teacher_head_UH = target.head_VH if self._names_all else target.head_VH[self._target_ids_U]
        if self._owns_head:
            with torch.no_grad():
                self.network.lm_head.weight.copy_(self._teacher_head_UH)

    @property
    def _names_all(self) -> bool:
        return len(self._target_ids_U) == self._target.vocab_size

    def _features(self, states: States) -> Tensor:
        return torch.cat(states.aux_BTH, dim=-1)

    def _embed_inputs(self, batch: TokenBatch, carry_BRH: Tensor, step: int) -> tuple[Tensor, Tensor]:
        if step == 0 or self._mask_token_id is None:
            return super()._embed_inputs(batch, carry_BRH, step)
        network = self.network
        mask_H = to_compute_dtype(network.embedding_VH[self._mask_token_id], network)
        return mask_H.expand(carry_BRH.shape), network.enter(network.mask_hidden).expand(carry_BRH.shape)

    def _learnable(self, batch: TokenBatch) -> Tensor:
        nameable_BL = self._draft_ids_V[batch.tokens_BT[:, 2:]] >= 0
        return super()._learnable(batch) & nameable_BL

    @property
    def head_UH(self) -> Tensor:
        """The drafter's own head for its own vocabulary, or else the target's."""
        return self.network.lm_head.weight if self._owns_head else self._teacher_head_UH

    def _answers(self, _batch: TokenBatch, states: States) -> Answers:
        return answer_as_target(states, self._teacher_head_UH)

    def _target_ids(self, tokens: Tensor) -> Tensor:
        return self._target_ids_U[tokens]

    def export(self, folder: Path) -> None:
        """Write the drafter as vLLM's `LlamaForCausalLMEagle3`. The embedding is the target's."""
        target_ids_U = self._target_ids_U
        config = self._blueprint.config(architecture="LlamaForCausalLMEagle3", model_type="llama") | {
            "draft_vocab_size": len(target_ids_U),
            "target_hidden_size": self._target.hidden_size,
            "norm_before_residual": self.network.norm_before_residual,
            AUX_KEY: list(self.aux_layers),
            "num_aux_hidden_states": len(self.aux_layers),
        }
        if self._mask_token_id is not None:
            config["ptd_token_id"] = self._mask_token_id
        tensors = self.network.state_dict()
        if not self._names_all:
            tensors["d2t"] = target_ids_U - torch.arange(len(target_ids_U), device=target_ids_U.device)
            tensors["t2d"] = self._draft_ids_V >= 0
        save_drafter(folder, config, tensors, self._blueprint.dtype)
