"""Medusa-1: heads on the target's last state, each for one place further ahead (Cai et al. 2024, arXiv 2401.10774).

Shape letters: B sequences, T tokens, R = T - 1 rows, L = T - 2 labels, M labels of all sequences, J draft positions,
H hidden size, V vocabulary. Row r reads the state at r, knows the tokens 0..r + 1, and head j names token r + 2 + j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.train.chain import align
from draftwise.train.checkpoint import save_drafter
from draftwise.train.method import Batch, Lesson, Method, States
from draftwise.train.options import Option
from draftwise.train.target import Target
from draftwise.train.vocabulary_loss import Answers, vocabulary_loss

__all__ = ["MedusaTraining", "learn_labels"]


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


class MedusaTraining(Method):
    """Trains the heads beside the frozen target."""

    name: ClassVar[str] = "medusa"
    learning_rate: ClassVar[float] = 2e-3
    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option(name="num_heads", default=5, least=1, help="Guesses, each with its own head (the paper's 5)."),
        Option(name="num_layers", default=1, least=1, help="Residual layers of a head (the paper's 1)."),
        Option(
            name="lm_head",
            default="own",
            choices=("own", "shared", "frozen"),
            help="Last matrix of the heads: one each as in the paper, one that all share, or a copy of the target's "
            "that is not trained. One for all makes the checkpoint small (vLLM's original_lm_head).",
        ),
        Option(name="discount", default=0.8, least=0, help="Weight of a guess, relative to the one before (paper)."),
        Option(
            name="learn",
            default="distribution",
            choices=("distribution", "tokens"),
            help="What is learnt: the target's distribution, or the text's own next token as in the paper.",
        ),
    )

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self._target, self._options, self._fuse = target, options, False
        self.network: Any = _Network(
            target.head_VH,
            num_heads=options["num_heads"],
            num_layers=options["num_layers"],
            num_lm_heads=options["num_heads"] if options["lm_head"] == "own" else 1,
            frozen=options["lm_head"] == "frozen",
        ).to(target.device)

    def compile(self) -> None:
        """Compile the blocks, and the loss in part."""
        self._fuse = True
        self.network.forward = torch.compile(self.network.forward, dynamic=False)

    @classmethod
    def build(cls, target: Target, options: Mapping[str, Any]) -> MedusaTraining:
        """Return heads that all say what the target's own says."""
        return cls(target, options)

    def lesson(self, batch: Batch, states: States) -> Lesson:
        """Return the weighted sum of the heads' cross entropies."""
        hidden_JBRH = self.network(states.final_BTH[:, :-1])
        heads = [head.weight for head in self.network.lm_heads]
        head_VH = None if self._options["learn"] == "tokens" else self._target.head_VH
        discount = self._options["discount"]
        return learn_labels(batch, states, hidden_JBRH, heads, head_VH, discount=discount, fuse=self._fuse)

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


def learn_labels(
    batch: Batch,
    states: States,
    hidden_JBRH: Sequence[Tensor],
    heads: Sequence[Tensor],
    target_head_VH: Tensor | None,
    *,
    discount: float,
    fuse: bool,
) -> Lesson:
    """Return the lesson of a drafter whose row r of draft position j names token r + 2 + j.

    Args:
        batch: the text.
        states: the target's.
        hidden_JBRH: what the heads read.
        heads: [V, H'] each; one for all draft positions or one for each.
        target_head_VH: the target's head, to learn its distribution; None: the text's tokens are learnt.
        discount: weight of a draft position's mean cross entropy, relative to the position before.
        fuse: see `vocabulary_loss`.
    """
    num_positions = len(hidden_JBRH)
    rows = [align(hidden_BRH, j).flatten(0, 1) for j, hidden_BRH in enumerate(hidden_JBRH)]
    weights_JBL = _weigh(batch.learnt_BT[:, 2:], num_positions, discount)
    weights_JM = weights_JBL.flatten(1)
    if target_head_VH is None:
        answers = Answers(tokens_M=batch.tokens_BT[:, 2:].flatten())
    else:
        answers = Answers(states_MH=states.final_BTH[:, 1:-1].flatten(0, 1), head_UH=target_head_VH)
    if len(heads) == 1:
        loss, picks_JM = vocabulary_loss(rows, heads[0], weights_JM, answers, fuse=fuse)
    else:
        parts = [
            vocabulary_loss([row], head, weights_JM[j : j + 1], answers, fuse=fuse)
            for j, (row, head) in enumerate(zip(rows, heads, strict=True))
        ]
        loss, picks_JM = torch.stack([part[0] for part in parts]).sum(), torch.cat([part[1] for part in parts])
    hits_JBL = picks_JM.view(weights_JBL.shape) == batch.tokens_BT[:, 2:]
    return Lesson(
        loss=loss,
        hits=tuple(F.pad(hits_JBL[j, :, j:], (1, 1 + j)) for j in range(num_positions)),
        counted=tuple(F.pad(batch.learnt_BT[:, 2 + j :], (1, 1 + j)) for j in range(num_positions)),
    )


def _weigh(learnt_BL: Tensor, num_positions: int, discount: float) -> Tensor:
    """Return the weight of each label at each draft position, [J, B, L]; together they are 1."""
    rows = []
    for j in range(num_positions):
        mine_BL = F.pad(learnt_BL[:, j:], (j, 0)).float()
        rows.append(mine_BL * (discount**j / mine_BL.sum().clamp(min=1)))
    return torch.stack(rows) / sum(discount**j for j in range(num_positions))
