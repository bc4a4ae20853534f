"""Numba code of operations, one after the other in one parallel region: `cpu_code` has their parts.

Threads take tasks of an operation (rows, chunks of a matrix, rows with some heads) and wait for each other behind it.
Who waits yields its core after a while, because another program may hold that of a thread that is still at work.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from draftwise.engine.kernels.cpu_code import (
    _attend_row,
    _exp,
    _float_of,
    _inline,
    _multiply,
    _next_task,
    _norm_factor,
    _pointer,
    _turn,
)
from draftwise.engine.kernels.cpu_vectors import blend_float32, quantize_row, score_float32

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
        *("rows", "qkv", "stride", "heads", "groups", "size", "cos", "sin", "slots", "pages", "q_norm", "k_norm"),
        "eps",
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
    cos, sin = _floats(op[7] + 2 * size * row, size // 2), _floats(op[8] + 2 * size * row, size // 2)
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
    logits, best = _floats(op[2] + op[3] * i, op[4]), 0
    top = _largest(logits)
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
