"""Kernels for NVIDIA GPUs, written in Triton.

Shape letters: see `draftwise.engine.kernels.reference`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.kernels.cpu_layouts import Table
from draftwise.engine.kernels.cuda import experts
from draftwise.engine.kernels.cuda import layer as code
from draftwise.engine.kernels.reference import Kernels, RotaryTable, Rotations
from draftwise.engine.memory.kv import PagedKV

__all__ = ["CudaKernels"]


class CudaKernels(Kernels):
    """Launches: one an operation, 0 for `rotations`, two for `gated` if the product cannot do it itself."""

    def __init__(self, shape: ModelShape, rope: RotaryTable, eps: float, dtype: torch.dtype) -> None:
        super().__init__(shape, rope, eps, dtype)
        self._table_TD = rope.table()

    def embed(
        self,
        tokens_N: Tensor,
        embedding_VH: Table,
        weight_H: Tensor,
        total_NH: Tensor | None = None,
        *,
        factor: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Gather and norm in one launch."""
        assert isinstance(embedding_VH, Tensor)
        return code.embed(tokens_N, embedding_VH, weight_H, total_NH, self.eps, factor)

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
        """Gather, norm both and concatenate them in one launch."""
        assert isinstance(embedding_VH, Tensor)
        return code.embed_beside(
            tokens_N, embedding_VH, state_NH, norms, state_first=state_first, positions_N=positions_N, eps=self.eps
        )

    def add(self, x_NH: Tensor, delta_NH: Tensor) -> Tensor:
        """Add in a launch that follows its predecessor as closely as the others do."""
        return code.add(x_NH, delta_NH)

    def add_norm(
        self,
        x_NH: Tensor,
        delta_NH: Tensor | None,
        weight_H: Tensor,
        total_NH: Tensor | None = None,
        *,
        delta_weight_H: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add and norm in one launch."""
        return code.add_norm(x_NH, delta_NH, weight_H, total_NH, self.eps, delta_weight_H)

    def silu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        """Activate and multiply in one launch."""
        return code.silu_mul(gate_up_N2I)

    def gelu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        """Activate and multiply in one launch."""
        return code.silu_mul(gate_up_N2I, gelu=True)

    def gated(self, gate_up: Callable[[Tensor], Tensor], x_NX: Tensor, *, gelu: bool = False) -> Tensor:
        """Let the product do it where it can, while its result is in registers."""
        fused = None if gelu else getattr(gate_up, "gated", None)
        return super().gated(gate_up, x_NX, gelu=gelu) if fused is None else fused(x_NX)

    def route(self, logits_NE: Tensor, num_chosen: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
        """Choose in one launch."""
        return experts.route(logits_NE, num_chosen, normalize=normalize)

    def rotations(self, positions_N: Tensor) -> Rotations:
        """Return the table of all positions and the positions: whoever rotates looks them up."""
        return self._table_TD, positions_N

    def rotate_and_store(
        self,
        qkv_NSD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        rotations: Rotations,
        kv: PagedKV,
        layer: int,
        slots_N: Tensor,
    ) -> Tensor:
        """Norm, rotate and store in one launch; q stays where it was."""
        return code.rotate_and_store(
            qkv_NSD, norms, *rotations, kv.layers[layer], slots_N, num_kv_heads=self.shape.num_kv_heads, eps=self.eps
        )
