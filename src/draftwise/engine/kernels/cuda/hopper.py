"""Whether there is a GPU of Hopper's kind, whose copy engine and matrix instruction some kernels are written for."""

from __future__ import annotations

import functools

import torch

from draftwise.engine.kernels.cuda.launch import interpreted

__all__ = ["has_copy_engine"]


@functools.cache
def has_copy_engine() -> bool:
    """Say whether kernels for Hopper can be used: a GPU of its kind, and a Triton with the language they are in."""
    if interpreted() or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return False
    try:
        from draftwise.engine.kernels.cuda import attention_hopper, matmul_hopper  # noqa: F401
    except (ImportError, AttributeError, TypeError):  # not there, or an earlier form of it
        return False
    return True
