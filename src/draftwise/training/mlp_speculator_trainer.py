"""Trains the MLP speculator, a small recurrent network over the target's state and the tokens (arXiv 2404.19124).

Shape letters: B sequences, T tokens, R = T - 1 rows, H the target's hidden size, I inner size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.engine.proposers.mlp_speculator import token_weight
from draftwise.training.draft_losses import learn_labels
from draftwise.training.drafter_export import save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import make_linear
from draftwise.training.method import DrafterTraining, DraftLoss, Option, read_options

_EPS = 1e-6


class _Norm(nn.Module):
    """Root mean square norm with weight and bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _EPS)
        return (x.float() * scale * self.weight + self.bias).to(x.dtype)


class _Speculator(nn.Module):
    """The stages, named as in the checkpoint; tied parts exist once (the first projection has its own width)."""

    def __init__(self, hidden: int, inner: int, vocab_size: int, num_stages: int, *, tied: bool) -> None:
        super().__init__()
        count = 1 if tied else num_stages
        widths = [hidden] + [inner] * (min(num_stages - 1, 1) if tied else num_stages - 1)
        embeddings = [nn.Embedding(vocab_size, inner) for _ in range(count)]
        for embedding in embeddings:
            nn.init.normal_(embedding.weight, std=inner**-0.5)
        self.emb = nn.ModuleList(embeddings)
        self.proj = nn.ModuleList(make_linear(width, inner) for width in widths)
        self.ln = nn.ModuleList(_Norm(inner) for _ in range(count))
        self.head = nn.ModuleList(make_linear(inner, vocab_size) for _ in range(count))

    def forward(self, state_BRI: Tensor, tokens_BT: Tensor, num_stages: int, token_weight: float) -> list[Tensor]:
        """Return the input of each stage's head."""
        states_JBRI = []
        for j in range(num_stages):
            emb, proj, norm = (_stage(part, j) for part in (self.emb, self.proj, self.ln))
            tokens_BR = F.pad(tokens_BT[:, 1 + j :], (0, j))
            state_BRI = F.gelu(norm(proj(state_BRI) + token_weight * emb(tokens_BR)))
            states_JBRI.append(state_BRI)
        return states_JBRI


class MlpSpeculatorTraining(DrafterTraining):
    """Trains the stages along the text: each stage's input is the token that the previous one should have predicted."""

    name: ClassVar[str] = "mlp_speculator"
    learning_rate: ClassVar[float] = 2e-3
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("mlp_speculator")

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        self._target, self._options = target, options
        self._num_stages = options["n_predict"]
        self._inner = options["inner_dim"] or target.hidden_size
        speculator = _Speculator(
            target.hidden_size, self._inner, target.vocab_size, self._num_stages, tied=options["tie_weights"]
        )
        self.network: Any = nn.ModuleDict({"speculator": speculator}).to(target.device)
        self._token_weight = token_weight(self._inner, self._num_stages)

    def compile(self) -> None:
        """Compile the stages and parts of the loss."""
        super().compile()
        speculator = self.network["speculator"]
        speculator.forward = torch.compile(speculator.forward, dynamic=False)

    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Return the weighted sum of the stages' cross entropies."""
        speculator = self.network["speculator"]
        state_BRI = states.final_BTH[:, :-1]
        if self._options["scale_input"]:
            state_BRI = F.rms_norm(state_BRI, state_BRI.shape[-1:], eps=_EPS) / math.sqrt(2)
        states_JBRI = speculator(state_BRI, batch.tokens_BT, self._num_stages, self._token_weight)
        heads = [head.weight for head in speculator.head]
        head_VH = None if self._options["learn_from"] == "tokens" else self._target.head_VH
        discount = self._options["discount"]
        return learn_labels(batch, states, states_JBRI, heads, head_VH, discount=discount, fuse=self._compiled)

    def export(self, folder: Path) -> None:
        """Write the stages in the layout of fms-extras."""
        target = self._target
        config = {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "dtype": str(target.dtype).removeprefix("torch."),
            "vocab_size": target.vocab_size,
            "emb_dim": target.hidden_size,
            "inner_dim": self._inner,
            "n_predict": self._num_stages,
            "top_k_tokens_per_head": [1] * self._num_stages,
            "n_candidates": 1,
            "tie_weights": self._options["tie_weights"],
            "scale_input": self._options["scale_input"],
        }
        save_drafter(folder, config, self.network.state_dict(), target.dtype)


def _stage(parts: nn.ModuleList, index: int) -> nn.Module:
    """Return a stage's own part, or the last one, which later stages share."""
    return parts[min(index, len(parts) - 1)]
