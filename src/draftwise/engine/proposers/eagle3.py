"""EAGLE-3: a decoder layer over states of several depths of the target (Li et al. 2025, arXiv 2503.01840).

With a mask, it is P-EAGLE, which drafts all tokens in one pass.

Shape letters: N rows of a pass, F features of a token, H hidden size, V the target's vocabulary, U tokens that the
head can name.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.checkpoints.config_values import AUX_KEY, default_layers, find_aux_layers, find_mask_token
from draftwise.checkpoints.head_fit import find_layers_fault, find_mask_fault
from draftwise.core import InvalidSetup
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.families import FAMILIES
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.draft_head import DraftHead, LayeredHead, Mask
from draftwise.engine.models.linear import Linear
from draftwise.engine.proposers.paged import build_chain
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.resolved_spec import ResolvedSpec

_FAMILIES = {
    "LlamaForCausalLMEagle3": FAMILIES["llama"],
    "Eagle3LlamaForCausalLM": FAMILIES["llama"],
    "LlamaForCausalLM": FAMILIES["llama"],
    "PeagleLlamaForCausalLM": FAMILIES["llama"],
    "PEagleDraftModel": FAMILIES["llama"],
    "Eagle3Qwen2_5vlForCausalLM": FAMILIES["llama"],
    "Eagle3Qwen3vlForCausalLM": FAMILIES["llama"],
    "Eagle3Qwen3ForCausalLM": FAMILIES["qwen3"],
    "Qwen3ForCausalLM": FAMILIES["qwen3"],
    "PeagleQwen3ForCausalLM": FAMILIES["qwen3"],
}


class _Fusion:
    """Maps the auxiliary hidden states of a token to one vector."""

    def __init__(self, checkpoint: LayeredHead, num_aux_layers: int, width: int) -> None:
        reader, config, all_width = checkpoint.reader, checkpoint.config, num_aux_layers * width
        norms_all = (config.get("eagle_config") or {}).get("norm_before_fc", config.get("norm_before_fc", False))
        norms_each = range(num_aux_layers if config.get("fc_norm") else 0)
        self.input_norm = reader.vector("input_norm.weight", all_width) if norms_all else None
        """Norm over all of them together."""
        self.fc_norms = tuple(reader.vector(f"fc_norm.{i}.weight", width) for i in norms_each)
        """Norms of each state; empty without norms."""
        self.fc: Linear = reader.linear("", ["fc"], [checkpoint.shape.hidden_size], all_width)
        self.eps = checkpoint.eps

    def __call__(self, features_NF: Tensor) -> Tensor:
        if self.input_norm is not None:
            features_NF = F.rms_norm(features_NF, self.input_norm.shape, self.input_norm, self.eps)
        if self.fc_norms:
            parts = zip(features_NF.chunk(len(self.fc_norms), dim=-1), self.fc_norms, strict=True)
            features_NF = torch.cat([F.rms_norm(part, norm.shape, norm, self.eps) for part, norm in parts], dim=-1)
        return self.fc(features_NF)


class Eagle3Drafter(DraftHead):
    """Reads the concatenation of embedding and state. Its output is the next row's state.

    Args:
        target: provides embedding and head if the checkpoint has none.
        uses_aux: whether it fuses several states of the target. Otherwise, it reads the last one directly.
    """

    def __init__(self, checkpoint: LayeredHead, target: CausalLM, *, uses_aux: bool) -> None:
        reader, config, hidden = checkpoint.reader, checkpoint.config, checkpoint.shape.hidden_size
        num_layers, width = target.shape.num_layers, target.shape.hidden_size
        aux_layers = _aux_layers(checkpoint, num_layers) if uses_aux else (num_layers + 1,)
        mask = _read_mask(checkpoint, len(aux_layers) * width) if uses_aux else None
        super().__init__(aux_layers, checkpoint.shape, checkpoint.own_vocabulary(), mask)
        self._fusion = _Fusion(checkpoint, len(aux_layers), width) if uses_aux else None
        first = "midlayer." if any(name.startswith("midlayer.") for name in checkpoint) else "layers.0."
        layer = reader.layer(first, num_in=2 * hidden)
        assert layer.input_norm is not None
        self._norms = layer.input_norm, reader.vector(first + "hidden_norm.weight", hidden)
        """Norms of embedding and state."""
        further = (reader.layer(f"layers.{i}.") for i in range(1, checkpoint.shape.num_layers))
        self._layers = checkpoint.layers(layer, *further)
        self._norm = reader.vector("norm.weight", hidden)
        self._norm_before_residual = bool(config.get("norm_before_residual", False))
        """Whether the residual stream starts with the normed state."""
        self._norm_output = bool(config.get("norm_output", False))
        """Whether the next row's state is the one after `norm`."""
        self._join(
            self._layers,
            norms=self._norms,
            starts_normed=self._norm_before_residual,
            last_norm=self._norm,
            carries_normed=self._norm_output,
        )

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return the fused states [N, H]."""
        return features_NF if self._fusion is None else self._fusion(features_NF)

    def forward(
        self, tokens_N: Tensor, carry_NH: Tensor | None, positions_N: Tensor, kv: PagedKV, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor]:
        """Run rows of (token, state before it); see `ChainDrafter.forward`."""
        assert carry_NH is not None
        kernels = self._layers.kernels
        both_NX = kernels.embed_beside(tokens_N, self._embedding_VH, carry_NH, self._norms)
        x_NH = both_NX.chunk(2, dim=-1)[1] if self._norm_before_residual else carry_NH
        x_NH, delta_NH = self._layers.forward(x_NH, both_NX, positions_N, kv, plan)
        x_NH, hidden_NH = kernels.add_norm(x_NH, delta_NH, self._norm)
        return hidden_NH, hidden_NH if self._norm_output else x_NH


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of an EAGLE-3 or P-EAGLE head."""
    return build_chain(load_eagle3(find_weights(spec, config), target), spec, config, target)


