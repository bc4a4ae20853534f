"""Where the Triton kernels are tested: on DRAFTWISE_TEST_DEVICE, and on the CPU through Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

_DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")
if _DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a test live."""
    return torch.device(_DEVICE)
