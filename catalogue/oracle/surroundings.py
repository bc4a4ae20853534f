"""What a bare source tree of vLLM lacks on a machine without GPUs: platform, compiled modules, looks at model classes.

vLLM's configuration code asks for capability, name, memory and number of the devices, and calls no kernel. Everything
that decides about a configuration is vLLM's own; only what it asks of hardware and compiled modules is answered here.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pickle
import subprocess
import sys
import types
from typing import Any

__all__ = ["prepare"]

KERNELS = (
    "_C",
    "_C_stable_libtorch",
    "_moe_C",
    "_moe_C_stable_libtorch",
    "cumem_allocator",
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
)
"""Compiled modules of the CUDA wheel that its Python imports."""

VISION = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")
"""Image processing that classes of multimodal models import."""

HUMMING = ("humming", "humming.config", "humming.dtypes", "humming.layer", "humming.schema", "humming.utils",
           "humming.utils.weight")  # fmt: skip
"""Kernel package that some releases import beside every quantization method."""

QUESTIONS = {
    "cutlass_scaled_mm_supports_fp8": "(int capability) -> bool",
    "cutlass_scaled_mm_supports_block_fp8": "(int capability) -> bool",
    "cutlass_scaled_mm_supports_fp4": "(int capability) -> bool",
    "cutlass_group_gemm_supported": "(int capability) -> bool",
}
"""Operators of `torch.ops._C` that answer a question about the device; on H200 each answer is yes but for fp4."""


def prepare(platform: str) -> None:
    """Make vLLM take this platform, whatever it would find; call before anything else of vLLM is imported."""
    allow_known_configs()
    from vllm import platforms

    if platform == "cpu":
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()
    else:
        pretend_gpus()
        from vllm.platforms.cuda import NonNvmlCudaPlatform

        platforms._current_platform = NonNvmlCudaPlatform()
        importlib.import_module("vllm.config")
        engine_config = sys.modules.get("vllm.config.vllm")
        if hasattr(engine_config, "HAS_TRITON"):
            engine_config.HAS_TRITON = True
    fill_gaps()
    look_at_models_elsewhere()


def pretend_gpus() -> None:
    """Let torch for CPU say that there are eight H200, and let vLLM's compiled modules be empty ones."""
    import torch

    about = types.SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150_754_820_096, multi_processor_count=132
    )
    torch.cuda._is_compiled = lambda: True
    torch.cuda._device_count_nvml = lambda: 8
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (about.major, about.minor)
    torch.cuda.get_device_name = lambda *_: about.name
    torch.cuda.get_device_properties = lambda *_: about
    torch.accelerator.device_count = lambda: 8
    torch._C._cuda_getCurrentRawStream = lambda _: 0
    torch.version.cuda = "13.0"
    for module in KERNELS:
        sys.modules[f"vllm.{module}"] = types.ModuleType(f"vllm.{module}")
    for question, signature in QUESTIONS.items():
        torch.library.define(f"_C::{question}", signature)
        torch.library.impl(
            f"_C::{question}", "CompositeExplicitAutograd", lambda _, answer="fp4" not in question: answer
        )


def look_at_models_elsewhere() -> None:
    """Answer "what can this model class do" from a second process on the CPU platform, where every model class imports.

    vLLM itself asks a process of its own for every class; one that stays saves ten seconds a class.
    """
    from vllm.model_executor.models import registry

    inspector = Inspector()
    registry._LazyRegisteredModel.inspect_model_cls = lambda model: inspector.ask(model.module_name, model.class_name)


class Inspector:
    """The second process: reads `MODULE CLASS` lines and answers with vLLM's own `_ModelInfo` of the class."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, module: str, name: str) -> Any:
        if self._process is None:
            path = os.pathsep.join(entry for entry in sys.path if entry)
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        question = f"{module} {name}"
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            about, _, content = answer.strip().rpartition(" ")
            if about == question:  # the answer to a question that was given up may come before
                break
        else:
            self._process = None
            raise ImportError(f"{module} takes the process with it")
        found = pickle.loads(bytes.fromhex(content))
        if isinstance(found, str):
            raise ImportError(found)
        return found


def inspect_models() -> None:
    """Be the second process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    allow_known_configs()
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    fill_gaps()
    from vllm.model_executor.models.registry import _ModelInfo

    for line in sys.stdin:
        module, name = line.split()
        try:
            found: Any = _ModelInfo.from_model_cls(getattr(importlib.import_module(module), name))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            print("not inspected:", module, name, found, file=sys.stderr)
        answers.write(f"{module} {name} {pickle.dumps(found).hex()}\n")
        answers.flush()


def allow_known_configs() -> None:
    """Let old releases register model types that transformers has come to know by itself."""
    from transformers import AutoConfig

    register = AutoConfig.register
    AutoConfig.register = lambda model_type, config, **_: register(model_type, config, exist_ok=True)


def fill_gaps() -> None:
    """Add the names that old releases import and that torch, without a GPU or Triton, does not have."""
    import torch
    from transformers.utils import is_torchvision_available
    from vllm.triton_utils import tl

    for name in ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_vnni_supported", "_is_amx_tile_supported"):
        if not hasattr(torch._C._cpu, name):
            setattr(torch._C._cpu, name, lambda: False)
    for name in ("exp", "exp2", "log", "log2"):
        if not hasattr(tl, name):
            setattr(tl, name, None)
    if importlib.util.find_spec("vllm.utils.humming") is None:  # later releases look whether it is there
        sys.modules.update({name: Anything(name) for name in HUMMING})
    is_torchvision_available()  # remembers its answer, so that transformers itself does without
    sys.modules.update({name: Anything(name) for name in VISION})


class Anything(types.ModuleType):
    """A module of image processing, imported and never called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


if __name__ == "__main__":
    inspect_models()
