"""Computes a decoder layer's steps, except matrix products and attention, in plain torch.

Shape letters: N new tokens of the step, H hidden size, X input and I intermediate size of the gated MLP, V vocabulary,
A query heads, G key-value heads, S = A + 2G heads of q, k and v, D head dimension, T positions of a table, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.kernels.cpu_layouts import Table
from draftwise.engine.memory.kv import PagedKV

Rotations = tuple[Tensor, Tensor]
"""Result of `Kernels.rotations`, computed once per pass and read by `Kernels.rotate_and_store` in all layers."""


class RotaryTable(Protocol):
    """Settings of a model's rotary embedding that kernels need."""

    def table(self) -> Tensor:
        """Return cosines followed by sines of all positions up to the limit, float32 [T, D]."""

    def rotations(self, positions_N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, [N, D / 2] each, of the given positions."""


class Kernels:
    """Operations of one model. This class runs on any device and is the reference for faster ones.

    Rows of tensors are contiguous. Gaps between rows are allowed only where stated.
    """

    rotation_dtype: torch.dtype
    """Type of cosine and sine."""

    def __init__(self, shape: ModelShape, rope: RotaryTable, eps: float, dtype: torch.dtype) -> None:
        self.shape, self.rope, self.eps = shape, rope, eps
        self.rotation_dtype = dtype

    def compile(self) -> None:
        """Compile ahead what the first call would compile."""

    def embed(
        self,
        tokens_N: Tensor,
        embedding_VH: Table,
        weight_H: Tensor,
        total_NH: Tensor | None = None,
        *,
        factor: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens' embeddings times a factor, written to `total_NH` if given, and their RMS norm."""
        x_NH = look_up(tokens_N, embedding_VH)
        return self.add_norm(x_NH if factor == 1.0 else x_NH * factor, None, weight_H, total_NH)

    def embed_beside(
        self,
        tokens_N: Tensor,
        embedding_VH: Table,
        state_NH: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        *,
        state_first: bool = False,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings and states, concatenated, [N, 2H]: the input of drafting heads.

        Args:
            state_NH: state of each token. Gaps between rows are allowed.
            norms: weights of the RMS norms over embedding and state. None: neither is normed.
            state_first: whether the state is the left half.
            positions_N: if given, the embedding of the row at position 0 is 0.
        """
        token_NH = look_up(tokens_N, embedding_VH)
        if positions_N is not None:
            token_NH = token_NH.masked_fill((positions_N == 0).unsqueeze(1), 0)
        if norms is not None:
            token_NH, state_NH = self.add_norm(token_NH, None, norms[0])[1], self.add_norm(state_NH, None, norms[1])[1]
        return torch.cat((state_NH, token_NH) if state_first else (token_NH, state_NH), dim=-1)

    def add(self, x_NH: Tensor, delta_NH: Tensor) -> Tensor:
        """Return x + delta. Gaps between rows of x are allowed."""
        return x_NH + delta_NH

    def add_norm(
        self,
        x_NH: Tensor,
        delta_NH: Tensor | None,
        weight_H: Tensor,
        total_NH: Tensor | None = None,
        *,
        delta_weight_H: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return x + delta (x itself when there is no delta), rounded to their type, and its RMS norm.

        Gaps between rows of x and of `total_NH` are allowed. The sum is written to `total_NH` if given. Weights of
        norms always have the rows' type or float32. `delta_weight_H` is the weight of a norm over delta.
        """
        if delta_NH is not None and delta_weight_H is not None:
            delta_NH = self._norm(delta_NH, delta_weight_H)
        sum_NH = x_NH if delta_NH is None else self.add(x_NH, delta_NH)
        if total_NH is not None:
            sum_NH = total_NH.copy_(sum_NH)
        return sum_NH, self._norm(sum_NH, weight_H)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm over the last dimension, rounded once."""
        wide = x if weight.dtype == x.dtype else x.to(weight.dtype)
        return F.rms_norm(wide, weight.shape, weight, self.eps).to(x.dtype)

    def silu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        """Return silu(gate) * up, [N, I], of the two halves."""
        gate_NI, up_NI = gate_up_N2I.chunk(2, dim=-1)
        return F.silu(gate_NI) * up_NI

    def gelu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        """Return gelu(gate) * up, [N, I], of the two halves, with the approximation by tanh."""
        gate_NI, up_NI = gate_up_N2I.chunk(2, dim=-1)
        return F.gelu(gate_NI, approximate="tanh") * up_NI

    def gated(self, gate_up: Callable[[Tensor], Tensor], x_NX: Tensor, *, gelu: bool = False) -> Tensor:
        """Return `silu_mul`, or `gelu_mul`, of the product of `gate_up` and x."""
        return (self.gelu_mul if gelu else self.silu_mul)(gate_up(x_NX))

    def route(self, logits_NE: Tensor, num_chosen: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
        """Return weights and indices of the experts that the router chooses for each row, [N, K] each.

        Args:
            normalize: whether each row's weights sum to 1. Otherwise they are probabilities over all experts.
        """
        weights_NK, chosen_NK = logits_NE.softmax(dim=-1, dtype=torch.float32).topk(num_chosen, dim=-1)
        return weights_NK / weights_NK.sum(dim=-1, keepdim=True) if normalize else weights_NK, chosen_NK

    def rotations(self, positions_N: Tensor) -> Rotations:
        """Return the rotations of rows at the given int64 positions: here cosine and sine, [N, D / 2] each."""
        return self.rope.rotations(positions_N, self.rotation_dtype)

    def rotate_and_store(
        self,
        qkv_NSD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        rotations: Rotations,
        kv: PagedKV,
        layer: int,
        slots_N: Tensor,
    ) -> Tensor:
        """Norm (if the family does) and rotate q and k, store k and v, and return q_NAD.

        Args:
            qkv_NSD: heads of q, k and v; A may be 0. Gaps between rows are allowed, also in the result, which may reuse
                this memory.
            norms: weights of the RMS norm over each head of q and of k.
            kv: the pages. For one-byte floats, values are rounded from the rows' type, and saturate.
        """
        groups = self.shape.num_kv_heads
        q_NAD, k_NGD, v_NGD = qkv_NSD.split((qkv_NSD.shape[1] - 2 * groups, groups, groups), dim=1)
        if norms is not None:
            q_NAD, k_NGD = self._norm(q_NAD, norms[0]), self._norm(k_NGD, norms[1])
        kv.store(layer, slots_N, torch.stack((_rotate(k_NGD, *rotations), v_NGD), dim=1))
        return _rotate(q_NAD, *rotations)


def look_up(tokens_N: Tensor, table_VH: Table) -> Tensor:
    """Return the rows of tokens, [N, H]."""
    return F.embedding(tokens_N, table_VH) if isinstance(table_VH, Tensor) else table_VH(tokens_N)


def _rotate(x_NAD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Rotate the first half of each head against the second (the layout of Hugging Face checkpoints)."""
    cos_N1D, sin_N1D = cos_ND.unsqueeze(1), sin_ND.unsqueeze(1)
    left, right = x_NAD.chunk(2, dim=-1)
    return torch.cat((left * cos_N1D - right * sin_N1D, right * cos_N1D + left * sin_N1D), dim=-1).to(x_NAD.dtype)
