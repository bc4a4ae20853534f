"""Trainable parts of drafters with their checkpoint names, and the attention of an unrolled drafter.

Shape letters: B sequences, R rows of a sequence, H hidden size, X width of an attention's input, A query heads,
G key-value heads, D head dimension, I intermediate size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from draftwise.core import ModelShape

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one pass over a layer, [B, A, R, D] each, with one head per query head."""
Rotations = tuple[Tensor, Tensor]
"""Cosine and sine of the rows' positions, float32 [R, D / 2] or [B, R, D / 2] each."""
_aten = torch.ops.aten
_F = TypeVar("_F", bound=Callable[..., Any])


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
    """Return x in the network's compute type: autocast's, or that of its parameters."""
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
        """Return keys and values of rows without queries."""
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
    """A Llama decoder layer, with tensor names as in Hugging Face checkpoints.

    Args:
        num_in: width of the attention's input; None: the hidden size.
        input_norm: whether it norms its input; False if the caller does (EAGLE heads).
        qkv_bias: whether q, k and v have biases (Qwen2).
        qk_norm: whether heads of q and k are normed (Qwen3).
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
        """Compile everything except attention. All layers, and all steps of a chain, share the graphs."""
        self.compiled = True
        self.self_attn.project = torch.compile(self.self_attn.project, dynamic=False)  # type: ignore[method-assign]
        self.finish = torch.compile(self.finish, dynamic=False)  # type: ignore[method-assign]

    def forward(
        self, x_BRH: Tensor, normed_BRX: Tensor, rotations: Rotations, past: Sequence[KeyValue] = ()
    ) -> tuple[Tensor, KeyValue]:
        """Run rows of one unrolled step (see `attend_chain`).

        Args:
            x_BRH: incoming residual stream.
            normed_BRX: input of attention.
            past: keys and values of earlier steps.

        Returns:
            the outgoing residual stream, and the rows' keys and values.
        """
        q_BARD, new = self.self_attn.project(normed_BRX, rotations)
        keys, values = zip(*past, new, strict=True)
        return self.finish(x_BRH, attend_chain(q_BARD, keys, values, fuse=self.compiled)), new

    def finish(self, x_BRH: Tensor, read_BARD: Tensor) -> Tensor:
        """Return the outgoing residual stream, given the output of attention."""
        x_BRH = x_BRH + self.self_attn.o_proj(read_BARD.transpose(1, 2).flatten(-2))
        return x_BRH + self.mlp(self.post_attention_layernorm(x_BRH))


def attend_chain(
    q_BARD: Tensor, keys_BARD: Sequence[Tensor], values_BARD: Sequence[Tensor], *, fuse: bool = False
) -> Tensor:
    """Return the attention output of the rows of an unrolled step, [B, A, R, D].

    Row r of step j continues a draft that begins after row r of step 0. So it attends to the rows 0..r of step 0, which
    are confirmed when that draft is made, and to row r of steps 1..j: its own draft tokens, and no other draft's.
    This is the mask of training-time test (EAGLE-3, arXiv 2503.01840) and of HASS (arXiv 2408.15766).

    The causal part runs in the flash kernel and is merged with the few other scores by their log-sum-exps; its
    backward pass is the flash kernel's own, given the merged result (as in Ring Attention, arXiv 2310.01889).

    Args:
        q_BARD: queries of step j.
        keys_BARD: keys of steps 0..j, one head per query head.
        values_BARD: values of steps 0..j.
        fuse: whether to compile the operations around the kernel.
    """
    if len(keys_BARD) == 1:
        return F.scaled_dot_product_attention(q_BARD, keys_BARD[0], values_BARD[0], is_causal=True)
    if q_BARD.is_cuda and q_BARD.dtype not in (torch.bfloat16, torch.float16):
        return _attend_densely(q_BARD, keys_BARD, values_BARD)
    merged: Tensor = _ChainAttention.apply(fuse, q_BARD, *keys_BARD, *values_BARD)
    return merged


def _attend_densely(q_BARD: Tensor, keys_BARD: Sequence[Tensor], values_BARD: Sequence[Tensor]) -> Tensor:
    """Do the same with a mask, for dtypes that the flash kernel lacks."""
    rows = q_BARD.shape[2]
    causal_RR = torch.ones(rows, rows, dtype=torch.bool, device=q_BARD.device).tril()
    own_RR = torch.eye(rows, dtype=torch.bool, device=q_BARD.device)
    mask_RS = torch.cat((causal_RR, *[own_RR] * (len(keys_BARD) - 1)), dim=1)
    keys_BASD, values_BASD = torch.cat(tuple(keys_BARD), dim=2), torch.cat(tuple(values_BARD), dim=2)
    return F.scaled_dot_product_attention(q_BARD, keys_BASD, values_BASD, attn_mask=mask_RS)


class _ChainAttention(torch.autograd.Function):
    """Softmax over a causal part and a few single keys."""

    @staticmethod
    def forward(ctx: Any, fuse: bool, q_BARD: Tensor, *keys_values: Tensor) -> Tensor:
        steps = len(keys_values) // 2
        keys, values = keys_values[:steps], keys_values[steps:]
        causal_BARD, sums_BAR, ctx.kernel_state = _flash_forward(q_BARD, keys[0], values[0])
        merged_BARD, sums_BAR = choose_compiled(_merge, fuse=fuse)(q_BARD, causal_BARD, sums_BAR, keys[1:], values[1:])
        ctx.fuse = fuse
        ctx.save_for_backward(q_BARD, merged_BARD, sums_BAR, *keys_values)
        return merged_BARD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BARD: Tensor) -> tuple[Tensor | None, ...]:
        q_BARD, merged_BARD, sums_BAR, *keys_values = ctx.saved_tensors
        steps = len(keys_values) // 2
        keys, values = keys_values[:steps], keys_values[steps:]
        # Given the merged output and sums, the kernel's probabilities are those of the whole softmax, and so are the
        # gradients of its part.
        grad_q, grad_key, grad_value = _flash_backward(
            grad_BARD, q_BARD, keys[0], values[0], merged_BARD, sums_BAR, ctx.kernel_state
        )
        grad_q, own = choose_compiled(_own_gradients, fuse=ctx.fuse)(
            grad_BARD, grad_q, q_BARD, merged_BARD, sums_BAR, keys[1:], values[1:]
        )
        return (None, grad_q, grad_key, *own[: steps - 1], grad_value, *own[steps - 1 :])


def _merge(
    q_BARD: Tensor, causal_BARD: Tensor, sums_BAR: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return attention over the causal part and the rows' own keys, and its log-sum-exps."""
    scores_BARJ = torch.stack([_score(q_BARD, key_BARD) for key_BARD in keys], dim=-1)
    merged_BAR = torch.logaddexp(sums_BAR, scores_BARJ.logsumexp(dim=-1))
    out_BARD = causal_BARD * (sums_BAR - merged_BAR).exp().unsqueeze(-1)
    for score_BAR, value_BARD in zip(scores_BARJ.unbind(-1), values, strict=True):
        out_BARD = out_BARD + value_BARD * (score_BAR - merged_BAR).exp().unsqueeze(-1)
    return out_BARD.to(q_BARD.dtype), merged_BAR


