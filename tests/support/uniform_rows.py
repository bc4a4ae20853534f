"""Stands in for a GPU on the CPU: uniform rows whose lengths the host may not ask for, and attention over them.

Shape letters: B sequences, W rows of each, A query heads, D head dimension, T tokens of the page table.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftwise.engine.attention import attend
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import causal_lm

aten = torch.ops.aten
READS_THE_DEVICE = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten.item}
COMES_FROM_THE_HOST = {aten.lift_fresh, aten.lift_fresh_copy}


class NoHostRead(TorchDispatchMode):
    """Refuses operators that make the host wait for a value or a shape from the device, and tensors of host values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in READS_THE_DEVICE, f"{func} reads the device"
        assert func.overloadpacket not in COMES_FROM_THE_HOST, "a tensor is made of host values"
        if func.overloadpacket is aten.index:
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "a mask has a dynamic shape"
        return func(*args, **(kwargs or {}))


def use_uniform_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention over uniform rows read what is there on a GPU."""
    monkeypatch.setattr(causal_lm, "attend", _attend)


def _attend(
    q_NAD: Tensor,
    kv: PagedKV,
    layer: int,
    plan: AttentionPlan,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    spans = plan.spans
    if spans.host is not None:  # a prompt
        return attend(q_NAD, kv, layer, plan, scale=scale, window=window)
    assert (scale, window) == (None, None), "tiny models have neither"
    k_BGTD, v_BGTD = kv.gather(layer, plan.page_table_BP.long(), q_NAD.dtype)
    last_BW = spans.starts_B.unsqueeze(1) + torch.arange(spans.width)
    if not plan.causal:
        last_BW = (spans.starts_B + spans.lengths_B - 1).unsqueeze(1).expand(-1, spans.width)
    seen_B1WT = (torch.arange(k_BGTD.shape[2]) <= last_BW.clamp(min=0).unsqueeze(-1)).unsqueeze(1)
    q_BAWD = spans.unpack(q_NAD).transpose(1, 2)
    out_BAWD = F.scaled_dot_product_attention(q_BAWD, k_BGTD, v_BGTD, attn_mask=seen_B1WT, enable_gqa=True)
    return out_BAWD.transpose(1, 2).flatten(2).flatten(0, 1)
