"""Trains drafters that draft token by token, unrolled along the text as at inference.

Shape letters: B sequences, T tokens of a sequence, R = T - 1 rows, L = T - 2 labels, J draft positions, H hidden size,
F width of the target's auxiliary hidden states, U draft vocabulary, V vocabulary, D half of the head dimension.

Row r of step j belongs to the draft made when tokens 0..r + 1 are known. As at inference, its input is token r + 1 + j,
its position is r + j, and its label is token r + 2 + j.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.training.draft_losses import Answers, align, answer_as_target, compute_vocabulary_loss, score, weigh
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import DecoderLayer, KeyValue, Rotations, to_compute_dtype
from draftwise.training.method import Blueprint, DrafterTraining, DraftLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledStep:
    """Outputs of one unrolled step, one row per draft."""

    hidden_BRH: Tensor
    """Hidden states for the head."""
    carry_BRH: Tensor
    """Hidden states for the next step's row."""


class ChainNetwork(nn.Module):
    """A drafter's network: maps rows of (token, state before it) to the head's input and the next row's state.

    Args:
        embedding_VH: the target's embedding, frozen.
        layers: decoder layers. The first one reads the output of `stem`.
    """

    embedding_VH: Tensor

    def __init__(self, embedding_VH: Tensor, layers: Sequence[DecoderLayer]) -> None:
        super().__init__()
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.register_buffer("embedding_VH", embedding_VH, persistent=False)

    def enter(self, features_BTF: Tensor) -> Tensor:
        """Return the rows' states for the target's auxiliary hidden states."""
        return features_BTF

    def embed(self, tokens_BR: Tensor, step: int) -> Tensor:  # noqa: ARG002 - MTP's first row is special
        """Return the embeddings of a step's tokens."""
        return to_compute_dtype(F.embedding(tokens_BR, self.embedding_VH), self)

    def compile_parts(self) -> None:
        """Compile everything but attention."""
        self.stem = torch.compile(self.stem, dynamic=False)  # type: ignore[method-assign]
        self.leave = torch.compile(self.leave, dynamic=False)  # type: ignore[method-assign]
        for layer in self.layers:
            layer.compile_parts()

    @abstractmethod
    def stem(self, embedded_BRH: Tensor, carry_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer's incoming residual stream and attention input."""

    @abstractmethod
    def leave(self, x_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's input and the next row's state, from the last layer's output."""

    def forward(
        self, embedded_BRH: Tensor, carry_BRH: Tensor, rotations: Rotations, past: Sequence[Sequence[KeyValue]]
    ) -> tuple[Tensor, Tensor, list[KeyValue]]:
        """Run one unrolled step.

        Args:
            embedded_BRH: embeddings of the rows' tokens.
            carry_BRH: states of the rows.
            past: keys and values of earlier steps, per layer.

        Returns:
            hidden_BRH and carry_BRH (see `UnrolledStep`), and each layer's new keys and values.
        """
        x_BRH, normed = self.stem(embedded_BRH, carry_BRH)
        new = []
        for i, layer in enumerate(self.layers):
            if i:
                normed = layer.input_layernorm(x_BRH)
            x_BRH, key_value = layer(x_BRH, normed, rotations, past[i])
            new.append(key_value)
        return (*self.leave(x_BRH), new)


class ChainTraining(DrafterTraining):
    """A drafter that drafts token by token.

    Args:
        options: the method's options. `num_speculative_tokens` is the number of learned draft positions, and `discount`
            the weight of a position's loss relative to the previous one.
    """

    network: ChainNetwork

    def __init__(
        self, network: ChainNetwork, target: FrozenTarget, blueprint: Blueprint, options: Mapping[str, Any]
    ) -> None:
        self.network, self._target, self._blueprint = network.to(target.device), target, blueprint
        self.steps, self.discount = options["num_speculative_tokens"], options["discount"]

    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Unroll the drafter along the batch; `_teach` computes the loss."""
        assert batch.tokens_BT.shape[1] > self.steps + 1, "a batch must be longer than a draft"
        steps = self.unroll(batch, states)
        hidden = [align(step.hidden_BRH, j) for j, step in enumerate(steps)]
        return score(batch, *self._teach(batch, states, steps, hidden))

    def compile(self) -> None:
        """Compile the parts that all steps share: one unrolled graph would take minutes to compile."""
        super().compile()
        self.network.compile_parts()

    def unroll(self, batch: TokenBatch, states: States) -> list[UnrolledStep]:
        """Return the outputs of each step, with the batch's own tokens as the earlier draft tokens."""
        network, num_rows = self.network, batch.tokens_BT.shape[1] - 1
        carry_BRH = network.enter(to_compute_dtype(self._features(states)[:, :-1], network))
        positions_P = torch.arange(num_rows + self.steps, device=batch.tokens_BT.device)
        cos_PD, sin_PD = self._blueprint.rope.rotations(positions_P, torch.float32)
        past: list[list[KeyValue]] = [[] for _ in network.layers]
        steps = []
        for j in range(self.steps):
            embedded_BRH, carry_BRH = self._embed_inputs(batch, carry_BRH, j)
            rotations = (cos_PD[j : j + num_rows], sin_PD[j : j + num_rows])
            hidden_BRH, carry_BRH, new = network(embedded_BRH, carry_BRH, rotations, past)
            for cache, key_value in zip(past, new, strict=True):
                cache.append(key_value)
            steps.append(UnrolledStep(hidden_BRH=hidden_BRH, carry_BRH=carry_BRH))
        return steps

    def _features(self, states: States) -> Tensor:
        """Return the target's states that the network reads, [B, T, F]."""
        return torch.cat(states.aux_BTH, dim=-1) if states.aux_BTH else states.final_BTH

    def _embed_inputs(self, batch: TokenBatch, carry_BRH: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens of a step's rows, and their states."""
        tokens_BR = F.pad(batch.tokens_BT[:, 1 + step :], (0, step))
        return self.network.embed(tokens_BR, step), carry_BRH

    def _teach(
        self, batch: TokenBatch, states: States, _steps: list[UnrolledStep], hidden_JBLH: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the most probable tokens [J, B, L], in the target's ids.

        Everything is aligned by label: column l is about token l + 2.
        """
        return self._cross_entropy(batch, states, hidden_JBLH)

    def _weights(self, batch: TokenBatch) -> Tensor:
        """Return the weight of each label at each draft position, [J, B, L]; the weights sum to 1."""
        return weigh(self._learnable(batch), self.steps, self.discount)

    def _learnable(self, batch: TokenBatch) -> Tensor:
        """Return which labels are learned, bool [B, L]."""
        return batch.learned_BT[:, 2:]

    def _cross_entropy(self, batch: TokenBatch, states: States, hidden_JBLH: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the cross entropy with the answers, and the most probable tokens [J, B, L]."""
        weights_JBL = self._weights(batch)
        flat = [hidden_BLH.flatten(0, 1) for hidden_BLH in hidden_JBLH]
        loss, picks_JM = compute_vocabulary_loss(
            flat, self.head_UH, weights_JBL.flatten(1), self._answers(batch, states), fuse=self._compiled
        )
        return loss, self._target_ids(picks_JM).view(weights_JBL.shape)

    @property
    def head_UH(self) -> Tensor:
        """The drafter's head: the target's."""
        return self._target.head_VH

    def _answers(self, _batch: TokenBatch, states: States) -> Answers:
        """Return the distributions to learn: the target's."""
        return answer_as_target(states, self._target.head_VH)

    def _target_ids(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of tokens of the draft vocabulary."""
        return tokens
