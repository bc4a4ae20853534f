"""Products of few rows with a model's weights at the speed of the memory; cuBLAS where there are many rows.

Shape letters: R rows, K columns of a weight, O outputs, I outputs of a gated pair.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftwise.engine.kernels.cuda.kernel_launch import interpreted, pdl
from draftwise.engine.kernels.cuda.layer import silu_mul
from draftwise.engine.kernels.cuda.matmul_code import gated_kernel, matmul_kernel
from draftwise.engine.kernels.cuda.matmul_configs import Config, MatmulDevice, choose, padded
from draftwise.engine.kernels.cuda.matmul_fp8 import linear_fp8, quantize_rows

_TILES = ((544, 1), (1024, 32), (1 << 62, 256))
"""(limit, rows): up to `limit` rows, cuBLAS's kernels are the same for all numbers that fill as many tiles and are
multiples of the same power of two up to `_ALIGNED`. A last layer may compute any number of rows of up to 512 drafts and
a few prompts."""
_ALIGNED = 8
_PREFETCHED = 256
"""Columns of each part of a row of weights that a kernel which cannot start early asks into the L2."""


def matmul(
    x_RK: Tensor,
    weight_OK: Tensor,
    bias_O: Tensor | None = None,
    *,
    scale_O: Tensor | None = None,
    in_parts: bool = False,
) -> Tensor:
    """Return x @ weight.T * scale + bias, [R, O]; a row has the same bits among up to 8 rows.

    Args:
        weight_OK: the same type, or float8_e4m3fn with a scale.
        bias_O: the type of x.
        scale_O: float32; None: 1.
        in_parts: whether the result may be float32 [parts, R, O], whose sum is meant, if that is faster.
    """
    config = find_config(x_RK, weight_OK, gated=False, in_parts=in_parts and bias_O is None)
    if config is not None:
        return run_matmul(config, x_RK, weight_OK, bias_O, scale_O)
    return _library_matmul(x_RK, weight_OK, bias_O, scale_O)


def gated_matmul(x_RK: Tensor, weight_2IK: Tensor, *, scale_2I: Tensor | None = None) -> Tensor:
    """Return silu(x @ gate.T) * (x @ up.T), [R, I], of gate and up below each other; see `matmul`."""
    config = find_config(x_RK, weight_2IK, gated=True)
    if config is not None:
        return run_gated(config, x_RK, weight_2IK, scale_2I)
    return silu_mul(_library_matmul(x_RK, weight_2IK, None, scale_2I))


def _library_matmul(x_RK: Tensor, weight_OK: Tensor, bias_O: Tensor | None, scale_O: Tensor | None) -> Tensor:
    if _noted is not None:
        kind = weight_OK.shape, weight_OK.dtype, bias_O is None
        _noted.setdefault(kind, _LibraryProduct(weight_OK, bias_O, scale_O, x_RK.dtype)).note(len(x_RK))
    return F.linear(x_RK, weight_OK, bias_O) if scale_O is None else linear_fp8(x_RK, weight_OK, scale_O, bias_O)


@dataclass(slots=True, eq=False)
class _LibraryProduct:
    """A weight that cuBLAS multiplies, for all of its shape."""

    weight_OK: Tensor
    bias_O: Tensor | None
    scale_O: Tensor | None
    dtype: torch.dtype
    """The type of the activations."""
    most_rows: int = 0

    def note(self, num_rows: int) -> None:
        self.most_rows = max(self.most_rows, num_rows)

    def run(self) -> None:
        """Multiply rows of every number for which cuBLAS may choose another kernel."""
        x_RK = torch.empty(self.most_rows, self.weight_OK.shape[1], dtype=self.dtype, device=self.weight_OK.device)
        for num_rows in row_counts(self.most_rows):
            _library_matmul(x_RK[:num_rows], self.weight_OK, self.bias_O, self.scale_O)


_noted: dict[object, _LibraryProduct] | None = None
"""Products of cuBLAS in `loading_library`, by kind."""


@contextmanager
def loading_library() -> Iterator[None]:
    """Have the kernels loaded that cuBLAS needs for the products made inside, and for the same ones of fewer rows.

    cuBLAS chooses among many by the number of rows. CUDA loads each before its first launch, and the host then waits
    for all that is under way: a reader got no tokens for as long as two passes over prompts take.
    """
    global _noted
    found: dict[object, _LibraryProduct] = {}
    _noted = found
    try:
        yield
    finally:
        _noted = None
    for product in found.values():
        product.run()


def row_counts(most: int) -> list[int]:
    """Return numbers of rows up to `most` that show each kernel, by `_TILES`; ascending."""
    counts, before = {most}, 0
    for end, tile in _TILES:
        for full in range(before + tile, min(end, most + tile - 1) + 1, tile):
            last = min(full, most // _ALIGNED * _ALIGNED) if tile > 1 else full
            counts.update(last - short for short in (0, 1, 2, 4) if short < tile)
        before = end
    return sorted(counts)


def find_config(x_RK: Tensor, weight_OK: Tensor, *, gated: bool, in_parts: bool = False) -> Config | None:
    """Return how to compute a product, or None where cuBLAS is to do it."""
    if x_RK.dtype not in (torch.bfloat16, torch.float16) or not len(x_RK) or x_RK.stride(1) != 1:
        return None
    num_out, num_in = weight_OK.shape
    device = find_device(weight_OK.device)
    if device is None or not weight_OK.is_contiguous() or weight_OK.data_ptr() % 16:
        return None
    if weight_OK.itemsize == 1 and device.hopper and not has_copy_engine():
        device = replace(device, hopper=False)  # only the kernels for Hopper multiply such values as they are
    num_out = num_out // 2 if gated else num_out
    in_parts = in_parts and has_copy_engine() and x_RK.stride(0) % 8 == 0 and x_RK.data_ptr() % 16 == 0
    return choose(len(x_RK), num_out, num_in, device, gated=gated, weight_bytes=weight_OK.itemsize, in_parts=in_parts)


@functools.cache
def find_device(device: torch.device) -> MatmulDevice | None:
    """Return what is to know of a GPU; None where it has no matrix instruction for bfloat16."""
    if interpreted():
        return MatmulDevice(num_sms=4, shared_bytes=1 << 16, hopper=True)
    properties = torch.cuda.get_device_properties(device)
    if properties.major < 8:
        return None
    return MatmulDevice(
        num_sms=properties.multi_processor_count,
        shared_bytes=triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"],
        hopper=properties.major == 9,
    )


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


def run_matmul(
    config: Config, x_RK: Tensor, weight_OK: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None
) -> Tensor:
    """Return `matmul`'s result, computed as `config` says."""
    (num_rows, num_in), num_out = x_RK.shape, len(weight_OK)
    if config.early and _can_start_early(config, x_RK, weight_OK):
        return _run_early(config, x_RK, weight_OK, bias_O, scale_O, gated=False)
    y_RO = x_RK.new_empty(num_rows, num_out)
    matmul_kernel[(triton.cdiv(num_out, config.outputs),)](
        x_RK,
        x_RK.stride(0),
        _activations(config, x_RK),
        weight_OK,
        _weights(config, weight_OK),
        scale_O,
        bias_O,
        y_RO,
        num_rows,
        num_out,
        IN=num_in,
        **_options(config, num_rows),
    )
    return y_RO


