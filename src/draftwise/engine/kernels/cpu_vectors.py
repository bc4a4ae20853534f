"""LLVM IR for vector code that numba does not generate from loops.

Sums of products of 8-bit integers are exact, and each row's float operations have one order: a row has the same bits
alone and in a batch, and on every processor with a fused multiply-add.

`cpu_layouts` defines the layout of weights. A row of inputs is quantized by blocks of 32 too, 48 bytes each: 32 int8,
their scale d and d times their sum (float32), minus the sums of the first and the second 16 (int32).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from draftwise.engine.kernels.cpu_layouts import BLOCK, GROUP, LAYOUTS

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_HALF, _F32 = ir.HalfType(), ir.FloatType()

_AHEAD = 4096
"""Bytes between what is multiplied and what is asked for. A core reads weights from memory a quarter faster with it:
the processor's own prefetchers stop at the end of a page."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A processor's method of multiplying 8-bit integers."""

    name: str
    lanes: int
    """Number of int32 values in a vector."""
    most_rows: int
    """Number of rows multiplied per read of the weights."""


_MODES = {
    mode.name: mode
    for mode in (
        Mode("avx512_vnni", 16, 8),
        Mode("avx_vnni", 8, 4),
        Mode("avx2", 8, 4),
        Mode("dotprod", 4, 4),
        Mode("plain", 4, 2),
    )
}
"""The last is for tests: integer operations that every processor has."""
_forced: list[Mode] = []


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Compile for another kind of processor, in tests. Applies only to kernels compiled inside the context, which are
    not cached, and to fewer rows at a time, which compile sooner."""
    _forced.append(replace(_MODES[name], most_rows=2))
    try:
        yield
    finally:
        _forced.pop()


def find_mode() -> Mode | None:
    """Return the fastest mode of the processor that numba compiles for. None: it has no such mode, and quantized
    weights do not pay. `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` select another processor."""
    features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return _forced[-1] if _forced else _find_mode(platform.machine(), features)


@cache
def _find_mode(machine: str, features: str) -> Mode | None:
    has = {name[1:] for name in features.split(",") if name.startswith("+")}
    if machine in ("x86_64", "AMD64") and {"avx2", "fma", "f16c"} <= has:
        if {"avx512vnni", "avx512bw", "avx512vl"} <= has:
            return _MODES["avx512_vnni"]
        return _MODES["avx_vnni" if "avxvnni" in has else "avx2"]
    return _MODES["dotprod"] if machine in ("aarch64", "arm64") and "dotprod" in has else None


class _Code:
    """Emits vector operations of some lanes."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.ints, self.floats = ir.VectorType(_I32, lanes), ir.VectorType(_F32, lanes)

    def call(self, name: str, kind: Any, *args: Any) -> Any:
        """Call a function of LLVM's."""
        function = ir.FunctionType(kind, [arg.type for arg in args])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, name), args)

    def number(self, value: int, kind: Any = _I64) -> Any:
        many = isinstance(kind, ir.VectorType)
        return ir.Constant(kind, [value] * kind.count if many else value)

    def add(self, address: Any, offset: int) -> Any:
        return self.builder.add(address, self.number(offset)) if offset else address

    def load(self, address: Any, kind: Any, align: int) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def store(self, value: Any, address: Any, align: int) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=align)

    def splat(self, value: Any) -> Any:
        kind = ir.VectorType(value.type, self.lanes)
        none = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(none, value, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(one, none, self.number(0, self.ints))

    def zeros(self) -> Any:
        """Return a variable that begins with zeros here."""
        place = cgutils.alloca_once(self.builder, self.floats)
        self.builder.store(ir.Constant(self.floats, [0.0] * self.lanes), place)
        return place

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{self.lanes}f32", self.floats, a, b, c)

    def prefetch(self, address: Any) -> None:
        """Ask for a line of data in the second cache, to read it soon."""
        pointer = self.builder.inttoptr(address, _I8.as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.Constant(_I32, flag) for flag in (0, 1, 1)))

    def scales(self, address: Any) -> Any:
        """Return float16 of each lane."""
        half = ir.VectorType(_HALF, self.lanes)
        return self.builder.fpext(self.load(address, half, 2 * self.lanes), self.floats)


def _bytes_of(code: _Code, value: Any) -> Any:
    return code.builder.bitcast(value, ir.VectorType(_I8, 4 * code.lanes))


