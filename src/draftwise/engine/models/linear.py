"""Matrix products with a model's weights, in the device's fastest layout.

Shape letters: R rows, O outputs, K inputs.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""[R, in] -> [R, out]."""

ALIGNMENT = 64
"""Outputs of a product on a GPU are padded to a multiple of this: a step with an odd vocabulary takes cuBLAS 15 to 18 %
longer (benchmarks/h200/NOTES.md). vLLM also pads vocabularies to 64."""

_INSTRUCTIONS, _WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"), "AVX512_CORE_BF16"

_KEPT, _MOST_KEPT = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "256"
"""Kernels that oneDNN keeps, and torch too: one for each product and number of rows, of about 0.3 MB. Their own limits
are 1,024."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max
"""The largest value of float8_e4m3fn."""


def make_linear(
    weight_OK: Tensor,
    bias_O: Tensor | None = None,
    *,
    copy: bool = True,
    quantization: str | None = None,
    for_sum: bool = False,
) -> Linear:
    """Return x -> x @ weight.T + bias.

    On the CPU, the weight is copied once to oneDNN's blocked layout, in which a row's bits are the same for up to
    `find_most_alike` rows. torch's plain product copies bfloat16 weights in every call and takes 1.5 times as long.
    `copy=False` avoids the copy.

    Args:
        weight_OK: in the model's type.
        bias_O: the same type.
        copy: whether the weight may be copied.
        quantization: `fp8` rounds weights to float8_e4m3fn, with a scale per output. A device without fp8 products
            computes with the rounded weights in the model's type.
        for_sum: whether only `Kernels.add_norm` reads the result, which may then be float32 [parts, R, out].
    """
    weight_OK, scale_O = quantized(weight_OK, quantization)
    if weight_OK.is_cuda:
        return CudaLinear(weight_OK, bias_O, scale_O, for_sum=for_sum)
    if not can_pack(weight_OK.device, weight_OK.dtype) or not copy:
        return lambda x: F.linear(x, weight_OK, bias_O)
    return PackedLinear(pack(weight_OK), bias_O)


def last_outputs(linear: Linear, x_RK: Tensor, num_out: int) -> Tensor:
    """Return the last outputs of a product, [R, num_out]. Only on a GPU are the others not computed."""
    return linear.last(x_RK, num_out) if isinstance(linear, CudaLinear) else linear(x_RK)[:, -num_out:]


class PackedLinear:
    """A matrix product on the CPU with weights in oneDNN's layout.

    Args:
        packed: from `pack`.
        bias_O: the same type.
        memory: owner of the packed weights' memory, if it is a separate object.
    """

    def __init__(self, packed: Tensor, bias_O: Tensor | None = None, memory: Tensor | None = None) -> None:
        self._packed, self._bias_O, self._memory = packed, bias_O, memory
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x_RK: Tensor) -> Tensor:
        """Return x @ weight.T + bias, [R, out].

        oneDNN has code of its own for one row, whose sums have other bits: a single row is computed as one of two.
        """
        is_one = len(x_RK) == 1
        y_RO = self._product(x_RK.expand(2, -1) if is_one else x_RK, self._packed, self._bias_O, "none", [], "")
        return y_RO[:1] if is_one else y_RO


def pack(weight_OK: Tensor) -> Tensor:
    """Return a copy in oneDNN's blocked layout, which is opaque to other operations and independent of threads."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OK, None)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether such a layout exists and is faster."""
    limit_instructions()
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@functools.cache
def limit_instructions() -> str | None:
    """Make oneDNN leave AMX out, and keep fewer kernels. Return its maximum instruction set, or None for all.

    With AMX, the bits of a row in bfloat16 depend on the number of rows and threads: in 8 of 19 runs on a Xeon, drafts
    changed the output, without AMX in none. Without it, 2 rows of 2,048 x 8,192 take 0.6 of the time, 32 rows 3.3 times
    as long.

    Both read the variables at their first product in a process. They are set until then, so that processes started
    later do not see them. An operator's own values stand. Where torch has multiplied before, AMX stays: see
    `keeps_amx`.
    """
    own = [value for name in _INSTRUCTIONS if (value := os.environ.get(name))]
    limits = {name: _MOST_KEPT for name in _KEPT if name not in os.environ}
    has_amx = torch.cpu._is_amx_tile_supported()
    if has_amx and not own:
        limits[_INSTRUCTIONS[0]] = _WITHOUT_AMX
    if limits and torch.backends.mkldnn.is_available():
        os.environ.update(limits)
        try:
            PackedLinear(pack(torch.zeros(1, 1)))(torch.zeros(1, 1))
        finally:
            for name in limits:
                del os.environ[name]
    if own or not has_amx:
        return own[0] if own else None
    return None if _asked_for_amx() else _WITHOUT_AMX