def run_gated(config: Config, x_RK: Tensor, weight_2IK: Tensor, scale_2I: Tensor | None = None) -> Tensor:
    """Return `gated_matmul`'s result, computed as `config` says."""
    (num_rows, num_in), num_out = x_RK.shape, len(weight_2IK) // 2
    if config.early and _can_start_early(config, x_RK, weight_2IK):
        return _run_early(config, x_RK, weight_2IK, None, scale_2I, gated=True)
    y_RI = x_RK.new_empty(num_rows, num_out)
    gated_kernel[(triton.cdiv(num_out, config.outputs),)](
        x_RK,
        x_RK.stride(0),
        _activations(config, x_RK),
        weight_2IK,
        _weights(config, weight_2IK),
        scale_2I,
        y_RI,
        num_rows,
        num_out,
        IN=num_in,
        **_options(config, num_rows),
    )
    return y_RI


def _run_early(
    config: Config, x_RK: Tensor, weight_OK: Tensor, bias_O: Tensor | None, scale_O: Tensor | None, *, gated: bool
) -> Tensor:
    from draftwise.engine.kernels.cuda import matmul_hopper as code  # not every Triton has Gluon

    (num_rows, num_in), fold = x_RK.shape, config.fold
    num_out, part, rows = len(weight_OK) // (2 if gated else 1), num_in // fold, _rows(config, num_rows)
    y_RO = x_RK.new_empty(num_rows, num_out)
    if config.parts > 1:
        y_RO = x_RK.new_empty(config.parts, num_rows, num_out, dtype=torch.float32)
    x_scale_R = None
    if scale_O is not None:
        x_RK, x_scale_R = quantize_rows(x_RK)
    x_stride = x_RK.stride(0) if fold == 1 else part
    code.hopper_kernel(
        (triton.cdiv(num_out, config.outputs) * config.parts,),
        code.descriptor(x_RK, [num_rows * fold, part], x_stride, [rows * fold, config.columns]),
        code.descriptor(weight_OK, [len(weight_OK) * fold, part], part, [config.outputs * fold, config.columns]),
        x_scale_R,
        scale_O,
        bias_O,
        y_RO,
        num_rows,
        num_out,
        IN=num_in,
        ROWS=rows,
        BLOCK_O=config.outputs,
        BLOCK_K=config.columns,
        FOLD=fold,
        STAGES=min(config.stages, part // config.columns // config.parts),
        GATED=gated,
        PARTS=config.parts,
        num_warps=4,
    )
    return y_RO


@functools.cache
def _is_hopper() -> bool:
    return not interpreted() and torch.cuda.get_device_capability()[0] == 9


def _can_copy(config: Config, x_RK: Tensor) -> bool:
    """Say whether the copy engine can fetch the activations, folded as they are."""
    aligned = x_RK.stride(0) % 8 == 0 and x_RK.data_ptr() % 16 == 0
    return config.copies and aligned and (config.fold == 1 or x_RK.stride(0) == x_RK.shape[1])


def _can_start_early(config: Config, x_RK: Tensor, weight_OK: Tensor) -> bool:
    return has_copy_engine() and (weight_OK.itemsize == 1 or _can_copy(config, x_RK))


def _weights(config: Config, weight_OK: Tensor) -> TensorDescriptor | None:
    if not config.copies:
        return None
    (num_out, num_in), fold = weight_OK.shape, config.fold
    tile = [config.outputs * fold, config.columns]
    return TensorDescriptor(weight_OK, [num_out * fold, num_in // fold], [num_in // fold, 1], tile)


def _activations(config: Config, x_RK: Tensor) -> TensorDescriptor | None:
    if not _can_copy(config, x_RK):
        return None
    (num_rows, num_in), fold = x_RK.shape, config.fold
    stride = x_RK.stride(0) if fold == 1 else num_in // fold
    tile = [_rows(config, num_rows) * fold, config.columns]
    return TensorDescriptor(x_RK, [num_rows * fold, num_in // fold], [stride, 1], tile)


def _rows(config: Config, num_rows: int) -> int:
    """Return the rows of a tile of activations: the matrix instruction takes 16 columns."""
    return max(padded(num_rows), 16 // config.fold)


def _options(config: Config, num_rows: int) -> dict[str, object]:
    return {
        "ROWS": _rows(config, num_rows),
        "BLOCK_O": config.outputs,
        "BLOCK_K": config.columns,
        "FOLD": config.fold,
        "PREFETCH": _PREFETCHED,
        "PDL": pdl(),
        "NATIVE": _is_hopper(),
        "num_stages": config.stages,
        "num_warps": 4,
        "launch_pdl": pdl(),
    }