def _own_gradients(
    grad_BARD: Tensor,
    grad_q: Tensor,
    q_BARD: Tensor,
    merged_BARD: Tensor,
    sums_BAR: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of the queries, and those of the rows' own keys, then values."""
    scale = 1 / math.sqrt(q_BARD.shape[-1])
    mean_BAR = (grad_BARD * merged_BARD).float().sum(-1)
    grad_q32, grad_keys, grad_values = grad_q.float(), [], []
    for key_BARD, value_BARD in zip(keys, values, strict=True):
        share_BAR = (_score(q_BARD, key_BARD) - sums_BAR).exp()
        slope_BAR = share_BAR * ((grad_BARD * value_BARD).float().sum(-1) - mean_BAR) * scale
        grad_q32 = grad_q32 + slope_BAR.unsqueeze(-1) * key_BARD
        grad_keys.append((slope_BAR.unsqueeze(-1) * q_BARD).to(key_BARD.dtype))
        grad_values.append((share_BAR.unsqueeze(-1) * grad_BARD).to(value_BARD.dtype))
    return grad_q32.to(grad_q.dtype), grad_keys + grad_values


def _score(q_BARD: Tensor, key_BARD: Tensor) -> Tensor:
    return (q_BARD.float() * key_BARD.float()).sum(-1) / math.sqrt(q_BARD.shape[-1])


def _flash_forward(q_BARD: Tensor, key_BARD: Tensor, value_BARD: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Return causal attention, its log-sum-exps, and what the kernel's backward pass needs."""
    if not q_BARD.is_cuda:
        out_BARD, sums_BAR = _aten._scaled_dot_product_flash_attention_for_cpu(q_BARD, key_BARD, value_BARD, 0.0, True)
        return out_BARD, sums_BAR, ()
    out_BARD, sums_BAR, *state, _ = _aten._scaled_dot_product_flash_attention(q_BARD, key_BARD, value_BARD, 0.0, True)
    return out_BARD, sums_BAR, tuple(state)


def _flash_backward(
    grad_BARD: Tensor, q: Tensor, key: Tensor, value: Tensor, out: Tensor, sums_BAR: Tensor, state: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    if not q.is_cuda:
        grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_BARD, q, key, value, out, sums_BAR, 0.0, True
        )
    else:
        starts_q, starts_k, longest_q, longest_k, seed, offset = state
        grads = _aten._scaled_dot_product_flash_attention_backward(
            grad_BARD, q, key, value, out, sums_BAR.contiguous(),
            starts_q, starts_k, longest_q, longest_k, 0.0, True, seed, offset,
        )  # fmt: skip
    return tuple(grads)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def choose_compiled(function: _F, *, fuse: bool) -> _F:
    """Return the function, or with `fuse` its compiled form, with a few kernels instead of one per operation."""
    return _compiled(function) if fuse else function  # type: ignore[return-value]
