"""The dense decoder of the Llama, Mistral, Qwen2 and Qwen3 families over paged keys and values.

Shape letters: N new tokens of the step, R rows that need logits, H hidden size, A query heads, G key-value
heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention import AttentionPlan, PagedKV, attend
from draftwise.engine.models.rope import Rope

__all__ = ["CausalLM", "Layer", "Linear", "Weights"]


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight [out, in] with an optional bias."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one decoder layer; q, k, v are one matrix, and so are gate and up."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model."""

    embedding_VH: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


class CausalLM:
    """A model ready to run, on one device in one dtype; call it under `torch.inference_mode`.

    Attributes:
        shape: its dimensions; max_position_embeddings is the longest context it can compute.
        config: config.json as read.
    """

    def __init__(self, config: dict[str, Any], shape: ModelShape, rope: Rope, weights: Weights) -> None:
        self.config, self.shape, self.weights = config, shape, weights
        self._rope = rope
        self._eps = float(config.get("rms_norm_eps") or 1e-6)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""
        return self.weights.embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.weights.embedding_VH.device

    def forward(
        self, tokens_N: Tensor, positions_N: Tensor, kv: PagedKV, plan: AttentionPlan, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the step's tokens, all sequences after each other, and store their keys and values.

        Args:
            tokens_N: int64 token ids.
            positions_N: int64 position of each token in its sequence.
            kv: the pages.
            plan: made by `plan_attention` for the same step.
            taps: i is the residual stream that enters layer i; the number of layers is what the last one
                leaves, before the final norm (EAGLE-3's numbering in vLLM).

        Returns:
            hidden_NH after the final norm, and the tapped hidden states in the order of `taps`.
        """
        x_NH = F.embedding(tokens_N, self.weights.embedding_VH)
        cos_sin = self._rope.rotations(positions_N, self.dtype)
        tapped: dict[int, Tensor] = {}
        for i, layer in enumerate(self.weights.layers):
            if i in taps:
                tapped[i] = x_NH
            x_NH = x_NH + self._attention(layer, i, self._norm(x_NH, layer.input_norm), cos_sin, kv, plan)
            x_NH = x_NH + self._mlp(layer, self._norm(x_NH, layer.post_norm))
        tapped[len(self.weights.layers)] = x_NH
        return self._norm(x_NH, self.weights.norm), [tapped[i] for i in taps]

    __call__ = forward

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RV in float32 (float64 for a float64 model) of hidden states after the final norm."""
        logits_RV = self.weights.head(hidden_RH)
        return logits_RV if self.dtype == torch.float64 else logits_RV.float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)

    def _attention(
        self,
        layer: Layer,
        index: int,
        x_NH: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        kv: PagedKV,
        plan: AttentionPlan,
    ) -> Tensor:
        shape = self.shape
        heads, groups = shape.num_heads, shape.num_kv_heads
        qkv_NSD = layer.qkv(x_NH).view(len(x_NH), heads + 2 * groups, shape.head_dim)
        q_NAD, k_NGD, v_NGD = qkv_NSD.split((heads, groups, groups), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q_NAD, k_NGD = self._norm(q_NAD, layer.q_norm), self._norm(k_NGD, layer.k_norm)
        q_NAD, k_NGD = _rotate(q_NAD, *cos_sin), _rotate(k_NGD, *cos_sin)
        return layer.o(attend(q_NAD, k_NGD, v_NGD, kv, index, plan).flatten(1))

    def _mlp(self, layer: Layer, x_NH: Tensor) -> Tensor:
        gate_NI, up_NI = layer.gate_up(x_NH).chunk(2, dim=-1)
        return layer.down(F.silu(gate_NI) * up_NI)


def _rotate(x_NAD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Rotate the first half of each head against the second (the layout of Hugging Face checkpoints)."""
    cos_N1D, sin_N1D = cos_ND.unsqueeze(1), sin_ND.unsqueeze(1)
    left, right = x_NAD.chunk(2, dim=-1)
    return torch.cat((left * cos_N1D - right * sin_N1D, right * cos_N1D + left * sin_N1D), dim=-1)
