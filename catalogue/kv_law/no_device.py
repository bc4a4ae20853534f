"""Builds vLLM's model classes without a device: on torch's meta device, as one rank of a pretended process group.

Modules get shapes and no memory; compiled kernels, streams and Triton are names that nobody calls.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

__all__ = ["be_rank", "build", "prepare"]

KERNELS = ("_C", "_moe_C", "_C_cache_ops", "_C_cuda_utils", "_C_custom_ar", "_rocm_C", "_qutlass_C", "_flashmla_C")
"""Namespaces of `torch.ops` that vLLM's compiled modules fill."""
UNUSED = ("cuda", "cutlass", "deep_gemm", "diskcache", "timm", "quack", "tilelang")
"""Packages of kernels and images that model classes import and no constructor of a decoder needs."""
COMPILED = ("_flashmla_C", "_flashmla_extension_C", "_qutlass_C", "fmha_sm100", "_deepgemm_C")
"""Further compiled modules of the CUDA wheel."""
COMPUTED = {torch.linspace, torch.tensor}
"""Functions whose results constructors read again: they stay on the CPU."""


class Empty(type):
    """Lets a class be asked for any member."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __call__(cls, *args: Any, **options: Any) -> Any:
        only = args[0] if len(args) == 1 and not options else None
        return only if isinstance(only, types.FunctionType) else super().__call__(*args, **options)


class Nothing(metaclass=Empty):
    """Stands for a stream, an event or a kernel: can be called, entered and asked for anything."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return Nothing()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Absent(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes packages that are not installed, and whatever lies in them, out of nothing."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Config:
    """A configuration of a Triton kernel: some modules sort through theirs while they are imported."""

    def __init__(self, kwargs: Any = None, num_warps: int = 4, num_stages: int = 2, **_: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages


class OnMeta(TorchFunctionMode):
    """Makes every tensor on the meta device, whatever device the code names."""

    made = _device_constructors() - COMPUTED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.made or func in COMPUTED:
            kwargs["device"] = "cpu" if func in COMPUTED else "meta"
            kwargs.pop("pin_memory", None)
        elif kwargs.get("device") is not None and func is not torch.Tensor.to:
            kwargs["device"] = "meta"
        elif func in (torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.cpu):
            return args[0]
        elif func is torch.Tensor.to:
            dtype = next((each for each in (*args[1:], *kwargs.values()) if isinstance(each, torch.dtype)), None)
            return args[0] if dtype is None else args[0].type(dtype)
        return func(*args, **kwargs)


def prepare() -> None:
    """Fill what constructors touch and no constructor uses; call after `surroundings.prepare()`."""
    from vllm import triton_utils

    triton_utils.triton.Config = Config
    importlib.import_module("xgrammar")  # looks for a package `cuda` of its own
    sys.meta_path.append(AbsentFinder())
    for name in COMPILED:
        sys.modules.setdefault(f"vllm.{name}", Absent(f"vllm.{name}"))
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_stream = lambda *_: Nothing()
    for module in ("vllm._custom_ops", "vllm._aiter_ops"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    from torch._ops import _OpNamespace

    known = _OpNamespace.__getattr__

    def find(namespace: Any, name: str) -> Any:
        try:
            return known(namespace, name)
        except AttributeError:
            if name.startswith("__") or namespace.name not in KERNELS:
                raise
            return Nothing()

    _OpNamespace.__getattr__ = find
    from vllm.distributed.parallel_state import GroupCoordinator

    coordinate = GroupCoordinator.__init__

    def coordinate_alone(group: Any, *args: Any, **options: Any) -> None:
        options |= {"use_device_communicator": False, "use_message_queue_broadcaster": False}
        coordinate(group, *args[:3], **options)

    GroupCoordinator.__init__ = coordinate_alone
    make_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: make_group(ranks, backend="fake")


def be_rank(tp: int, pp: int, stage: int) -> None:
    """Be the first rank of a pipeline stage in a process group of `tp` x `pp` that nobody else is in."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend="fake", rank=stage * tp, world_size=tp * pp, store=FakeStore())
    parallel_state.init_distributed_environment(
        world_size=tp * pp, rank=stage * tp, local_rank=0, backend="fake", distributed_init_method="env://"
    )
    parallel_state.ensure_model_parallel_initialized(tp, pp)


def build(config: Any, model_config: Any, *, is_draft: bool = False) -> Any:
    """Construct and return a model, which registers its layers in the config's forward context."""
    from contextlib import ExitStack

    from vllm.compilation import backends
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils import torch_utils

    with ExitStack() as stack:
        if is_draft:
            stack.enter_context(backends.set_model_tag("eagle_head"))
        stack.enter_context(torch_utils.set_default_torch_dtype(model_config.dtype))
        stack.enter_context(torch.device("meta"))
        stack.enter_context(OnMeta())
        return initialize_model(config, model_config=model_config)
