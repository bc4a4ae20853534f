"""Operations of a decoder layer that have a faster form on some devices."""

from __future__ import annotations

import torch

from draftwise.core import ModelShape
from draftwise.engine.kernels.reference import Kernels

__all__ = ["Kernels", "make_kernels"]


def make_kernels(shape: ModelShape, *, eps: float, dtype: torch.dtype, device: torch.device) -> Kernels:
    """Return the fastest kernels there are for a device and dtype."""
    if device.type == "cpu" and dtype in (torch.bfloat16, torch.float32):
        from draftwise.engine.kernels.cpu import CpuKernels  # numba is slow to import and useless elsewhere

        return CpuKernels(shape, eps, dtype)
    return Kernels(shape, eps, dtype)
