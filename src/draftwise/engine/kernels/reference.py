"""Everything of a decoder layer that is neither a matrix product nor attention, in plain torch.

Shape letters: N new tokens of the step, H hidden size, I intermediate size, A query heads, G key-value heads,
S = A + 2G heads of q, k and v, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention import PagedKV

__all__ = ["Kernels"]


class Kernels:
    """The operations of one model; this class runs anywhere and is what faster ones are checked against.

    Attributes:
        rotation_dtype: type in which `rotate_and_store` wants cosine and sine.
    """

    def __init__(self, shape: ModelShape, eps: float, dtype: torch.dtype) -> None:
        self.shape, self.eps = shape, eps
        self.rotation_dtype = dtype

    def add_norm(self, x_NH: Tensor, delta_NH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its RMS norm; x itself when there is no delta."""
        sum_NH = x_NH if delta_NH is None else x_NH + delta_NH
        return sum_NH, F.rms_norm(sum_NH, weight_H.shape, weight_H, self.eps)

    def silu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        """Return silu(gate) * up, [N, I], of the two beside each other."""
        gate_NI, up_NI = gate_up_N2I.chunk(2, dim=-1)
        return F.silu(gate_NI) * up_NI

    def rotate_and_store(
        self,
        qkv_NSD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        rotations: tuple[Tensor, Tensor],
        kv: PagedKV,
        layer: int,
        slots_N: Tensor,
    ) -> Tensor:
        """Norm (if the family does) and rotate q and k, store k and v, and return q_NAD.

        Args:
            qkv_NSD: heads of q, k and v; its memory may be re-used for the result.
            norms: weights of the RMS norm over each head of q and of k.
            rotations: cosine and sine, [N, D / 2] each.
            kv: the pages.
            layer: which layer's.
            slots_N: where each token goes.
        """
        heads, groups = self.shape.num_heads, self.shape.num_kv_heads
        q_NAD, k_NGD, v_NGD = qkv_NSD.split((heads, groups, groups), dim=1)
        if norms is not None:
            q_NAD = F.rms_norm(q_NAD, norms[0].shape, norms[0], self.eps)
            k_NGD = F.rms_norm(k_NGD, norms[1].shape, norms[1], self.eps)
        kv.store(layer, slots_N, torch.stack((_rotate(k_NGD, *rotations), v_NGD), dim=1))
        return _rotate(q_NAD, *rotations)


def _rotate(x_NAD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Rotate the first half of each head against the second (the layout of Hugging Face checkpoints)."""
    cos_N1D, sin_N1D = cos_ND.unsqueeze(1), sin_ND.unsqueeze(1)
    left, right = x_NAD.chunk(2, dim=-1)
    return torch.cat((left * cos_N1D - right * sin_N1D, right * cos_N1D + left * sin_N1D), dim=-1)
