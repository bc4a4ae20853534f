"""Numba code of all layers of a quantized model in one parallel region: `cpu_code` has its parts.

Threads take tasks of a phase (rows, chunks of a matrix, rows with some heads) and wait for each other behind it. Who
waits yields its core after a while, because another program may hold that of a thread that is still at work.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
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

JOB = (
    *("counter", "layers", "num_layers", "rows", "hidden", "heads", "groups", "size", "inner", "x", "wanted"),
    *("num_wanted", "delta", "qkv", "gate_up", "attended", "inputs", "cos", "sin", "slots", "table", "table_width"),
    *("owners", "lasts", "counters", "eps", "scale", "block", "scratch", "room", "yield", "count_threads"),
)
"""int64 of a job: addresses, sizes, and the bits of two float32. `counters` are zeros, 64 bytes apart: one for seats,
one for arrivals, one for each phase. `delta` is what the last layer's MLP adds; of rows in `wanted`, if there are."""
LAYER = (
    *("input_norm", "qkv", "qkv_chunks", "o", "o_chunks", "post_norm", "gate_up", "gate_up_chunks", "down"),
    *("down_chunks", "pages", "window", "q_norm", "k_norm", "state", "state_stride"),
)
"""int64 of a layer; `state` receives the residual stream that enters it, or is 0."""
_LOOKS = 64
"""Looks, of a few hundredths of a microsecond each, before a thread yields its core."""
PHASES = 9
COLUMNS = 256
"""Values of the activation that a thread takes at a time."""


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
def _product(counter: Any, chunks: int, count: int, rows: int, inputs: int, out: int, width: int) -> None:
    i = _next_task(counter)
    while i < count:
        _multiply(chunks + 64 * i, rows, inputs, out, 4 * width)
        i = _next_task(counter)


