"""Numba code of the CPU kernels, in one file because numba's cache looks at one file for changes.

Each kernel is a C function of a job: int64 values, the first of which counts the tasks (rows) taken so far. bfloat16 is
passed as uint16; sums are float32. A row's result depends only on that row, so a token gets the same bits alone, after
a draft, or in a larger batch.

`run_operations` runs operations one after the other in one parallel region. Threads take tasks of an operation (rows,
chunks of a matrix, rows with some heads) and wait for each other after it. A waiting thread yields its core after a
while, because another program may occupy the core of a thread that is still working.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
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
"""Number of rows that a thread takes at a time."""

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


JOB = ("counter", "operations", "count", "counters", "scratch", "scratch_bytes", "room", "yield", "count_threads")
"""int64 of a job: addresses and sizes. `counters` are zeros, 64 bytes apart: one for seats, one for arrivals, one for
each operation. Of each thread's scratch, `room` positions that a row looks at have room."""
_OUT = ("out", "out_stride")
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    # x += delta where there is one, in place; of the rows `index` names. `state` receives x, `values` what is normed,
    # `out` the same in int8. Without a weight nothing is normed.
    "norm": (
        *("rows", "x", "x_stride", "index", "delta", "delta_stride", "state", "state_stride", "weight", "width", "eps"),
        *(*_OUT, "values", "values_stride"),
    ),
    "product": ("rows", "chunks", "count", "inputs", *_OUT),
    "rotate": (
        *("rows", "qkv", "stride", "heads", "groups", "size", "turns", "positions", "slots", "pages", "q_norm"),
        *("k_norm", "eps"),
    ),
    "attend": (
        *("rows", "index", "qkv", "stride", "heads", "groups", "size", "pages", "table", "table_width", "owners"),
        *("lasts", "window", "attended", "out", "scale", "block", "all_rows"),
    ),
    "gate": ("rows", "gate_up", "inner", "out"),
    # Rows of a table in the layout of `cpu_layouts`, or (no bits) of float32; zeros where `positions` has a 0.
    "embed": ("rows", "tokens", "table", "bits", "group_bytes", "blocks", *_OUT, "positions", "factor"),
    # The column of the largest value, or its id; into two places.
    "choose": ("rows", "logits", "stride", "width", "ids", "tokens", "column", "column_stride"),
    # x + SiLU(y), or with a weight GELU(norm(y + x) * weight + bias); outputs as of `norm`.
    "activate": (
        *("rows", "y", "y_stride", "x", "x_stride", "weight", "bias", "width", "eps", *_OUT, "values", "values_stride"),
    ),
}
"""Operation -> int64 after its number: addresses, sizes in bytes between rows, and bits of float32."""
OPERATION_SIZE = 24
"""int64 of an operation."""
_NORM, _PRODUCT, _ROTATE, _ATTEND, _GATE, _EMBED, _CHOOSE, _ACTIVATE = range(len(OPERATIONS))
_LOOKS = 64
"""Looks, of a few hundredths of a microsecond each, before a thread yields its core."""
COLUMNS = 256
"""Values of the activation that a thread takes at a time."""


_highest = njit(error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})


@intrinsic
def _arrive(_typing: Any, counter: Any) -> Any:
    """Add one to an int64, and show others all that was written before."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.atomic_rmw("add", args[0], context.get_constant(types.int64, 1), "acq_rel")
        return context.get_dummy_value()

    return types.void(counter), generate


@intrinsic
def _look(_typing: Any, counter: Any) -> Any:
    """Return an int64, and see all that was written before others changed it."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            pause = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, pause, "llvm.x86.sse2.pause"), [])
        return builder.load_atomic(args[0], "acquire", 8)

    return types.int64(counter), generate


