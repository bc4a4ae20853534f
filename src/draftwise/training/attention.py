"""Attention of a drafter that is unrolled on its own draft tokens, without a mask in memory.

Shape letters: B sequences, A attention heads, R rows of a sequence, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from draftwise.training.fusion import choose_compiled

__all__ = ["attend_chain"]

_aten = torch.ops.aten


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
        keys_BARD: keys of the steps 0..j, with a head for each query head.
        values_BARD: their values.
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
