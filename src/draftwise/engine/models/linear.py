"""Matrix products with a model's weights, in the layout that is fastest for the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Linear", "make_linear"]

Linear = Callable[[Tensor], Tensor]
"""[R, in] -> [R, out]."""


def make_linear(weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> Linear:
    """Return x -> x @ weight.T + bias for a weight [out, in].

    On the CPU the weight is copied once into oneDNN's blocked layout, where a row's result has the same bits for
    any number of rows in float32, and for up to 32 in bfloat16; torch's plain product, which copies bfloat16 weights
    in every call, takes half as long again. `pack=False` prevents the copy.
    """
    if not pack or not _can_pack(weight):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: product(x, packed, bias, "none", [], "")


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
