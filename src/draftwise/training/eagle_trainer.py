"""Trains EAGLE, which extrapolates the target's last hidden state (Li et al. 2024, arXiv 2401.15077).

Shape letters: B sequences, T tokens, R rows of a sequence, L labels, J draft positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.training.chain_training import ChainNetwork, ChainTraining, UnrolledStep
from draftwise.training.draft_losses import align
from draftwise.training.drafter_export import save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import DecoderLayer, make_linear
from draftwise.training.method import Blueprint, Option, read_options


class _Network(ChainNetwork):
    """Predicts the next state from the last one and the token that was chosen."""

    def __init__(self, embedding_VH: Tensor, blueprint: Blueprint) -> None:
        shape = blueprint.shape
        super().__init__(
            embedding_VH, [DecoderLayer(shape, blueprint.eps, input_norm=i > 0) for i in range(shape.num_layers)]
        )
        self.fc = make_linear(2 * shape.hidden_size, shape.hidden_size)

    def stem(self, embedded_BRH: Tensor, carry_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the first layer, which has no input norm."""
        x_BRH = self.fc(torch.cat((embedded_BRH, carry_BRH), dim=-1))
        return x_BRH, x_BRH

    def leave(self, x_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted state: for the target's head, and for the next row."""
        return x_BRH, x_BRH


class EagleTraining(ChainTraining):
    """Trains to predict the target's next state and its distribution.

    The loss is the paper's: smooth L1 between states, plus 0.1 of the cross entropy between the distributions. With
    more than one draft token the drafter also learns from its own states, as in HASS (arXiv 2408.15766).
    """

    name: ClassVar[str] = "eagle"
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("eagle")

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        blueprint = Blueprint.for_target(
            target, num_layers=options["num_layers"], intermediate_size=options["intermediate_size"]
        )
        network = _Network(target.embedding_VH, blueprint)
        super().__init__(network, target, blueprint, options)
        self._noise, self._token_weight = options["noise"], options["token_weight"]

    def _features(self, states: States) -> Tensor:
        final_BTH = states.final_BTH
        if self._noise and torch.is_grad_enabled():
            return final_BTH + (torch.rand_like(final_BTH) * 2 - 1) * self._noise
        return final_BTH

    def _teach(
        self, batch: TokenBatch, states: States, steps: list[UnrolledStep], hidden_JBLH: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        loss, picks_JBL = self._cross_entropy(batch, states, hidden_JBLH)
        loss, weights_JBL = self._token_weight * loss, self._weights(batch)
        aim_BLH = states.final_BTH[:, 1:-1].float()
        for j, step in enumerate(steps):
            error_BLH = F.smooth_l1_loss(align(step.carry_BRH, j).float(), aim_BLH, reduction="none")
            loss = loss + (error_BLH.mean(-1) * weights_JBL[j]).sum()
        return loss, picks_JBL

    def export(self, folder: Path) -> None:
        """Write the drafter as vLLM's `EagleLlamaForCausalLM`. Embedding and head are the target's."""
        config = self._blueprint.config(architecture="EagleLlamaForCausalLM", model_type="llama")
        save_drafter(folder, config, self.network.state_dict(), self._blueprint.dtype)
