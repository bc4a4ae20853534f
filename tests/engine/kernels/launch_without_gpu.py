"""Launches kernels through a driver that only writes down what it is told; run as a program, for Triton without a GPU.

Prints for each launch whether `Kernel` told the driver the same as Triton itself.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

TOLD: list[Any] = []


class Launcher:
    """Stands for what Triton compiles to call the driver."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._types, self._dependent = list(source.signature.values()), metadata.launch_pdl

    def __call__(self, *args: Any) -> None:
        launch, values = args[:9], args[9:]
        assert len(values) == len(self._types)
        plain = [
            value.data_ptr() if isinstance(value, torch.Tensor) else value
            for value, kind in zip(values, self._types, strict=True)
            if kind != "constexpr"
        ]
        TOLD.append([*launch[:5], str(launch[5]), self._dependent, *plain])


class Driver:
    """A GPU like the H200, as far as Triton asks."""

    launcher_cls = Launcher
    utils = property(lambda self: self)

    def load_binary(self, _name: str, code: bytes, _shared: int, _device: int) -> tuple[int, ...]:
        return 0, hash(code), 32, 0, 1024

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 77

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


driver.set_active(Driver())
torch.cuda.current_device = lambda: 0
torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda *_: (9, 0)

import triton.language as tl  # noqa: E402 - the driver comes first

from draftwise.engine.kernels.cuda.kernel_launch import Kernel, launch_next, wait  # noqa: E402


def scale(x, y, bias, factor, stride, count, BLOCK: tl.constexpr, HOW: tl.constexpr, PDL: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    launch_next(PDL)
    wait(PDL)
    value = tl.load(x + columns * stride, mask=columns < count, other=0.0, eviction_policy=HOW) * factor
    if bias is not None:
        value += tl.load(bias + columns, mask=columns < count, other=0.0)
    tl.store(y + columns, value, mask=columns < count)


def launched(kernel: Kernel, args: tuple[Any, ...], constants: dict[str, Any]) -> Any:
    kernel((3, 2, 5)[: 1 + len(constants["HOW"]) % 3], *args, num_warps=2, **constants)
    return TOLD.pop()


def main() -> None:
    x = torch.zeros(64)
    kept, verdicts = Kernel(scale), []
    for bias in (None, x, x.bfloat16()):
        for source in (x, x[1:], x.half()):
            for stride in (1, 16, 2**33):
                for constants in ({"BLOCK": 32, "HOW": ""}, {"BLOCK": 64, "HOW": "evict_last", "num_stages": 4}):
                    args = (source, x, bias, 0.5, stride, 30)
                    expected = launched(Kernel(scale), args, constants)
                    verdicts += [launched(kept, args, constants) == expected for _ in range(2)]
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
