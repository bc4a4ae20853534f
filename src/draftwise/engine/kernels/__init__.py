"""Selects fast implementations of a decoder layer's operations by device."""

from __future__ import annotations

import importlib.util

import torch

from draftwise.core import ModelShape
from draftwise.engine.kernels.reference import Kernels, RotaryTable, Rotations

__all__ = ["Kernels", "RotaryTable", "Rotations", "make_kernels"]


def make_kernels(
    shape: ModelShape, rope: RotaryTable, *, eps: float, dtype: torch.dtype, device: torch.device | str
) -> Kernels:
    """Return the fastest kernels available for a device and dtype."""
    device = torch.device(device)
    if device.type == "cpu" and dtype in (torch.bfloat16, torch.float32):
        from draftwise.engine.kernels.cpu import CpuKernels  # numba is slow to import and useless elsewhere

        return CpuKernels(shape, rope, eps, dtype)
    if device.type == "cuda" and dtype != torch.float64 and importlib.util.find_spec("triton"):
        from draftwise.engine.kernels.cuda import CudaKernels  # Triton exists for few platforms

        return CudaKernels(shape, rope, eps, dtype)
    return Kernels(shape, rope, eps, dtype)
