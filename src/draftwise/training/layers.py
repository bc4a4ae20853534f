"""Trainable parts of drafters: norms, decoder layers and rotations, under the names that checkpoints use.

Shape letters: B sequences, R rows of a sequence, H hidden size, X width of an attention's input, A query heads,
G key-value heads, D head dimension, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.core import ModelShape
from draftwise.training.attention import attend_chain

__all__ = ["DecoderLayer", "KeyValue", "Norm", "Rotations", "make_linear", "to_compute_dtype"]

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one pass over a layer, [B, A, R, D] each: a head for each query head."""
Rotations = tuple[Tensor, Tensor]
"""Cosine and sine of the rows' positions, float32 [R, D / 2] or [B, R, D / 2] each."""


class Norm(nn.Module):
    """Root mean square norm (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x normed over its last dimension, in x's type."""
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale * self.weight).to(x.dtype)


def to_compute_dtype(x: Tensor, network: nn.Module) -> Tensor:
    """Return x in the dtype of the network's computations: that of autocast, or of its parameters."""
    if torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x.to(next(network.parameters()).dtype)


def make_linear(num_in: int, num_out: int, *, bias: bool = False) -> nn.Linear:
    """Return a linear layer, initialized so that outputs are about as large as inputs."""
    product = nn.Linear(num_in, num_out, bias=bias)
    nn.init.normal_(product.weight, std=num_in**-0.5)
    if bias:
        nn.init.zeros_(product.bias)
    return product


class _Attention(nn.Module):
    """Projections of one attention, in the shapes of Hugging Face checkpoints."""

    def __init__(self, shape: ModelShape, eps: float, num_in: int, *, qkv_bias: bool, qk_norm: bool) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = make_linear(num_in, wide, bias=qkv_bias)
        self.k_proj = make_linear(num_in, narrow, bias=qkv_bias)
        self.v_proj = make_linear(num_in, narrow, bias=qkv_bias)
        self.o_proj = make_linear(wide, shape.hidden_size)
        self.q_norm = Norm(shape.head_dim, eps) if qk_norm else nn.Identity()
        self.k_norm = Norm(shape.head_dim, eps) if qk_norm else nn.Identity()

    def project(self, x_BRX: Tensor, rotations: Rotations) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values."""
        q, k, v = self.q_proj, self.k_proj, self.v_proj
        sizes = [part.out_features for part in (q, k, v)]
        biases = None if q.bias is None else torch.cat((q.bias, k.bias, v.bias))
        fused = F.linear(x_BRX, torch.cat((q.weight, k.weight, v.weight)), biases)
        q_BRA, k_BRG, v_BRG = fused.split(sizes, dim=-1)
        return self._rotate(q_BRA, self.q_norm, rotations), self._expand(k_BRG, v_BRG, rotations)

    def project_context(self, x_BRH: Tensor, rotations: Rotations) -> KeyValue:
        """Return keys and values of rows that have no queries."""
        k, v = self.k_proj, self.v_proj
        fused = F.linear(x_BRH, torch.cat((k.weight, v.weight)))
        k_BRG, v_BRG = fused.split([k.out_features, v.out_features], dim=-1)
        return self._expand(k_BRG, v_BRG, rotations)

    def _expand(self, k_BRG: Tensor, v_BRG: Tensor, rotations: Rotations) -> KeyValue:
        k_BGRD = self._rotate(k_BRG, self.k_norm, rotations)
        v_BGRD = v_BRG.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
        copies = self.shape.num_heads // self.shape.num_kv_heads
        return k_BGRD.repeat_interleave(copies, dim=1), v_BGRD.repeat_interleave(copies, dim=1)

    def _rotate(self, x_BRF: Tensor, norm: nn.Module, rotations: Rotations) -> Tensor:
        """Return [B, heads, R, D], normed and rotated: the first half of each head against the second."""
        cos, sin = (part.unsqueeze(-2) for part in rotations)
        left, right = norm(x_BRF.unflatten(-1, (-1, self.shape.head_dim))).float().chunk(2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(x_BRF.dtype).transpose(1, 2)


class _Mlp(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = make_linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = make_linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = make_linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x_BRH: Tensor) -> Tensor:
        fused = F.linear(x_BRH, torch.cat((self.gate_proj.weight, self.up_proj.weight)))
        gate_BRI, up_BRI = fused.chunk(2, dim=-1)
        return self.down_proj(F.silu(gate_BRI) * up_BRI)


class DecoderLayer(nn.Module):
    """A layer of the Llama kind; its tensors are named as in Hugging Face checkpoints.

    Args:
        shape: heads and widths.
        eps: of its norms.
        num_in: width of the attention's input; None: the hidden size.
        input_norm: whether it norms its input; False if the caller does (EAGLE heads).
        qkv_bias: biases of q, k and v (Qwen2).
        qk_norm: norms of the heads of q and k (Qwen3).
    """

    def __init__(
        self,
        shape: ModelShape,
        eps: float,
        *,
        num_in: int | None = None,
        input_norm: bool = True,
        qkv_bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, eps) if input_norm else nn.Identity()
        self.self_attn = _Attention(shape, eps, num_in or shape.hidden_size, qkv_bias=qkv_bias, qk_norm=qk_norm)
        self.post_attention_layernorm = Norm(shape.hidden_size, eps)
        self.mlp = _Mlp(shape)
        self.compiled = False

    def compile_parts(self) -> None:
        """Compile everything but attention; all layers, and all steps of a chain, share the graphs."""
        self.compiled = True
        self.self_attn.project = torch.compile(self.self_attn.project, dynamic=False)  # type: ignore[method-assign]
        self.finish = torch.compile(self.finish, dynamic=False)  # type: ignore[method-assign]

    def forward(
        self, x_BRH: Tensor, normed_BRX: Tensor, rotations: Rotations, past: Sequence[KeyValue] = ()
    ) -> tuple[Tensor, KeyValue]:
        """Run rows of one unrolled step (see `attend_chain`).

        Args:
            x_BRH: the residual stream that enters.
            normed_BRX: the input of attention.
            rotations: of the rows' positions.
            past: keys and values of the steps before.

        Returns:
            the residual stream that leaves, and the rows' keys and values.
        """
        q_BARD, new = self.self_attn.project(normed_BRX, rotations)
        keys, values = zip(*past, new, strict=True)
        return self.finish(x_BRH, attend_chain(q_BARD, keys, values, fuse=self.compiled)), new

    def finish(self, x_BRH: Tensor, read_BARD: Tensor) -> Tensor:
        """Return the residual stream that leaves, given the output of attention."""
        x_BRH = x_BRH + self.self_attn.o_proj(read_BARD.transpose(1, 2).flatten(-2))
        return x_BRH + self.mlp(self.post_attention_layernorm(x_BRH))