class _Products:
    """Sums of products of weights, 0 up to some largest value, with the inputs of a row, in some mode."""

    def __init__(self, code: _Code, mode: Mode, largest: int, offset: int) -> None:
        self.code, self.mode, self.largest = code, mode, largest
        self.is_signed = offset == 128 and mode.name in ("avx2", "dotprod")
        self.shift = 0 if self.is_signed or not offset else offset.bit_length() - 1

    def prepare(self, weights: Any) -> Any:
        """Return what `add` reads of a vector of weights, once for all rows."""
        code, builder = self.code, self.code.builder
        if not self.is_signed:
            return weights
        signed = builder.xor(weights, code.number(-0x7F7F7F80, code.ints))
        if self.mode.name == "dotprod":
            return signed
        kind = ir.VectorType(_I8, 32)
        return code.call("llvm.abs.v32i8", kind, _bytes_of(code, signed), ir.Constant(ir.IntType(1), 0)), signed

    def total(self, weights: list[Any], inputs: list[Any], minus_sum: Any) -> Any:
        """Return the sums of four vectors of weights times the same of a row, less the offset times its inputs."""
        code, builder = self.code, self.code.builder
        start = code.number(0, code.ints)
        if self.shift:
            start = builder.shl(code.splat(minus_sum), code.number(self.shift, code.ints))
        if self.mode.name == "avx2":
            return self._in_halves(weights, inputs, start)
        for w, x in zip(weights, inputs, strict=True):
            start = self._add(start, w, x)
        return start

    def _add(self, total: Any, w: Any, x: Any) -> Any:
        code, builder, bits = self.code, self.code.builder, 32 * self.code.lanes
        if self.mode.name == "dotprod":
            parts = (_bytes_of(code, w), _bytes_of(code, x))
            return code.call("llvm.aarch64.neon.sdot.v4i32.v16i8", code.ints, total, *parts)
        if self.mode.name != "plain":
            return code.call(f"llvm.x86.avx512.vpdpbusd.{bits}", code.ints, total, w, x)
        for i in range(4):
            weight = builder.and_(builder.lshr(w, code.number(8 * i, code.ints)), code.number(255, code.ints))
            value = builder.ashr(builder.shl(x, code.number(24 - 8 * i, code.ints)), code.number(24, code.ints))
            total = builder.add(total, builder.mul(weight, value))
        return total

    def _in_halves(self, weights: list[Any], inputs: list[Any], total: Any) -> Any:
        """Without instructions for four products: sums of pairs in int16, of as many as cannot overflow."""
        code, builder, kind = self.code, self.code.builder, ir.VectorType(_I16, 16)
        room = 32767 // (2 * (128 if self.is_signed else 127) * (127 if self.is_signed else self.largest))
        short, count = None, 0
        for w, x in zip(weights, inputs, strict=True):
            if self.is_signed:
                a = w[0]
                b = code.call("llvm.x86.avx2.psign.b", a.type, _bytes_of(code, x), _bytes_of(code, w[1]))
            else:
                a, b = _bytes_of(code, w), _bytes_of(code, x)
            pairs = code.call("llvm.x86.avx2.pmadd.ub.sw", kind, a, b)
            short, count = (pairs if short is None else builder.add(short, pairs)), count + 1
            if count == min(room, len(weights)):
                ones = code.number(1, kind)
                total = builder.add(total, code.call("llvm.x86.avx2.pmadd.wd", code.ints, short, ones))
                short, count = None, 0
        assert short is None, "four are a multiple of what fits"
        return total


