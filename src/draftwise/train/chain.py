"""Training of drafters that draft token by token: unrolled along the text on their own draft tokens, as they run.

Shape letters: B sequences, T tokens of a sequence, R = T - 1 rows, L = T - 2 labels, J draft positions, H hidden size,
F width of the target's tapped states, U tokens that the drafter can name, V vocabulary, D half of the head dimension.

Row r of step j stands for a draft made when the tokens 0..r + 1 are known. As at inference, it brings token r + 1 + j,
has position r + j, and names token r + 2 + j: its label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.train.blueprint import Blueprint
from draftwise.train.labels import align, answer_as_target, score, weigh
from draftwise.train.layers import DecoderLayer, KeyValue, Rotations, working
from draftwise.train.lesson import Batch, Lesson, States
from draftwise.train.method import Method
from draftwise.train.target import Target
from draftwise.train.vocabulary_loss import Answers, vocabulary_loss

__all__ = ["ChainNetwork", "ChainTraining", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one unrolled step gave, a row for each draft."""

    hidden_BRH: Tensor
    """For the head."""
    carry_BRH: Tensor
    """For the next step's row."""


class ChainNetwork(nn.Module):
    """A drafter's network: for rows of (token, state before it), what the head reads and what the next row is given.

    Args:
        embedding_VH: the target's, frozen.
        layers: decoder layers, the first of which reads what `stem` gives.
    """

    embedding_VH: Tensor

    def __init__(self, embedding_VH: Tensor, layers: Sequence[DecoderLayer]) -> None:
        super().__init__()
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.register_buffer("embedding_VH", embedding_VH, persistent=False)

    def enter(self, features_BTF: Tensor) -> Tensor:
        """Return what a row is given for the target's tapped states."""
        return features_BTF

    def embed(self, tokens_BR: Tensor, step: int) -> Tensor:  # noqa: ARG002 - MTP's first row is special
        """Return the embeddings of a step's tokens."""
        return working(F.embedding(tokens_BR, self.embedding_VH), self)

    def compile_parts(self) -> None:
        """Compile everything but attention."""
        self.stem = torch.compile(self.stem, dynamic=False)  # type: ignore[method-assign]
        self.leave = torch.compile(self.leave, dynamic=False)  # type: ignore[method-assign]
        for layer in self.layers:
            layer.compile_parts()

    @abstractmethod
    def stem(self, embedded_BRH: Tensor, carry_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream that enters the first layer, and what its attention reads."""

    @abstractmethod
    def leave(self, x_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the head reads and what the next row is given, for the stream that leaves the last layer."""

    def forward(
        self, embedded_BRH: Tensor, carry_BRH: Tensor, rotations: Rotations, past: Sequence[Sequence[KeyValue]]
    ) -> tuple[Tensor, Tensor, list[KeyValue]]:
        """Run one unrolled step.

        Args:
            embedded_BRH: the rows' tokens.
            carry_BRH: what they are given beside their tokens.
            rotations: of their positions.
            past: for each layer, keys and values of the steps before.

        Returns:
            hidden_BRH and carry_BRH, see `Step`, and each layer's new keys and values.
        """
        x_BRH, normed = self.stem(embedded_BRH, carry_BRH)
        new = []
        for i, layer in enumerate(self.layers):
            if i:
                normed = layer.input_layernorm(x_BRH)
            x_BRH, key_value = layer(x_BRH, normed, rotations, past[i])
            new.append(key_value)
        return (*self.leave(x_BRH), new)


class ChainTraining(Method):
    """A drafter that drafts token by token.

    Args:
        network: what is trained.
        target: whose distributions are learnt.
        blueprint: of the network's layers.
        options: its own; of these `num_speculative_tokens`, the draft positions that are learnt, and `discount`, the
            weight of a position's loss relative to the position before.
    """

    network: ChainNetwork

    def __init__(self, network: ChainNetwork, target: Target, blueprint: Blueprint, options: Mapping[str, Any]) -> None:
        self.network, self._target, self._blueprint = network.to(target.device), target, blueprint
        self.steps, self.discount = options["num_speculative_tokens"], options["discount"]

    def lesson(self, batch: Batch, states: States) -> Lesson:
        """Unroll the drafter along the batch; the loss is what `_teach` makes of it."""
        assert batch.tokens_BT.shape[1] > self.steps + 1, "a batch must be longer than a draft"
        steps = self.unroll(batch, states)
        hidden = [align(step.hidden_BRH, j) for j, step in enumerate(steps)]
        return score(batch, *self._teach(batch, states, steps, hidden))

    def compile(self) -> None:
        """Compile the parts that all steps share: unrolled into one graph they would take minutes to compile."""
        super().compile()
        self.network.compile_parts()

    def unroll(self, batch: Batch, states: States) -> list[Step]:
        """Return what each step gives, given the batch's own tokens as its earlier draft tokens."""
        network, num_rows = self.network, batch.tokens_BT.shape[1] - 1
        carry_BRH = network.enter(working(self._features(states)[:, :-1], network))
        cos_TD, sin_TD = self._rotations(num_rows + self.steps, batch.tokens_BT.device)
        past: list[list[KeyValue]] = [[] for _ in network.layers]
        steps = []
        for j in range(self.steps):
            embedded_BRH, carry_BRH = self._told(batch, carry_BRH, j)
            rotations = (cos_TD[j : j + num_rows], sin_TD[j : j + num_rows])
            hidden_BRH, carry_BRH, new = network(embedded_BRH, carry_BRH, rotations, past)
            for memory, key_value in zip(past, new, strict=True):
                memory.append(key_value)
            steps.append(Step(hidden_BRH=hidden_BRH, carry_BRH=carry_BRH))
        return steps

    def _features(self, states: States) -> Tensor:
        """Return what the network reads of the target, [B, T, F]."""
        return torch.cat(states.taps_BTH, dim=-1) if states.taps_BTH else states.final_BTH

    def _told(self, batch: Batch, carry_BRH: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens of a step's rows and what they are given beside."""
        tokens_BR = F.pad(batch.tokens_BT[:, 1 + step :], (0, step))
        return self.network.embed(tokens_BR, step), carry_BRH

    def _rotations(self, num_positions: int, device: torch.device) -> Rotations:
        return self._blueprint.rope.rotations(torch.arange(num_positions, device=device), torch.float32)

    def _teach(
        self, batch: Batch, states: States, _steps: list[Step], hidden_JBLH: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the likeliest tokens [J, B, L], in the target's ids.

        Everything is aligned by label: column l is about token l + 2.
        """
        return self._cross_entropy(batch, states, hidden_JBLH)

    def _weights(self, batch: Batch) -> Tensor:
        """Return the weight of each label at each draft position, [J, B, L]; together they are 1."""
        return weigh(self._learnable(batch), self.steps, self.discount)

    def _learnable(self, batch: Batch) -> Tensor:
        """Return which labels are learnt, bool [B, L]."""
        return batch.learnt_BT[:, 2:]

    def _cross_entropy(self, batch: Batch, states: States, hidden_JBLH: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the cross entropy with the answers, and the likeliest tokens [J, B, L]."""
        weights_JBL = self._weights(batch)
        flat = [hidden_BLH.flatten(0, 1) for hidden_BLH in hidden_JBLH]
        loss, picks_JM = vocabulary_loss(
            flat, self.head_UH, weights_JBL.flatten(1), self._answers(batch, states), fuse=self._compiled
        )
        return loss, self._target_ids(picks_JM).view(weights_JBL.shape)

    @property
    def head_UH(self) -> Tensor:
        """What names tokens: the target's own head."""
        return self._target.head_VH

    def _answers(self, _batch: Batch, states: States) -> Answers:
        """Return what is learnt: the target's distributions."""
        return answer_as_target(states, self._target.head_VH)

    def _target_ids(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of tokens that the drafter names."""
        return tokens