def keeps_amx() -> bool:
    """Return whether oneDNN uses AMX though nobody asked for it: torch multiplied before a model was loaded."""
    limited = limit_instructions()
    return limited is None and torch.cpu._is_amx_tile_supported()


def _asked_for_amx() -> bool:
    """Return whether this process has asked Linux for AMX, as oneDNN does once it may use it (arch_prctl(2),
    ARCH_GET_XCOMP_PERM; the 18th feature is AMX's tiles)."""
    features = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(features))
    return bool(features.value >> 18 & 1)


def find_most_alike(dtype: torch.dtype) -> int:
    """Return the number of rows up to which each row of a CPU product has the same bits as alone (oneDNN 3.12)."""
    return 32 if dtype == torch.bfloat16 else 128


def quantized(weight_OK: Tensor, quantization: str | None) -> tuple[Tensor, Tensor | None]:
    """Return the weights in the device's compute form, and their scales or None; see `make_linear`."""
    if quantization != "fp8":
        return weight_OK, None
    dtype = weight_OK.dtype
    rounded_OK, scale_O = quantize(weight_OK)
    if _multiplies_fp8(weight_OK.device) and dtype.itemsize == 2:
        return rounded_OK, scale_O
    return (rounded_OK.to(torch.float32) * scale_O.unsqueeze(1)).to(dtype), None


def quantize(weight_OK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights as float8_e4m3fn and the float32 scale of each output, its largest absolute weight / 448."""
    largest_O = weight_OK.abs().amax(dim=1).to(torch.float32)
    scale_O = torch.where(largest_O > 0, largest_O / _LARGEST, 1.0)
    scaled_OK = weight_OK.to(torch.float32) / scale_O.unsqueeze(1)
    return scaled_OK.clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scale_O


def align(size: int, multiple: int = ALIGNMENT) -> int:
    """Round a size up to the next multiple."""
    return -(-size // multiple) * multiple


def _with_aligned_outputs(weight_OK: Tensor) -> Tensor:
    """Return a matrix with a multiple of `ALIGNMENT` rows; what products with further rows give is cut off.

    The rows are those behind the matrix in its memory, where `WeightReader` made room for them, else those of a copy.
    """
    (rows, width), wanted = weight_OK.shape, align(len(weight_OK))
    if rows == wanted:
        return weight_OK
    room = weight_OK.untyped_storage().nbytes() // weight_OK.itemsize - weight_OK.storage_offset()
    if weight_OK.is_contiguous() and room >= wanted * width:
        return weight_OK.as_strided((wanted, width), (width, 1))
    padded_OK = weight_OK.new_zeros(wanted, width)
    padded_OK[:rows] = weight_OK
    return padded_OK


class CudaLinear:
    """A matrix product on a GPU: our kernels for few rows, cuBLAS for many.

    Attributes:
        weight: [out, in], `out` aligned; gate above up in a gated pair.
        bias: [out] or None.
        scale: float32 [out] of float8_e4m3fn weights, or None.
    """

    def __init__(
        self, weight_OK: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None, *, for_sum: bool = False
    ) -> None:
        from draftwise.engine.kernels.cuda import layer, matmul  # Triton is there only where a GPU is

        self._num_out, self._for_sum = len(weight_OK), for_sum
        self.weight = _with_aligned_outputs(weight_OK)
        more = len(self.weight) - self._num_out
        self.bias, self.scale = (each if each is None else F.pad(each, (0, more)) for each in (bias_O, scale_O))
        self._code, self._silu_mul = matmul, layer.silu_mul

    def __call__(self, x_RK: Tensor) -> Tensor:
        """Return x @ weight.T + bias, [R, out]; with `for_sum` perhaps float32 [parts, R, out]."""
        y_RO = self._code.matmul(x_RK, self.weight, self.bias, scale_O=self.scale, in_parts=self._for_sum)
        return y_RO if y_RO.shape[-1] == self._num_out else y_RO[..., : self._num_out]

    def last(self, x_RK: Tensor, num_out: int) -> Tensor:
        """Return the last outputs of the product, [R, num_out], computed in aligned ones."""
        begin = self._num_out - num_out
        first = begin // ALIGNMENT * ALIGNMENT
        bias_O, scale_O = (each if each is None else each[first:] for each in (self.bias, self.scale))
        y_RO = self._code.matmul(x_RK, self.weight[first:], bias_O, scale_O=scale_O)
        return y_RO[:, begin - first : self._num_out - first]

    def gated(self, x_RK: Tensor) -> Tensor:
        """Return silu(gate) * up of the two halves of the product, [R, out / 2]; `WeightReader` aligns each half."""
        if self.bias is not None:
            return self._silu_mul(self(x_RK).contiguous())
        scale_2I = None if self.scale is None else self.scale[: self._num_out]
        return self._code.gated_matmul(x_RK, self.weight[: self._num_out], scale_2I=scale_2I)


def _multiplies_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
