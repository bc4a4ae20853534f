"""Where the Triton kernels are tested: on DRAFTWISE_TEST_DEVICE, and on the CPU through Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

_DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")
if _DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a test live."""
    return torch.device(_DEVICE)


@pytest.fixture(autouse=True, scope="session")
def _mended_interpreter() -> Iterator[None]:
    """Triton 3.6's interpreter with an error less, and without what takes a third of its time."""
    if importlib.util.find_spec("triton") is None or _DEVICE != "cpu":
        yield
        return
    from triton.runtime import interpreter

    patch_tensor, patch_language = interpreter._patch_lang_tensor, interpreter._patch_lang
    launch: Any = None
    modules: set[int] = set()

    def patch_index_too(tensor: Any, scope: Any) -> None:
        """From numpy 2.4 on an array of one element is no index any more; the interpreter takes it for one."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def patch_once(function: Any) -> Any:
        """Every call of one jitted function by another patches the language again, for their modules."""
        nonlocal launch
        if launch is None or not launch._changes:  # the one before is over, and its patches are undone
            modules.clear()
        elif id(function.__globals__) in modules:
            return None
        scope = patch_language(function)
        launch = launch if modules else scope
        modules.add(id(function.__globals__))
        return scope

    interpreter._patch_lang_tensor, interpreter._patch_lang = patch_index_too, patch_once
    yield
    interpreter._patch_lang_tensor, interpreter._patch_lang = patch_tensor, patch_language


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