def _weights(code: _Code, kind: str, block: Any, at: int) -> list[Any]:
    """Return eight vectors of a block's weights; vector j has inputs 4j to 4j + 3."""
    builder, ints = code.builder, code.ints

    def read(j: int) -> Any:
        return code.load(code.add(block, 64 * j + at), ints, 4 * code.lanes)

    def shifted(value: Any, right: int) -> Any:
        shift = builder.lshr if right >= 0 else builder.shl
        return shift(value, code.number(abs(right), ints)) if right else value

    def masked(value: Any, byte: int) -> Any:
        return builder.and_(value, code.number(byte * 0x01010101, ints))

    if kind == "q8":
        return [read(j) for j in range(8)]
    raw = [read(j) for j in range(4)]
    low = [masked(each, 15) for each in raw] + [masked(shifted(each, 4), 15) for each in raw]
    if kind == "q5":
        fifth = read(4)
        return [builder.or_(each, masked(shifted(fifth, j - 4), 16)) for j, each in enumerate(low)]
    if kind == "q6":
        high = [read(4), read(5)]
        return [builder.or_(each, masked(shifted(high[j // 4], 2 * (j % 4) - 4), 48)) for j, each in enumerate(low)]
    return low


def _tile(builder: Any, mode: Mode, kind: str, rows: int, args: tuple[Any, ...]) -> None:
    """Emit the products of one group with some rows: group, blocks, inputs, out, bytes between its rows, bias."""
    group, blocks, inputs, out, stride, bias = args
    code, layout = _Code(builder, mode.lanes), LAYOUTS[kind]
    products = _Products(code, mode, layout.largest, layout.offset)
    parts = [4 * mode.lanes * part for part in range(GROUP // mode.lanes)]
    totals = {(r, at): cgutils.alloca_once(builder, code.floats) for r in range(rows) for at in parts}
    for (_, at), total in totals.items():
        builder.store(code.load(code.add(bias, at), code.floats, 4), total)
    row_bytes = builder.mul(blocks, code.number(48))
    behind = builder.add(group, builder.mul(blocks, code.number(layout.block_bytes)))
    with cgutils.for_range(builder, blocks, intp=_I64) as loop:
        block = builder.add(group, builder.mul(loop.index, code.number(layout.block_bytes)))
        scales = builder.add(behind, builder.mul(loop.index, code.number(32)))
        first = builder.add(inputs, builder.mul(loop.index, code.number(48)))
        for line in range(_AHEAD, _AHEAD + layout.block_bytes, 64):
            code.prefetch(code.add(block, line))
        for at in parts:
            w = [products.prepare(each) for each in _weights(code, kind, block, at)]
            scale = code.scales(code.add(scales if layout.scale_at < 0 else block, max(layout.scale_at, 0) + at // 2))
            second_at = layout.scale_at + 2 * GROUP + at // 2
            second = code.scales(code.add(block, second_at)) if layout.halves == 2 else None
            minimum = code.scales(code.add(block, layout.minimum_at + at // 2)) if layout.minimum_at >= 0 else None
            for r in range(rows):
                x = builder.add(first, builder.mul(row_bytes, code.number(r)))
                values = [code.splat(code.load(code.add(x, 4 * j), _I32, 4)) for j in range(8)]
                minus = [code.load(code.add(x, 40 + 4 * half), _I32, 4) for half in range(2)]
                left, right = (
                    products.total(w[4 * half : 4 * half + 4], values[4 * half : 4 * half + 4], minus[half])
                    for half in range(2)
                )
                d, total = code.splat(code.load(code.add(x, 32), _F32, 4)), totals[r, at]
                result = builder.load(total)
                if second is None:
                    sums = builder.sitofp(builder.add(left, right), code.floats)
                    result = code.fma(sums, builder.fmul(scale, d), result)
                else:
                    result = code.fma(builder.sitofp(left, code.floats), builder.fmul(scale, d), result)
                    result = code.fma(builder.sitofp(right, code.floats), builder.fmul(second, d), result)
                if minimum is not None:
                    result = code.fma(minimum, code.splat(code.load(code.add(x, 36), _F32, 4)), result)
                builder.store(result, total)
    for (r, at), total in totals.items():
        code.store(builder.load(total), code.add(builder.add(out, builder.mul(stride, code.number(r))), at), 4)


def _make_multiply(kind: str) -> Callable[..., None]:
    @intrinsic
    def multiply(
        _t: Any, _group: Any, _blocks: Any, _rows: Any, _inputs: Any, _out: Any, _stride: Any, _bias: Any
    ) -> Any:
        """Put the products of a group with rows of quantized inputs, plus the bias, into float32 out; all int64."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            group, blocks, rows, inputs, out, stride, bias = args
            mode = find_mode()
            assert mode is not None, "nobody asks for them elsewhere"
            row_bytes, most = builder.mul(blocks, ir.Constant(_I64, 48)), ir.Constant(_I64, mode.most_rows)
            with cgutils.for_range_slice(builder, ir.Constant(_I64, 0), rows, most, intp=_I64) as (row, _):
                left = builder.sub(rows, row)
                here = (builder.add(inputs, builder.mul(row, row_bytes)), builder.add(out, builder.mul(row, stride)))
                for count in range(1, mode.most_rows + 1):
                    compare = ">=" if count == mode.most_rows else "=="
                    with builder.if_then(builder.icmp_signed(compare, left, ir.Constant(_I64, count))):
                        _tile(builder, mode, kind, count, (group, blocks, here[0], here[1], stride, bias))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


multiply_q4, multiply_q5, multiply_q6, multiply_q8 = (_make_multiply(kind) for kind in LAYOUTS)


@intrinsic
def quantize_row(_typing: Any, _values: Any, _blocks: Any, _out: Any) -> Any:
    """Quantize a float32 row at an address, writing 48 bytes per block to `out`. All arguments are int64."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        values, blocks, out = args
        code = _Code(builder, BLOCK)
        name = f"v{BLOCK}f32"
        with cgutils.for_range(builder, blocks, intp=_I64) as loop:
            at = builder.add(out, builder.mul(loop.index, code.number(48)))
            x = code.load(builder.add(values, builder.mul(loop.index, code.number(128))), code.floats, 4)
            size = code.call(f"llvm.vector.reduce.fmaximum.{name}", _F32, code.call(f"llvm.fabs.{name}", x.type, x))
            some = builder.fcmp_unordered("!=", size, ir.Constant(_F32, 0.0))
            factor = builder.select(some, builder.fdiv(ir.Constant(_F32, 127.0), size), ir.Constant(_F32, 0.0))
            near = code.call(f"llvm.rint.{name}", x.type, builder.fmul(x, code.splat(factor)))
            whole = code.call(f"llvm.fptosi.sat.{'v32i32'}.{name}", code.ints, near)
            code.store(builder.trunc(whole, ir.VectorType(_I8, BLOCK)), at, 1)
            none = ir.Constant(code.ints, ir.Undefined)
            halves = [
                builder.shuffle_vector(
                    whole, none, ir.Constant(ir.VectorType(_I32, 16), list(range(first, first + 16)))
                )
                for first in (0, 16)
            ]
            sums = [code.call("llvm.vector.reduce.add.v16i32", _I32, half) for half in halves]
            d = builder.fdiv(size, ir.Constant(_F32, 127.0))
            code.store(d, code.add(at, 32), 4)
            code.store(builder.fmul(d, builder.sitofp(builder.add(*sums), _F32)), code.add(at, 36), 4)
            for half in range(2):
                code.store(builder.neg(sums[half]), code.add(at, 40 + 4 * half), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _load_16(code: _Code, address: Any, kind: str) -> Any:
    """Return 16 keys or values in float32."""
    if kind == "float32":
        return code.load(address, code.floats, 4)
    bits = code.builder.zext(code.load(address, ir.VectorType(_I16, 16), 2), code.ints)
    return code.builder.bitcast(code.builder.shl(bits, code.number(16, code.ints)), code.floats)


def _make_score(kind: str) -> Callable[..., None]:
    @intrinsic
    def score(_typing: Any, _query: Any, _keys: Any, _offset: Any, _size: Any, _out: Any) -> Any:
        """Put the products of a float32 query with 16 keys into out: key i is at the address keys[i] + offset."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            query, keys, offset, size, out = args
            code = _Code(builder, 16)
            each = [builder.add(code.load(code.add(keys, 8 * i), _I64, 8), offset) for i in range(16)]
            sums = [code.zeros() for _ in range(16)]
            zero, step = code.number(0), code.number(16)
            with cgutils.for_range_slice(builder, zero, size, step, intp=_I64) as (j, _):
                x = code.load(builder.add(query, builder.mul(j, code.number(4))), code.floats, 4)
                at = builder.mul(j, code.number(_ITEMS[kind]))
                for key, total in zip(each, sums, strict=True):
                    builder.store(code.fma(x, _load_16(code, builder.add(key, at), kind), builder.load(total)), total)
            vectors = [builder.load(total) for total in sums]
            even, odd = (ir.Constant(code.ints, list(range(first, 32, 2))) for first in (0, 1))
            while len(vectors) > 1:  # pairs of values next to each other are added, until each vector's are one
                vectors = [
                    builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))
                    for a, b in zip(vectors[::2], vectors[1::2], strict=True)
                ]
            code.store(vectors[0], out, 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return score


def _make_blend(kind: str) -> Callable[..., None]:
    @intrinsic
    def blend(
        _t: Any, _weights: Any, _values: Any, _offset: Any, _count: Any, _size: Any, _factor: Any, _out: Any
    ) -> Any:
        """Put the sum of values times a weight each, times a float32 factor, into float32 out; count is even."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            weights, values, offset, count, size, factor, out = args
            code = _Code(builder, 16)

            def run(first: Any, width: int) -> None:
                totals = [[code.zeros() for _ in range(width)] for _ in range(2)]
                with cgutils.for_range_slice(builder, code.number(0), count, code.number(2), intp=_I64) as (t, _):
                    for turn in range(2):  # two sums, so that additions do not wait for each other
                        place = builder.add(weights, builder.mul(t, code.number(4)))
                        weight = code.splat(code.load(code.add(place, 4 * turn), _F32, 4))
                        address = builder.add(values, builder.mul(t, code.number(8)))
                        row = builder.add(code.load(code.add(address, 8 * turn), _I64, 8), offset)
                        row = builder.add(row, builder.mul(first, code.number(_ITEMS[kind])))
                        for i, total in enumerate(totals[turn]):
                            x = _load_16(code, code.add(row, 16 * _ITEMS[kind] * i), kind)
                            builder.store(code.fma(weight, x, builder.load(total)), total)
                for i, (a, b) in enumerate(zip(*totals, strict=True)):
                    total = builder.fmul(builder.fadd(builder.load(a), builder.load(b)), code.splat(factor))
                    place = builder.add(out, builder.mul(first, code.number(4)))
                    code.store(total, code.add(place, 64 * i), 4)

            whole = builder.and_(size, code.number(-64))
            with cgutils.for_range_slice(builder, code.number(0), whole, code.number(64), intp=_I64) as (first, _):
                run(first, 4)
            with cgutils.for_range_slice(builder, whole, size, code.number(16), intp=_I64) as (first, _):
                run(first, 1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5, types.float32, types.int64), generate

    return blend


@intrinsic
def weigh(_typing: Any, _scores: Any, _count: Any) -> Any:
    """Replace float32 scores, a multiple of 16, by e to their distance from the highest; return the sum as float32.

    -infinity becomes 0. The polynomial is Cephes' expf: relative error 1e-7.
    """

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        scores, count = args
        code, start = _Code(builder, 16), ir.Constant(_I64, 0)

        def all_of(value: float) -> Any:
            return ir.Constant(code.floats, [value] * 16)

        highest, total = cgutils.alloca_once(builder, code.floats), code.zeros()
        builder.store(all_of(-3e38), highest)
        with cgutils.for_range_slice(builder, start, count, code.number(16), intp=_I64) as (t, _):
            x = code.load(builder.add(scores, builder.mul(t, code.number(4))), code.floats, 4)
            known = builder.load(highest)
            builder.store(builder.select(builder.fcmp_ordered(">", x, known), x, known), highest)
        top = code.splat(code.call("llvm.vector.reduce.fmax.v16f32", _F32, builder.load(highest)))
        with cgutils.for_range_slice(builder, start, count, code.number(16), intp=_I64) as (t, _):
            place = builder.add(scores, builder.mul(t, code.number(4)))
            given = builder.fsub(code.load(place, code.floats, 4), top)
            x = builder.select(builder.fcmp_ordered("<", given, all_of(-87.0)), all_of(-87.0), given)
            n = code.call("llvm.floor.v16f32", code.floats, code.fma(x, all_of(1.44269504), all_of(0.5)))
            r = code.fma(n, all_of(2.12194440e-4), code.fma(n, all_of(-0.693359375), x))
            p = all_of(1.9875691500e-4)
            for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
                p = code.fma(p, r, all_of(c))
            p = builder.fadd(code.fma(p, builder.fmul(r, r), r), all_of(1.0))
            whole = code.call("llvm.fptosi.sat.v16i32.v16f32", code.ints, n)
            power = builder.shl(builder.add(whole, code.number(127, code.ints)), code.number(23, code.ints))
            weight = builder.fmul(p, builder.bitcast(power, code.floats))
            weight = builder.select(builder.fcmp_ordered("<", given, all_of(-1e30)), all_of(0.0), weight)
            code.store(weight, place, 4)
            builder.store(builder.fadd(builder.load(total), weight), total)
        value = builder.load(total)
        for half in (8, 4, 2, 1):
            turned = ir.Constant(code.ints, [(i + half) % 16 for i in range(16)])
            value = builder.fadd(value, builder.shuffle_vector(value, value, turned))
        return builder.extract_element(value, ir.Constant(_I32, 0))

    return types.float32(types.int64, types.int64), generate


_ITEMS = {"bfloat16": 2, "float32": 4}
"""Bytes of a key's or value's element."""

score_bfloat16, score_float32 = (_make_score(kind) for kind in _ITEMS)
blend_bfloat16, blend_float32 = (_make_blend(kind) for kind in _ITEMS)