def load_eagle3(path: str | Path, target: CausalLM) -> Eagle3Drafter:
    """Return the EAGLE-3 or P-EAGLE head of a directory in vLLM's layout (`Eagle3LlamaForCausalLM`).

    Args:
        target: the model that it was trained for; provides embedding and head if the directory has none.

    Raises:
        InvalidSetup: the head does not match the target, or tensors are missing or unknown.
    """
    checkpoint = LayeredHead(path, target, _FAMILIES)
    uses_aux = bool((checkpoint.config.get("eagle_config") or {}).get("use_aux_hidden_state", True))
    checkpoint.check_width(may_differ=uses_aux)
    drafter = Eagle3Drafter(checkpoint, target, uses_aux=uses_aux)
    checkpoint.check_read(lambda name: _is_ignored(name, uses_aux))
    return drafter


def _aux_layers(checkpoint: LayeredHead, num_layers: int) -> tuple[int, ...]:
    """Return the layers whose input is kept, ascending, as vLLM orders them."""
    layers = find_aux_layers(checkpoint.config) or default_layers(num_layers, AUX_KEY)
    if fault := find_layers_fault(layers, num_layers, where=checkpoint.where):
        raise InvalidSetup(fault)
    return layers.ids


def _read_mask(checkpoint: LayeredHead, width: int) -> Mask | None:
    """Return the mask of a P-EAGLE head: its token, and its states as the target would tell them."""
    token_id = find_mask_token(checkpoint.config)
    if token_id is None or "mask_hidden" not in checkpoint:
        return None
    if fault := find_mask_fault(token_id, checkpoint.shape.vocab_size, key="ptd_token_id", where=checkpoint.where):
        raise InvalidSetup(fault)
    return Mask(token_id=token_id, features_F=checkpoint.flat("mask_hidden", width))


def _is_ignored(name: str, uses_aux: bool) -> bool:
    """Say whether a tensor may be there for nothing, as in vLLM."""
    unused_hidden_norm = name.startswith("layers.") and name.endswith(".hidden_norm.weight")
    unused_fusion = not uses_aux and name.startswith(("fc.", "fc_norm."))
    return name in ("t2d", "mask_hidden") or name.startswith("input_norm.") or unused_hidden_norm or unused_fusion
