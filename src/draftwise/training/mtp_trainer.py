"""Trains multi-token prediction: a module that drafts after the target's last layer (MiMo, arXiv 2505.07608).

Like DeepSeek-V3's (arXiv 2412.19437), in the layout of the simplest architecture that vLLM serves.

Shape letters: B sequences, T tokens, R rows of a sequence, L labels, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.training.chain_training import ChainNetwork, ChainTraining
from draftwise.training.draft_losses import Answers, answer_as_text
from draftwise.training.drafter_export import check_expressible, save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import DecoderLayer, Norm, make_linear
from draftwise.training.method import Blueprint, Option, read_options

_PREFIX = "model.mtp_layers.0."


class _Network(ChainNetwork):
    """Joins state and embedding, both normed; its output is also the next row's state."""

    def __init__(self, embedding_VH: Tensor, blueprint: Blueprint) -> None:
        hidden, eps = blueprint.shape.hidden_size, blueprint.eps
        super().__init__(embedding_VH, [DecoderLayer(blueprint.shape, eps, qkv_bias=True)])
        self.token_layernorm = Norm(hidden, eps)
        self.hidden_layernorm = Norm(hidden, eps)
        self.input_proj = make_linear(2 * hidden, hidden)
        self.final_layernorm = Norm(hidden, eps)

    def embed(self, tokens_BR: Tensor, step: int) -> Tensor:
        """Return the embeddings. The row at position 0 gets no token, as in vLLM."""
        embedded_BRH = super().embed(tokens_BR, step)
        return embedded_BRH if step else F.pad(embedded_BRH[:, 1:], (0, 0, 1, 0))

    def stem(self, embedded_BRH: Tensor, carry_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joined input, and the same after the layer's norm."""
        parts = (self.hidden_layernorm(carry_BRH), self.token_layernorm(embedded_BRH))
        x_BRH = self.input_proj(torch.cat(parts, dim=-1))
        return x_BRH, self.layers[0].input_layernorm(x_BRH)

    def leave(self, x_BRH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed stream: for the target's head, and for the next row."""
        hidden_BRH = self.final_layernorm(x_BRH)
        return hidden_BRH, hidden_BRH


class MtpTraining(ChainTraining):
    """Trains to predict the token after the next one, with the target's frozen embedding and head.

    One module drafts all tokens, as vLLM runs a MiMo target. It is trained for the given number of draft tokens.
    """

    name: ClassVar[str] = "mtp"
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("mtp")

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        check_expressible(target.config, where=str(target.path / "config.json"))
        blueprint = Blueprint.for_target(target, num_layers=1)
        network = _Network(target.embedding_VH, blueprint)
        # The stream before the final norm, unlike EAGLE: vLLM's MiMo leaves that norm to its head.
        self.aux_layers = (target.num_layers,)
        super().__init__(network, target, blueprint, options)
        self._learns_tokens = options["learn_from"] == "tokens"

    def _answers(self, batch: TokenBatch, states: States) -> Answers:
        if self._learns_tokens:
            return answer_as_text(batch)
        return super()._answers(batch, states)

    def export(self, folder: Path) -> None:
        """Write only the module. `assemble_mtp` joins it with its target into a checkpoint that vLLM loads."""
        named = self.network.state_dict().items()
        tensors = {_PREFIX + name.removeprefix("layers.0."): tensor for name, tensor in named}
        config = self._blueprint.config(architecture="MiMoForCausalLM", model_type="qwen2") | {
            "num_hidden_layers": self._target.num_layers,
            "num_nextn_predict_layers": 1,
        }
        save_drafter(folder, config, tensors, self._blueprint.dtype)
