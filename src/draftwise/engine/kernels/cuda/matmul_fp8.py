"""Products of many rows with one-byte weights: the activations are quantized too, each row by its own largest value.

Shape letters: R rows, K columns of a weight, O outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.kernel_launch import interpreted, launch_next, pdl, wait

LARGEST = 448.0
"""The largest value of float8_e4m3fn."""


def linear_fp8(x_RK: Tensor, weight_OK: Tensor, scale_O: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return x @ weight.T * scale + bias of float8_e4m3fn weights, [R, O] in x's type.

    Where the GPU cannot multiply such values, or not of this shape, the weights are widened first.
    """
    num_out, num_in = weight_OK.shape
    if not _can_multiply(x_RK) or num_in % 16 or num_out % 16:
        weight_OK = (weight_OK.to(torch.float32) * scale_O.unsqueeze(1)).to(x_RK.dtype)
        return F.linear(x_RK, weight_OK, bias_O)
    quantized_RK, scale_R = quantize_rows(x_RK)
    return torch._scaled_mm(
        quantized_RK,
        weight_OK.t(),
        scale_a=scale_R.unsqueeze(1),
        scale_b=scale_O.unsqueeze(0),
        bias=bias_O,
        out_dtype=x_RK.dtype,
        use_fast_accum=True,
    )


def _can_multiply(x_RK: Tensor) -> bool:
    """Say whether there is a row-wise scaled product: compute capability 9, bfloat16 results."""
    return x_RK.is_cuda and x_RK.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x_RK.device) >= (9, 0)


def quantize_rows(x_RK: Tensor) -> tuple[Tensor, Tensor]:
    """Return x as float8_e4m3fn and the float32 scale of each row, its largest absolute value / 448."""
    num_rows, width = x_RK.shape
    quantized_RK = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=x_RK.device)
    scale_R = torch.empty(num_rows, dtype=torch.float32, device=x_RK.device)
    block = triton.next_power_of_2(width)
    _quantize_kernel[(num_rows,)](
        x_RK,
        x_RK.stride(0),
        quantized_RK,
        scale_R,
        width,
        BLOCK_K=block,
        LARGEST=LARGEST,
        PDL=pdl(),
        num_warps=1 if interpreted() else min(16, max(1, block // 512)),
        launch_pdl=pdl(),
    )
    return quantized_RK, scale_R


@triton.jit
def _quantize_kernel(
    x_ptr, x_stride, y_ptr, scale_ptr, width, BLOCK_K: tl.constexpr, LARGEST: tl.constexpr, PDL: tl.constexpr
):
    launch_next(PDL)
    wait(PDL)
    row, column_K = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    x_K = tl.load(x_ptr + row * x_stride + column_K, mask=column_K < width, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x_K), axis=0)
    scale = tl.where(largest > 0.0, largest / LARGEST, 1.0)
    y_K = tl.minimum(tl.maximum(x_K / scale, -LARGEST), LARGEST)
    tl.store(y_ptr + row * width + column_K, y_K.to(y_ptr.dtype.element_ty), mask=column_K < width)
    tl.store(scale_ptr + row, scale)
