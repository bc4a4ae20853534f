"""Numba code of the CPU kernels, in one file because numba's cache looks at one file for changes.

Each kernel is a C function of a job: int64 values, the first of which counts the tasks (rows) taken so far.
bfloat16 travels as uint16; sums are float32. A row's result depends on nothing but that row, so a token
gets the same bits alone, behind a draft, or in a larger batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic, overload

from draftwise.engine.kernels.cpu_vectors import (
    blend_bfloat16,
    blend_float32,
    multiply_q4,
    multiply_q5,
    multiply_q6,
    multiply_q8,
    quantize_row,
    score_bfloat16,
    score_float32,
    weigh,
)

ROWS = 8
"""Rows that a thread takes at a time."""

# numpy's error model, because a check for division by zero would keep loops from being vectorized.
_inline = njit(error_model="numpy", fastmath={"contract"})
_reduction = njit(error_model="numpy", fastmath={"contract", "reassoc"})


@intrinsic
def _pointer(_typing: Any, address: Any, dtype: Any) -> Any:
    """Return an int64 address as a pointer to dtype."""
    kind = types.CPointer(dtype.dtype)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(address, dtype), generate


@intrinsic
def _next_task(_typing: Any, counter: Any) -> Any:
    """Return the int64 that `counter` points at and add one to it, atomically."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], context.get_constant(types.int64, 1), "monotonic")

    return types.int64(counter), generate


