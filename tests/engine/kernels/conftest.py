"""Where the Triton kernels are tested: on DRAFTWISE_TEST_DEVICE, and on the CPU through Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
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
    with _memory_checked(interpreter):
        yield
    interpreter._patch_lang_tensor, interpreter._patch_lang = patch_tensor, patch_language


@contextmanager
def _memory_checked(interpreter: Any) -> Iterator[None]:
    """Fail where a kernel reads or writes beyond the tensors that it was given."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    take, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store
    begins, ends = np.zeros(0, np.uint64), np.zeros(0, np.uint64)

    def take_and_note(self: Any, args: Any, options: Any) -> Any:
        nonlocal begins, ends
        given = take(self, args, options)
        found = sorted(set(_memory((*given[0], *given[1].values()))))
        begins, ends = (np.array(each, np.uint64) for each in zip(*found, strict=True))
        return given

    def check(pointers: Any, mask: Any) -> None:
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)].astype(np.uint64)
        place = np.searchsorted(begins, used, side="right")
        inside = (place > 0) & (used < ends[np.maximum(place, 1) - 1])
        assert inside.all(), "a kernel looks beyond its tensors"

    def checked_load(self: Any, pointers: Any, mask: Any, *other: Any, **how: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *other, **how)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *other: Any, **how: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *other, **how)

    executor._init_args_hst, builder.create_masked_load = take_and_note, checked_load
    builder.create_masked_store = checked_store
    yield
    executor._init_args_hst, builder.create_masked_load, builder.create_masked_store = take, load, store


def _memory(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the storage of each tensor, also of those that a descriptor names."""
    for value in values:
        tensor = getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


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
