"""Multi-token prediction: modules that a target was trained with (MiMo, arXiv 2505.07608; DeepSeek-V3, 2412.19437).

Shape letters: N rows of a pass, H hidden size.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.families import FAMILIES
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.draft_head import DraftHead, HeadVocabulary, LayeredHead
from draftwise.engine.proposers.paged import build_chain
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.knowledge.messages import refusal

_FAMILIES = {family.architecture: FAMILIES["mimo"] for family in FAMILIES.values() if not family.has_experts}
"""Families of targets. A module is a MiMo layer for any target; Qwen3-MoE has no modules."""
_PREFIX = "model.mtp_layers."


class MtpDrafter(DraftHead):
    """Drafts repeatedly with the target's first module, using the target's embedding and head.

    vLLM also makes every draft token of a MiMo target with its first module, regardless of their number.

    Attributes:
        n_predict: number of modules in the target's training; see `check_k`.
    """

    def __init__(self, checkpoint: LayeredHead, target: CausalLM, n_predict: int) -> None:
        # The stream before the final norm, unlike EAGLE (vLLM's MiMoModel leaves that norm to its head).
        aux_layers = (target.shape.num_layers,)
        vocabulary = HeadVocabulary(embedding_VH=target.weights.embedding_VH, head=target.weights.head)
        super().__init__(aux_layers, dataclasses.replace(checkpoint.shape, num_layers=1), vocabulary)
        self.n_predict = n_predict
        reader, hidden, prefix = checkpoint.reader, checkpoint.shape.hidden_size, _PREFIX + "0."
        layer = reader.layer(prefix)
        assert layer.input_norm is not None
        self._norms = (
            reader.vector(prefix + "token_layernorm.weight", hidden),
            reader.vector(prefix + "hidden_layernorm.weight", hidden),
        )
        self._input_proj = reader.linear(prefix, ["input_proj"], [hidden], 2 * hidden)
        self._input_norm, self._layers = layer.input_norm, checkpoint.layers(layer)
        self._final_norm = reader.vector(prefix + "final_layernorm.weight", hidden)
        self._join(
            self._layers,
            norms=self._norms,
            state_first=True,
            skips_first=True,
            projection=self._input_proj,
            input_norm=self._input_norm,
            last_norm=self._final_norm,
            carries_normed=True,
        )

    def forward(
        self, tokens_N: Tensor, carry_NH: Tensor | None, positions_N: Tensor, kv: PagedKV, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor]:
        """Run rows of (token, state before it); see `ChainDrafter.forward`."""
        assert carry_NH is not None
        kernels = self._layers.kernels
        # The row at position 0 is trained without its token.
        both_NX = kernels.embed_beside(
            tokens_N, self._embedding_VH, carry_NH, self._norms, state_first=True, positions_N=positions_N
        )
        x_NH, normed_NH = kernels.add_norm(self._input_proj(both_NX), None, self._input_norm)
        x_NH, delta_NH = self._layers.forward(x_NH, normed_NH, positions_N, kv, plan)
        _, hidden_NH = kernels.add_norm(x_NH, delta_NH, self._final_norm)
        return hidden_NH, hidden_NH


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of a target's MTP modules."""
    drafter = load_mtp(find_weights(spec, config), target)
    check_k(drafter.n_predict, spec.k)
    return build_chain(drafter, spec, config, target)


def load_mtp(path: str | Path, target: CausalLM) -> MtpDrafter:
    """Return the MTP modules of a directory in MiMo's layout (`model.mtp_layers.0.` ...).

    Args:
        path: the target's own checkpoint, or a directory with its config.json and the modules' tensors only.

    Raises:
        InvalidSetup: the modules are missing or do not match the target, or tensors are missing or unknown.
    """
    checkpoint = LayeredHead(path, target, _FAMILIES)
    checkpoint.check_width(may_differ=False)
    n_predict = _count(checkpoint)
    drafter = MtpDrafter(checkpoint, target, n_predict)
    later = tuple(f"{_PREFIX}{i}." for i in range(1, n_predict))
    checkpoint.check_read(lambda name: not name.startswith(_PREFIX) or name.startswith(later))
    return drafter


def check_k(n_predict: int, k: int) -> None:
    """Check a number of draft tokens against the number of modules, by vLLM's rule.

    Raises:
        InvalidSetup: k is larger than `n_predict` and not a multiple of it.
    """
    if k > n_predict and k % n_predict:
        raise refusal(
            "not-a-multiple", k=k, n_predict=n_predict, below=k - k % n_predict, above=k - k % n_predict + n_predict
        )


def _count(checkpoint: LayeredHead) -> int:
    """Return how many modules config.json promises."""
    n_predict = checkpoint.config.get("num_nextn_predict_layers") or 0
    modules = any(name.startswith(_PREFIX) for name in checkpoint)
    if n_predict and modules:
        return int(n_predict)
    if any(name.endswith(".eh_proj.weight") for name in checkpoint):
        raise refusal("unsupported-mtp", where=checkpoint.where)
    absent = f"no tensors {_PREFIX}*" if n_predict else "no num_nextn_predict_layers"
    raise refusal("no-mtp", absent=absent, where=checkpoint.where)