def _bitcast(source: Any, target: Any) -> Any:
    @intrinsic
    def cast(_typing: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return cast


_float_of = _bitcast(types.uint32, types.float32)
_bits_of = _bitcast(types.float32, types.uint32)


def _load(values: Any, i: int) -> Any:
    """Return values[i] in float32."""


def _store(values: Any, i: int, x: Any) -> None:
    """Set values[i] to x, rounded to nearest with ties to even."""


@overload(_load)
def _overload_load(values: Any, i: Any) -> Any:  # noqa: ARG001
    def load_bfloat16(values: Any, i: Any) -> Any:
        return _float_of(np.uint32(values[i]) << np.uint32(16))

    def load_float32(values: Any, i: Any) -> Any:
        return values[i]

    return load_bfloat16 if values.dtype == types.uint16 else load_float32


@overload(_store)
def _overload_store(values: Any, i: Any, x: Any) -> Any:  # noqa: ARG001
    def store_bfloat16(values: Any, i: Any, x: Any) -> Any:
        bits = _bits_of(x)
        even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        values[i] = np.uint16((bits + even) >> np.uint32(16))

    def store_float32(values: Any, i: Any, x: Any) -> Any:
        values[i] = x

    return store_bfloat16 if values.dtype == types.uint16 else store_float32


@_inline
def _exp(x: Any) -> Any:
    """Return e^x in float32, relative error 1e-7, x clamped to -87..88 (Cephes expf; unlike libm's it vectorizes)."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + r + np.float32(1)
    return p * _float_of(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))


@_reduction
def _norm_factor(x: Any, eps: Any) -> Any:
    """Return 1 / sqrt(mean(x^2) + eps)."""
    total = np.float32(0)
    for j in range(x.size):
        total += x[j] * x[j]
    return np.float32(1) / np.sqrt(total / np.float32(x.size) + eps)


@_inline
def _next_rows(counter: Any, rows: int) -> tuple[int, int]:
    """Return the next rows to work on, first and end: a few at a time, so that threads share no cache lines."""
    first = _next_task(counter) * ROWS
    return first, min(first + ROWS, rows)


@_inline
def _add_norm(counter: Any, dtype: Any) -> None:
    """Job: counter, x, delta or 0, weight, sum, out, rows, width, bits of epsilon."""
    job = carray(counter, 9)
    rows, width, eps = job[6], job[7], _float_of(np.uint32(job[8]))
    x_RH, delta_RH = carray(_pointer(job[1], dtype), (rows, width)), carray(_pointer(job[2], dtype), (rows, width))
    sum_RH, out_RH = carray(_pointer(job[4], dtype), (rows, width)), carray(_pointer(job[5], dtype), (rows, width))
    weight, row = carray(_pointer(job[3], dtype), width), np.empty(width, np.float32)
    first, end = _next_rows(counter, rows)
    while first < rows:
        for i in range(first, end):
            x, delta, total, out = x_RH[i], delta_RH[i], sum_RH[i], out_RH[i]
            if job[2] == 0:
                for j in range(width):
                    row[j] = _load(x, j)
            else:
                for j in range(width):
                    _store(total, j, _load(x, j) + _load(delta, j))
                for j in range(width):
                    row[j] = _load(total, j)
            factor = _norm_factor(row, eps)
            for j in range(width):
                _store(out, j, row[j] * factor * _load(weight, j))
        first, end = _next_rows(counter, rows)


@_inline
def _silu_mul(counter: Any, dtype: Any) -> None:
    """Job: counter, gate and up next to each other, out, rows, width."""
    job = carray(counter, 5)
    rows, width = job[3], job[4]
    x_R2I, out_RI = carray(_pointer(job[1], dtype), (rows, 2, width)), carray(_pointer(job[2], dtype), (rows, width))
    first, end = _next_rows(counter, rows)
    while first < rows:
        for i in range(first, end):
            gate, up, out = x_R2I[i, 0], x_R2I[i, 1], out_RI[i]
            for j in range(width):
                g = _load(gate, j)
                _store(out, j, g / (np.float32(1) + _exp(-g)) * _load(up, j))
        first, end = _next_rows(counter, rows)


@_inline
def _turn(head: Any, norm: Any, eps: Any, cos: Any, sin: Any) -> None:
    """Norm a float32 head, if there are weights for that, and rotate its first half against its second."""
    if norm.size > 0:
        factor = _norm_factor(head, eps)
        for j in range(head.size):
            head[j] = head[j] * factor * _load(norm, j)
    half = cos.size
    left, right = head[:half], head[half:]
    for j in range(half):
        a, b = left[j], right[j]
        left[j] = a * cos[j] - b * sin[j]
        right[j] = b * cos[j] + a * sin[j]


@_inline
def _rotate_store(counter: Any, dtype: Any) -> None:
    """Rotate q in place; store k, rotated, and v.

    Job: counter, qkv, cosine, sine, pages, slots, norm of q or 0, norm of k or 0, bits of epsilon, rows, query
    heads, key heads, head size, slots in all, float32 scratch (a row of q and k for every ROWS rows).
    """
    job = carray(counter, 15)
    eps, rows, heads, groups, size = _float_of(np.uint32(job[8])), job[9], job[10], job[11], job[12]
    num_q, num_k = heads * size, groups * size
    qkv_RE = carray(_pointer(job[1], dtype), (rows, num_q + 2 * num_k))
    cos_RD = carray(_pointer(job[2], np.float32), (rows, size // 2))
    sin_RD = carray(_pointer(job[3], np.float32), (rows, size // 2))
    pages = carray(_pointer(job[4], dtype), (job[13], 2 * num_k))
    slots = carray(_pointer(job[5], np.int64), rows)
    q_norm = carray(_pointer(job[6], dtype), size if job[6] != 0 else 0)
    k_norm = carray(_pointer(job[7], dtype), size if job[7] != 0 else 0)
    # Not np.empty: slices of an array that numba manages cost a call to count references.
    scratch = carray(_pointer(job[14], np.float32), (rows // ROWS + 1, num_q + num_k))
    first, end = _next_rows(counter, rows)
    while first < rows:
        row = scratch[first // ROWS]
        for i in range(first, end):
            qkv, stored = qkv_RE[i], pages[slots[i]]
            for j in range(num_q + num_k):
                row[j] = _load(qkv, j)
            for h in range(heads + groups):
                _turn(row[h * size : (h + 1) * size], q_norm if h < heads else k_norm, eps, cos_RD[i], sin_RD[i])
            k, v = row[num_q:], qkv[num_q + num_k :]
            for j in range(num_q):
                _store(qkv, j, row[j])
            for j in range(num_k):
                _store(stored, j, k[j])
            for j in range(num_k):
                stored[num_k + j] = v[j]
        first, end = _next_rows(counter, rows)


@intrinsic
def _multiply(_typing: Any, _chunk: Any, _rows: Any, _inputs: Any, _out: Any, _stride: Any) -> Any:
    """Call the kernel of `MULTIPLY` whose address a chunk begins with."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        number = ir.IntType(64)
        address = builder.load(builder.inttoptr(args[0], number.as_pointer()))
        function = ir.FunctionType(ir.VoidType(), [number] * len(args))
        builder.call(builder.inttoptr(address, function.as_pointer()), args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _multiply_q4(chunk: int, rows: int, inputs: int, out: int, stride: int) -> None:
    c = carray(_pointer(chunk, np.int64), 8)
    for g in range(c[3]):
        multiply_q4(c[1] + g * c[2], c[7], rows, inputs, out + c[4] + 64 * g, stride, c[5] + g * c[6])


def _multiply_q5(chunk: int, rows: int, inputs: int, out: int, stride: int) -> None:
    c = carray(_pointer(chunk, np.int64), 8)
    for g in range(c[3]):
        multiply_q5(c[1] + g * c[2], c[7], rows, inputs, out + c[4] + 64 * g, stride, c[5] + g * c[6])


def _multiply_q6(chunk: int, rows: int, inputs: int, out: int, stride: int) -> None:
    c = carray(_pointer(chunk, np.int64), 8)
    for g in range(c[3]):
        multiply_q6(c[1] + g * c[2], c[7], rows, inputs, out + c[4] + 64 * g, stride, c[5] + g * c[6])


def _multiply_q8(chunk: int, rows: int, inputs: int, out: int, stride: int) -> None:
    c = carray(_pointer(chunk, np.int64), 8)
    for g in range(c[3]):
        multiply_q8(c[1] + g * c[2], c[7], rows, inputs, out + c[4] + 64 * g, stride, c[5] + g * c[6])


def _product(counter: Any) -> None:
    """Job: counter, chunks, their number, rows, quantized inputs, out, bytes from one row of it to the next."""
    job = carray(counter, 7)
    i = _next_task(counter)
    while i < job[2]:
        _multiply(job[1] + 64 * i, job[3], job[4], job[5], job[6])
        i = _next_task(counter)


def _quantize(counter: Any) -> None:
    """Job: counter, float32 rows, their number, blocks of each, out."""
    job = carray(counter, 5)
    first, end = _next_rows(counter, job[2])
    while first < job[2]:
        quantize_row(job[1] + 128 * job[3] * first, job[3] * (end - first), job[4] + 48 * job[3] * first)
        first, end = _next_rows(counter, job[2])


@_inline
def _attend_row(job: Any, dtype: Any, codes: Any, row: int, group: int, room: Any) -> None:
    """Attend from the query heads of a row that share keys; `room` has float32 for a query, a result and scores, and
    addresses of keys."""
    (itemsize, score, blend), (query, result, scores, keys) = codes, room
    heads, groups, size, block, scale = job[11], job[12], job[13], job[14], _float_of(np.uint32(job[15]))
    share, token = heads // groups, 2 * groups * size * itemsize
    seq = carray(_pointer(job[6], np.int64), job[10])[row]
    end = carray(_pointer(job[7], np.int64), job[10])[row] + 1
    table = carray(_pointer(job[4] + 4 * job[5] * seq, np.int32), job[5])
    first = max(end - job[8], 0)
    count, t = max(end - first, 0), first
    padded = (count + 15) // 16 * 16
    while t < end:
        page, place = t // block, t % block
        for i in range(t, min(t - place + block, end)):
            keys[i - first] = job[3] + (np.int64(table[page]) * block + place + i - t) * token
        t += block - place
    for i in range(count, padded):
        keys[i] = keys[0]
    k = group * size * itemsize
    for h in range(group * share, (group + 1) * share):
        q = carray(_pointer(job[1] + job[2] * row + itemsize * h * size, dtype), size)
        out = carray(_pointer(job[9] + itemsize * (row * heads + h) * size, dtype), size)
        for j in range(size):
            query[j] = _load(q, j) * scale
        for i in range(0, padded, 16):
            score(query.ctypes.data, keys.ctypes.data + 8 * i, k, size, scores.ctypes.data + 4 * i)
        for i in range(count, padded):
            scores[i] = -np.float32(np.inf)
        total = weigh(scores.ctypes.data, padded)
        factor = np.float32(1) / total if count > 0 else np.float32(0)
        v = k + groups * size * itemsize
        blend(scores.ctypes.data, keys.ctypes.data, v, padded, size, factor, result.ctypes.data)
        for j in range(size):
            _store(out, j, result[j])


@_inline
def _attend(counter: Any, dtype: Any, codes: Any) -> None:
    """Attend from rows to the positions of their sequences; a task is a row and the query heads that share keys.

    Job: counter, q, bytes from one row of it to the next, pages, page table, its width, sequence of each row, the last
    position that it looks at, positions that it looks at at most, out, rows, query heads, key heads, head size, tokens
    a page, bits of the scale, scratch that begins with a counter of threads, positions that a thread has room for.
    """
    job = carray(counter, 18)
    size, room = job[13], job[17]
    seat = _next_task(_pointer(job[16], np.int64))
    memory = job[16] + 64 + seat * (8 * size + 12 * room)
    keys, scores = carray(_pointer(memory, np.int64), room), carray(_pointer(memory + 8 * room, np.float32), room)
    query = carray(_pointer(memory + 12 * room, np.float32), size)
    result = carray(_pointer(memory + 12 * room + 4 * size, np.float32), size)
    task = _next_task(counter)
    while task < job[10] * job[12]:
        _attend_row(job, dtype, codes, task // job[12], task % job[12], (query, result, scores, keys))
        task = _next_task(counter)


def _add_norm_bfloat16(counter: Any) -> None:
    _add_norm(counter, np.uint16)


def _add_norm_float32(counter: Any) -> None:
    _add_norm(counter, np.float32)


def _silu_mul_bfloat16(counter: Any) -> None:
    _silu_mul(counter, np.uint16)


def _silu_mul_float32(counter: Any) -> None:
    _silu_mul(counter, np.float32)


def _rotate_store_bfloat16(counter: Any) -> None:
    _rotate_store(counter, np.uint16)


def _rotate_store_float32(counter: Any) -> None:
    _rotate_store(counter, np.float32)


def _attend_bfloat16(counter: Any) -> None:
    _attend(counter, np.uint16, (2, score_bfloat16, blend_bfloat16))


def _attend_float32(counter: Any) -> None:
    _attend(counter, np.float32, (4, score_float32, blend_float32))


CODE = {
    "bfloat16": (_add_norm_bfloat16, _silu_mul_bfloat16, _rotate_store_bfloat16, _attend_bfloat16),
    "float32": (_add_norm_float32, _silu_mul_float32, _rotate_store_float32, _attend_float32),
}
"""The kernels (norm of a sum, gated activation, rotation with storing, attention) of each type."""


MULTIPLY = {"q4": _multiply_q4, "q5": _multiply_q5, "q6": _multiply_q6, "q8": _multiply_q8}
"""Kind of `cpu_layouts` -> what puts the products of a chunk, some groups of a matrix, with all rows into out.

A chunk is eight int64: the function's address, the first group, bytes from one to the next, groups, their place in a
row of out in bytes, biases or zeros, bytes from one group's to the next one's, blocks.
"""
QUANTIZED = (_quantize, _product)
"""The kernels of quantized matrices: inputs rounded to int8, and their product with all chunks of a matrix."""


def compile_kernel(function: Any, *, num_args: int = 0) -> Any:
    """Return the compiled C function; numba keeps it on disk where it finds a writable place.

    Args:
        function: takes a job, or as many int64.
        num_args: their number; 0: a job.
    """
    signature = types.void(*([types.int64] * num_args or [types.CPointer(types.int64)]))
    try:
        return cfunc(signature, cache=True)(function)
    except RuntimeError:  # no place for a cache
        return cfunc(signature)(function)
