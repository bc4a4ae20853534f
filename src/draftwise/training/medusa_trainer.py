"""Medusa-1: heads on the target's last state, each for one position further ahead (Cai et al. 2024, arXiv 2401.10774).

Shape letters: B sequences, R rows of a sequence, J draft positions, H hidden size, V vocabulary. Row r reads the state
at r, knows the tokens 0..r + 1, and head j predicts token r + 2 + j.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.training.draft_losses import learn_labels
from draftwise.training.drafter_export import save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.method import DrafterTraining, DraftLoss, Option, read_options


class _Block(nn.Module):
    """Residual layers x + SiLU(W x) that start as the identity."""

    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        layers = [nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(num_layers)]
        for layer in layers:
            nn.init.zeros_(layer.weight)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class _Network(nn.Module):
    """Blocks and heads, named as in the checkpoint."""

    def __init__(self, head_VH: Tensor, *, num_heads: int, num_layers: int, num_lm_heads: int, frozen: bool) -> None:
        super().__init__()
        vocab_size, hidden = head_VH.shape
        self.blocks = nn.ModuleList(_Block(hidden, num_layers) for _ in range(num_heads))
        heads = [nn.Linear(hidden, vocab_size, bias=False) for _ in range(num_lm_heads)]
        with torch.no_grad():
            for head in heads:
                head.weight.copy_(head_VH)
        self.lm_heads = nn.ModuleList(heads).requires_grad_(not frozen)

    def forward(self, states_BRH: Tensor) -> list[Tensor]:
        return [block(states_BRH) for block in self.blocks]


class MedusaTraining(DrafterTraining):
    """Trains the heads on the frozen target. Initially, they all predict the same as its own head."""

    name: ClassVar[str] = "medusa"
    learning_rate: ClassVar[float] = 2e-3
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("medusa")

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        self._target, self._options = target, options
        self.network: Any = _Network(
            target.head_VH,
            num_heads=options["num_heads"],
            num_layers=options["num_layers"],
            num_lm_heads=options["num_heads"] if options["lm_head"] == "own" else 1,
            frozen=options["lm_head"] == "frozen",
        ).to(target.device)

    def compile(self) -> None:
        """Compile the blocks and parts of the loss."""
        super().compile()
        self.network.forward = torch.compile(self.network.forward, dynamic=False)

    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Return the weighted sum of the heads' cross entropies."""
        hidden_JBRH = self.network(states.final_BTH[:, :-1])
        heads = [head.weight for head in self.network.lm_heads]
        head_VH = None if self._options["learn_from"] == "tokens" else self._target.head_VH
        discount = self._options["discount"]
        return learn_labels(batch, states, hidden_JBRH, heads, head_VH, discount=discount, fuse=self._compiled)

    def export(self, folder: Path) -> None:
        """Write the heads as vLLM's `MedusaModel`."""
        options, target = self._options, self._target
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "dtype": str(target.dtype).removeprefix("torch."),
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "num_heads": options["num_heads"],
            "num_hidden_layers": options["num_layers"],
            "medusa_fc_bias": False,
            "original_lm_head": options["lm_head"] != "own",
        }
        save_drafter(folder, config, self.network.state_dict(), target.dtype)