@_inline
def _norm_row(x: Any, weight: Any, eps: Any, room: Any, out: int) -> None:
    factor = _norm_factor(x, eps)
    for j in range(x.size):
        room[j] = x[j] * factor * weight[j]
    quantize_row(room.ctypes.data, x.size // 32, out)


@_inline
def _gate_columns(gate_up: Any, first: int, end: int, room: Any, out: int) -> None:
    gate, up = gate_up[first:end], gate_up[gate_up.size // 2 + first : gate_up.size // 2 + end]
    for j in range(end - first):
        g = gate[j]
        room[j] = g / (np.float32(1) + _exp(-g)) * up[j]
    quantize_row(room.ctypes.data, (end - first) // 32, out)


@_inline
def _rotate_row(qkv: int, job: Any, layer: Any, row: int, eps: Any) -> None:
    """Rotate a row's q and k in place; store k and v."""
    heads, groups, size = job[5], job[6], job[7]
    cos, sin = _floats(job[17] + 2 * size * row, size // 2), _floats(job[18] + 2 * size * row, size // 2)
    q_norm, k_norm = (
        _floats(layer[12], size if layer[12] != 0 else 0),
        _floats(layer[13], size if layer[13] != 0 else 0),
    )
    for h in range(heads + groups):
        _turn(_floats(qkv + 4 * h * size, size), q_norm if h < heads else k_norm, eps, cos, sin)
    slot = carray(_pointer(job[19], np.int64), job[3])[row]
    count = 2 * groups * size
    stored, new = _floats(layer[10] + 4 * count * slot, count), _floats(qkv + 4 * heads * size, count)
    for j in range(count):
        stored[j] = new[j]


def run_layers(counter: Any) -> None:  # noqa: PLR0915 (phase after phase)
    """See `JOB`; each row's float operations are the same whatever the other rows and the threads are."""
    job = carray(counter, 32)
    rows, hidden, heads, groups, size, inner = job[3], job[4], job[5], job[6], job[7], job[8]
    x_at, inputs, counters, eps = job[9], job[16], job[24], _float_of(np.uint32(job[25]))
    threads, give_way = (_ask(job[31]) if job[31] != 0 else 1), job[30]
    seat = _next_task(_pointer(counters, np.int64))
    width = (heads + 2 * groups) * size
    memory = job[28] + seat * (12 * job[29] + 8 * size + 4 * max(hidden, COLUMNS))
    keys, scores = carray(_pointer(memory, np.int64), job[29]), _floats(memory + 8 * job[29], job[29])
    query = _floats(memory + 12 * job[29], size)
    result = _floats(memory + 12 * job[29] + 4 * size, size)
    room_at = memory + 12 * job[29] + 8 * size
    room = _floats(room_at, max(hidden, COLUMNS))
    pieces, phase = (inner + COLUMNS - 1) // COLUMNS, 0
    # The job of `_attend_row`, whose pages and window are a layer's.
    attend = np.empty(18, np.int64)
    attend[1], attend[2], attend[4], attend[5], attend[6], attend[7] = (
        job[13],
        4 * width,
        job[20],
        job[21],
        job[22],
        job[23],
    )
    attend[9], attend[10], attend[11], attend[12], attend[13] = job[15], rows, heads, groups, size
    attend[14], attend[15] = job[27], job[26]
    for number in range(job[2]):
        layer = carray(_pointer(job[1] + 128 * number, np.int64), 16)
        # What the layer before adds, the norm, and the inputs of attention.
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        i = _next_task(task)
        while i < rows:
            x = _floats(x_at + 4 * hidden * i, hidden)
            if number > 0:
                delta = _floats(job[12] + 4 * hidden * i, hidden)
                for j in range(hidden):
                    x[j] += delta[j]
            if layer[14] != 0:
                state = _floats(layer[14] + layer[15] * i, hidden)
                for j in range(hidden):
                    state[j] = x[j]
            _norm_row(x, _floats(layer[0], hidden), eps, _floats(room_at, hidden), inputs + hidden // 32 * 48 * i)
            i = _next_task(task)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        _product(task, layer[1], layer[2], rows, inputs, job[13], width)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        i = _next_task(task)
        while i < rows:
            _rotate_row(job[13] + 4 * width * i, job, layer, i, eps)
            i = _next_task(task)
        phase += 1
        _wait(counters, threads * phase, give_way)
        # From here on, of the last layer only the rows that somebody reads.
        some = number == job[2] - 1 and job[11] > 0
        count = job[11] if some else rows
        wanted = carray(_pointer(job[10], np.int64), job[11] if some else 0)
        attend[3], attend[8] = layer[10], layer[11]
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        i = _next_task(task)
        share = heads // groups * size
        while i < count * groups:
            row, group = (wanted[i // groups] if some else i // groups), i % groups
            _attend_row(
                attend, np.float32, (4, score_float32, blend_float32), row, group, (query, result, scores, keys)
            )
            place = inputs + 48 * (heads * size // 32 * (i // groups) + share // 32 * group)
            quantize_row(job[15] + 4 * (heads * size * row + share * group), share // 32, place)
            i = _next_task(task)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        _product(task, layer[3], layer[4], count, inputs, job[12], hidden)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        i = _next_task(task)
        while i < count:
            x = _floats(x_at + 4 * hidden * (wanted[i] if some else i), hidden)
            delta = _floats(job[12] + 4 * hidden * i, hidden)
            for j in range(hidden):
                x[j] += delta[j]
            _norm_row(x, _floats(layer[5], hidden), eps, _floats(room_at, hidden), inputs + hidden // 32 * 48 * i)
            i = _next_task(task)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        _product(task, layer[6], layer[7], count, inputs, job[14], 2 * inner)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        i = _next_task(task)
        while i < count * pieces:
            row, first = i // pieces, i % pieces * COLUMNS
            place = inputs + 48 * (inner // 32 * row + first // 32)
            _gate_columns(
                _floats(job[14] + 8 * inner * row, 2 * inner), first, min(first + COLUMNS, inner), room, place
            )
            i = _next_task(task)
        phase += 1
        _wait(counters, threads * phase, give_way)
        task = _pointer(counters + 128 + 64 * phase, np.int64)
        _product(task, layer[8], layer[9], count, inputs, job[12], hidden)
        phase += 1
        _wait(counters, threads * phase, give_way)
