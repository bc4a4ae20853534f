"""Where the Triton kernels are tested: on DRAFTWISE_TEST_DEVICE, and on the CPU through Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

_DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")
if _DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a test live."""
    return torch.device(_DEVICE)


@pytest.fixture(autouse=True)
def _more_threads_than_one(request: pytest.FixtureRequest) -> Iterator[None]:
    """CPU kernels split their work among threads; a worker of a parallel run has one otherwise."""
    if request.path.name.startswith("test_cuda"):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