@intrinsic
def _ask(_typing: Any, address: Any) -> Any:
    """Call a C function without arguments that returns an int."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.IntType(32), [])
        answer = builder.call(builder.inttoptr(args[0], function.as_pointer()), [])
        return builder.sext(answer, ir.IntType(64))

    return types.int64(address), generate


@_inline
def _wait(counters: int, target: int, give_way: int) -> None:
    """Wait until threads have arrived `target` times, this one included."""
    arrivals, looks = _pointer(counters + 64, np.int64), 0
    _arrive(arrivals)
    while _look(arrivals) < target:
        looks += 1
        if looks > _LOOKS:
            _ask(give_way)


@_inline
def _floats(address: int, count: int) -> Any:
    return carray(_pointer(address, np.float32), count)


@_inline
def _whole(address: int, count: int) -> Any:
    return carray(_pointer(address, np.int64), count)


@_inline
def _norm(op: Any, i: int, room_at: int) -> None:
    width = op[10]
    x = _floats(op[2] + op[3] * (_whole(op[4], i + 1)[i] if op[4] != 0 else i), width)
    if op[5] != 0:
        delta = _floats(op[5] + op[6] * i, width)
        for j in range(width):
            x[j] += delta[j]
    if op[7] != 0:
        state = _floats(op[7] + op[8] * i, width)
        for j in range(width):
            state[j] = x[j]
    room = _floats(room_at, width)
    if op[9] != 0:
        weight, factor = _floats(op[9], width), _norm_factor(x, _float_of(np.uint32(op[11])))
        for j in range(width):
            room[j] = x[j] * factor * weight[j]
    else:
        for j in range(width):
            room[j] = x[j]
    if op[14] != 0:
        values = _floats(op[14] + op[15] * i, width)
        for j in range(width):
            values[j] = room[j]
    if op[12] != 0:
        quantize_row(room_at, width // 32, op[12] + op[13] * i)


@_inline
def _gate(op: Any, task: int, room_at: int) -> None:
    inner = op[3]
    pieces = (inner + COLUMNS - 1) // COLUMNS
    row, first = task // pieces, task % pieces * COLUMNS
    count = min(COLUMNS, inner - first)
    place = op[2] + 4 * (2 * inner * row + first)
    gate, up = _floats(place, count), _floats(place + 4 * inner, count)
    room = _floats(room_at, count)
    for j in range(count):
        g = gate[j]
        room[j] = g / (np.float32(1) + _exp(-g)) * up[j]
    quantize_row(room_at, count // 32, op[4] + 48 * (inner // 32 * row + first // 32))


@_inline
def _rotate(op: Any, row: int) -> None:
    """Rotate a row's q and k in place; store k and v."""
    qkv, heads, groups, size, eps = op[2] + op[3] * row, op[4], op[5], op[6], _float_of(np.uint32(op[13]))
    turns = op[7] + 4 * size * _whole(op[8], row + 1)[row]
    cos, sin = _floats(turns, size // 2), _floats(turns + 2 * size, size // 2)
    q_norm, k_norm = _floats(op[11], size if op[11] != 0 else 0), _floats(op[12], size if op[12] != 0 else 0)
    for h in range(heads + groups):
        _turn(_floats(qkv + 4 * h * size, size), q_norm if h < heads else k_norm, eps, cos, sin)
    count = 2 * groups * size
    slot, new = _whole(op[9], row + 1)[row], _floats(qkv + 4 * heads * size, count)
    stored = _floats(op[10] + 4 * count * slot, count)
    for j in range(count):
        stored[j] = new[j]


@_inline
def _embed(op: Any, i: int) -> None:
    """See `cpu_layouts`: 16 rows of a table are a group, and a vector of a block has 4 inputs of each."""
    bits, blocks, out, factor = op[4], op[6], _floats(op[7] + op[8] * i, 32 * op[6]), _float_of(np.uint32(op[10]))
    token = _whole(op[2], i + 1)[i]
    if op[9] != 0 and _whole(op[9], i + 1)[i] == 0:
        for j in range(out.size):
            out[j] = np.float32(0)
        return
    if bits == 0:
        row = _floats(op[3] + 128 * blocks * token, 32 * blocks)
        for j in range(out.size):
            out[j] = row[j] * factor
        return
    memory, lane = carray(_pointer(op[3] + token // 16 * op[5], np.uint8), op[5]), token % 16
    halves = carray(_pointer(op[3] + token // 16 * op[5], np.uint16), op[5] // 2)
    size = 512 if bits == 8 else 64 * (bits + 1)
    for b in range(blocks):
        block, scales = b * size, (blocks * 512 + 32 * b if bits == 8 else b * size + 64 * bits)
        for j in range(32):
            vector, inner = j // 4, 4 * lane + j % 4
            if bits == 8:
                stored = np.int32(memory[block + 64 * vector + inner]) - np.int32(128)
            else:
                stored = np.int32(memory[block + 64 * (vector % 4) + inner]) >> np.int32(4 * (j // 16)) & np.int32(15)
            if bits == 5:
                stored |= (np.int32(memory[block + 256 + inner]) >> np.int32(vector) & np.int32(1)) << np.int32(4)
            if bits == 6:
                high = np.int32(memory[block + 256 + 64 * (j // 16) + inner]) >> np.int32(2 * (vector % 4))
                stored = (stored | (high & np.int32(3)) << np.int32(4)) - np.int32(32)
            value = np.float32(stored) * _half(halves[scales // 2 + lane + (16 * (j // 16) if bits == 6 else 0)])
            if bits < 6:
                value += _half(halves[scales // 2 + 16 + lane])
            out[32 * b + j] = value * factor


@intrinsic
def _half(_typing: Any, _bits: Any) -> Any:
    """Return the float32 of a float16's bits."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@_highest
def _largest(values: Any) -> Any:
    top = values[0]
    for j in range(values.size):
        top = max(top, values[j])
    return top


@_inline
def _choose(op: Any, i: int) -> None:
    logits, best, top = _floats(op[2] + op[3] * i, op[4]), 0, -np.float32(np.inf)
    for first in range(0, op[4], COLUMNS):  # where the largest is, and then its place there
        here = _largest(logits[first : min(first + COLUMNS, op[4])])
        if here > top:
            best, top = first, here
    while best < op[4] - 1 and logits[best] != top:
        best += 1
    token = _whole(op[5], op[4])[best] if op[5] != 0 else best
    _whole(op[6], i + 1)[i] = token
    _whole(op[7] + op[8] * i, 1)[0] = token


@_inline
def _activate(op: Any, i: int, room_at: int) -> None:
    width = op[8]
    y, x, room = _floats(op[2] + op[3] * i, width), _floats(op[4] + op[5] * i, width), _floats(room_at, width)
    if op[6] != 0:
        weight, bias = _floats(op[6], width), _floats(op[7], width)
        for j in range(width):
            room[j] = y[j] + x[j]
        factor = _norm_factor(room, _float_of(np.uint32(op[9])))
        for j in range(width):
            z = room[j] * factor * weight[j] + bias[j]
            room[j] = np.float32(0.5) * z * (np.float32(1) + np.float32(math.erf(z * np.float32(math.sqrt(0.5)))))
    else:
        for j in range(width):
            room[j] = x[j] + y[j] / (np.float32(1) + _exp(-y[j]))
    if op[12] != 0:
        values = _floats(op[12] + op[13] * i, width)
        for j in range(width):
            values[j] = room[j]
    quantize_row(room_at, width // 32, op[10] + op[11] * i)


def run_operations(counter: Any) -> None:  # noqa: PLR0912 (a branch for each operation)
    """See `JOB`; each row's float operations are the same whatever the other rows and the threads are."""
    job = carray(counter, 32)
    counters, give_way, room = job[3], job[7], job[6]
    threads = _ask(job[8]) if job[8] != 0 else 1
    memory = job[4] + _next_task(_pointer(counters, np.int64)) * job[5]
    keys, scores = _whole(memory, room), _floats(memory + 8 * room, room)
    room_at = memory + 12 * room
    attend = np.empty(18, np.int64)
    for number in range(job[2]):
        op = _whole(job[1] + 8 * OPERATION_SIZE * number, OPERATION_SIZE)
        kind, tasks = op[0], op[1]
        if kind == _PRODUCT:
            tasks = op[3]
        elif kind == _GATE:
            tasks *= (op[3] + COLUMNS - 1) // COLUMNS
        elif kind == _ATTEND:
            tasks *= op[6]
            attend[1], attend[2], attend[3], attend[4], attend[5] = op[3], op[4], op[8], op[9], op[10]
            attend[6], attend[7], attend[8], attend[9], attend[10] = op[11], op[12], op[13], op[14], op[18]
            attend[11], attend[12], attend[13], attend[14], attend[15] = op[5], op[6], op[7], op[17], op[16]
        counter_of = _pointer(counters + 128 + 64 * number, np.int64)
        i = _next_task(counter_of)
        while i < tasks:
            if kind == _PRODUCT:
                _multiply(op[2] + 64 * i, op[1], op[4], op[5], op[6])
            elif kind == _NORM:
                _norm(op, i, room_at)
            elif kind == _ROTATE:
                _rotate(op, i)
            elif kind == _ATTEND:
                size, share = op[7], op[5] // op[6] * op[7]
                row, group = i // op[6], i % op[6]
                if op[2] != 0:
                    row = _whole(op[2], row + 1)[row]
                rooms = (_floats(room_at, size), _floats(room_at + 4 * size, size), scores, keys)
                _attend_row(attend, np.float32, (4, score_float32, blend_float32), row, group, rooms)
                place = op[15] + 48 * (op[5] * size // 32 * (i // op[6]) + share // 32 * group)
                quantize_row(op[14] + 4 * (op[5] * size * row + share * group), share // 32, place)
            elif kind == _GATE:
                _gate(op, i, room_at)
            elif kind == _EMBED:
                _embed(op, i)
            elif kind == _ACTIVATE:
                _activate(op, i, room_at)
            else:
                _choose(op, i)
            i = _next_task(counter_of)
        _wait(counters, threads * (number + 1), give_way)
