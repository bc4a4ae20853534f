"""EAGLE: a decoder layer that extrapolates the target's last hidden state (Li et al. 2024, arXiv 2401.15077).

Shape letters: N rows of a pass, H hidden size.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.families import FAMILIES
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.draft_head import DraftHead, LayeredHead
from draftwise.engine.proposers.paged import build_chain
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.resolved_spec import ResolvedSpec

_FAMILIES = dict.fromkeys(("LlamaForCausalLM", "EagleLlamaForCausalLM"), FAMILIES["llama"])


class EagleDrafter(DraftHead):
    """Predicts the target's next state from the last one and the chosen token. The target's head reads it.

    Args:
        target: provides its head, and its embedding if the checkpoint has none.
    """

    def __init__(self, checkpoint: LayeredHead, target: CausalLM) -> None:
        reader, shape = checkpoint.reader, checkpoint.shape
        super().__init__((target.shape.num_layers + 1,), shape, checkpoint.vocabulary(target.weights.head))
        self._fc = reader.linear("", ["fc"], [shape.hidden_size], 2 * shape.hidden_size)
        layers = [reader.layer(f"layers.{i}.", input_norm=i > 0) for i in range(shape.num_layers)]
        self._layers = checkpoint.layers(*layers)
        self._join(self._layers, projection=self._fc, last_norm=None, carries_normed=False)

    def forward(
        self, tokens_N: Tensor, carry_NH: Tensor | None, positions_N: Tensor, kv: PagedKV, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor]:
        """Run rows of (token, state before it); see `ChainDrafter.forward`."""
        assert carry_NH is not None
        kernels = self._layers.kernels
        x_NH = self._fc(kernels.embed_beside(tokens_N, self._embedding_VH, carry_NH, None))
        x_NH, delta_NH = self._layers.forward(x_NH, x_NH, positions_N, kv, plan)
        hidden_NH = kernels.add(x_NH, delta_NH)
        return hidden_NH, hidden_NH


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of an EAGLE head."""
    return build_chain(load_eagle(find_weights(spec, config), target), spec, config, target)


def load_eagle(path: str | Path, target: CausalLM) -> EagleDrafter:
    """Return the EAGLE head of a directory in vLLM's layout (`EagleLlamaForCausalLM`).

    Args:
        target: the model that it was trained for; provides its head, and its embedding if the directory has none.

    Raises:
        InvalidSetup: the head does not match the target, or tensors are missing or unknown.
    """
    checkpoint = LayeredHead(path, target, _FAMILIES)
    checkpoint.check_width(may_differ=False)
    drafter = EagleDrafter(checkpoint, target)
    checkpoint.check_read()
    return drafter
