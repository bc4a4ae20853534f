"""Numba kernels for the parts of a step that are not matrix products, in bfloat16 and float32.

A row's result depends on that row and its own context only, with one order of additions: a token gets the
same bits whether it is computed alone, behind a draft, or in a larger batch.

Every kernel is a C function of a job: int64 values, of which the first counts the tasks taken so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from draftwise.engine.kernels.numeric import (
    exp,
    float_of,
    four_dots,
    inline,
    load,
    next_task,
    pointer,
    store,
    sum_of_squares,
)

_KEYS = 64
"""Keys of one pass: as float32, together with their values, they fit into the first-level cache."""
_ROWS = 4
"""Query rows that share the reading of a key."""


@inline
def add_norm(counter: Any, dtype: Any) -> None:
    """RMS norm of x + delta. Job: counter, x, delta (or 0), weight, sum, out, rows, width, bits of epsilon."""
    job = carray(counter, 9)
    rows, width, eps = job[6], job[7], float_of(np.uint32(job[8]))
    x, delta = carray(pointer(job[1], dtype), rows * width), carray(pointer(job[2], dtype), rows * width)
    total, out = carray(pointer(job[4], dtype), rows * width), carray(pointer(job[5], dtype), rows * width)
    weight, row = carray(pointer(job[3], dtype), width), np.empty(width, np.float32)
    i = next_task(counter)
    while i < rows:
        base = i * width
        if job[2] == 0:
            for j in range(width):
                row[j] = load(x, base + j)
        else:
            for j in range(width):
                store(total, base + j, load(x, base + j) + load(delta, base + j))
            for j in range(width):
                row[j] = load(total, base + j)
        scale = np.float32(1) / np.sqrt(sum_of_squares(row, 0, width) / np.float32(width) + eps)
        for j in range(width):
            store(out, base + j, row[j] * scale * load(weight, j))
        i = next_task(counter)


@inline
def silu_mul(counter: Any, dtype: Any) -> None:
    """silu(gate) * up. Job: counter, gate and up beside each other, out, rows, width."""
    job = carray(counter, 5)
    rows, width = job[3], job[4]
    x, out = carray(pointer(job[1], dtype), rows * width * 2), carray(pointer(job[2], dtype), rows * width)
    i = next_task(counter)
    while i < rows:
        gate, up, base = i * 2 * width, (i * 2 + 1) * width, i * width
        for j in range(width):
            g = load(x, gate + j)
            store(out, base + j, g / (np.float32(1) + exp(-g)) * load(x, up + j))
        i = next_task(counter)


@inline
def _turn_head(x: Any, source: int, weight: Any, eps: Any, cos: Any, sin: Any, angle: int, out: Any, at: int) -> None:
    """Put the head at x[source:] into out[at:] as float32: normed if there is a weight, then rotated."""
    half = cos.shape[1]
    for j in range(2 * half):
        out[at + j] = load(x, source + j)
    if weight.size > 0:
        scale = np.float32(1) / np.sqrt(sum_of_squares(out, at, 2 * half) / np.float32(2 * half) + eps)
        for j in range(2 * half):
            out[at + j] *= scale * load(weight, j)
    for j in range(half):
        left, right = out[at + j], out[at + half + j]
        out[at + j] = left * cos[angle, j] - right * sin[angle, j]
        out[at + half + j] = right * cos[angle, j] + left * sin[angle, j]


@inline
def attend(counter: Any, dtype: Any) -> None:
    """Rotate, store and (for sequences of at most `longest` new tokens) attend; a task is a sequence's KV head.

    Job: counter, qkv, out, cos, sin, keys, values, weights of the norms of q and k (or 0), bits of epsilon,
    plan table, sequences, table width, tokens, query heads, KV heads, head size, page size, slots,
    bits of the scale, longest.
    """
    job = carray(counter, 21)
    num_seqs, width, tokens, heads, groups, size = job[11], job[12], job[13], job[14], job[15], job[16]
    block, slots, longest = job[17], job[18], job[20]
    eps, scale = float_of(np.uint32(job[9])), float_of(np.uint32(job[19]))
    row = (heads + 2 * groups) * size
    qkv, out = carray(pointer(job[1], dtype), tokens * row), carray(pointer(job[2], dtype), tokens * heads * size)
    cos = carray(pointer(job[3], np.float32), (tokens, size // 2))
    sin = carray(pointer(job[4], np.float32), (tokens, size // 2))
    keys = carray(pointer(job[5], dtype), slots * groups * size)
    values = carray(pointer(job[6], dtype), slots * groups * size)
    q_norm = carray(pointer(job[7], dtype), size if job[7] != 0 else 0)
    k_norm = carray(pointer(job[8], dtype), size if job[8] != 0 else 0)
    table = carray(pointer(job[10], np.int64), (num_seqs, width))
    head, group = np.empty(size, np.float32), heads // groups
    task = next_task(counter)
    while task < num_seqs * groups:
        seq, g = task // groups, task % groups
        start, num, context = table[seq, 0], table[seq, 1], table[seq, 2]
        for i in range(num):
            t = context - num + i
            slot = ((table[seq, 3 + t // block] * block + t % block) * groups + g) * size
            source = (start + i) * row + (heads + g) * size
            _turn_head(qkv, source, k_norm, eps, cos, sin, start + i, head, 0)
            for j in range(size):
                store(keys, slot + j, head[j])
                values[slot + j] = qkv[source + groups * size + j]
        if num <= longest:
            rows = -(-num * group // _ROWS) * _ROWS
            q = np.zeros(rows * size, np.float32)
            for i in range(num):
                for h in range(group):
                    source, at = (start + i) * row + (g * group + h) * size, (i * group + h) * size
                    _turn_head(qkv, source, q_norm, eps, cos, sin, start + i, q, at)
                    for j in range(size):
                        q[at + j] *= scale
            result = _attend_head(q, rows, num * group, group, context, keys, values, table, seq, g, groups, size, block)
            for i in range(num):
                for h in range(group):
                    at, to = (i * group + h) * size, ((start + i) * heads + g * group + h) * size
                    for j in range(size):
                        store(out, to + j, result[at + j])
        task = next_task(counter)


@inline
def _attend_head(q, rows, used, group, context, keys, values, table, seq, g, groups, size, block):  # type: ignore[no-untyped-def]
    """Return float32 attention of the query rows of one KV head, online softmax over passes of _KEYS keys."""
    acc, peak, norm = np.zeros(rows * size, np.float32), np.full(rows, np.float32(-1e30)), np.zeros(rows, np.float32)
    k, v = np.empty(_KEYS * size, np.float32), np.empty(_KEYS * size, np.float32)
    weights = np.empty(rows * _KEYS, np.float32)
    for first in range(0, context, _KEYS):
        count = min(_KEYS, context - first)
        for t in range(count):
            place = first + t
            source = ((table[seq, 3 + place // block] * block + place % block) * groups + g) * size
            for j in range(size):
                k[t * size + j] = load(keys, source + j)
            for j in range(size):
                v[t * size + j] = load(values, source + j)
        padded = -(-count // 4) * 4
        for j in range(count * size, padded * size):
            v[j] = np.float32(0)
        for r in range(0, rows, _ROWS):
            for t in range(count):
                s0, s1, s2, s3 = four_dots(q, r * size, k, t * size, size)
                weights[r * _KEYS + t] = s0
                weights[(r + 1) * _KEYS + t] = s1
                weights[(r + 2) * _KEYS + t] = s2
                weights[(r + 3) * _KEYS + t] = s3
        for r in range(used):
            visible = min(count, context - (used - 1 - r) // group - first)
            if visible > 0:
                shrink = _softmax_pass(weights, r * _KEYS, visible, padded, peak, norm, r)
                _add_values(acc, r * size, shrink, weights, r * _KEYS, v, padded, size)
    for r in range(used):
        for j in range(size):
            acc[r * size + j] /= norm[r]
    return acc


@inline
def _softmax_pass(weights: Any, at: int, visible: int, padded: int, peak: Any, norm: Any, r: int) -> Any:
    """Turn scores into weights relative to the new peak; return the factor on what was summed before."""
    top = peak[r]
    for t in range(at, at + visible):
        top = max(top, weights[t])
    shrink = exp(peak[r] - top)
    for t in range(at, at + visible):
        weights[t] = exp(weights[t] - top)
    total = np.float32(0)
    for t in range(at, at + visible):
        total += weights[t]
    for t in range(at + visible, at + padded):
        weights[t] = np.float32(0)
    peak[r], norm[r] = top, norm[r] * shrink + total
    return shrink


@inline
def _add_values(acc: Any, to: int, shrink: Any, weights: Any, at: int, v: Any, padded: int, size: int) -> None:
    """acc = acc * shrink + weights @ v, four values at a time."""
    for j in range(size):
        acc[to + j] *= shrink
    for t in range(0, padded, 4):
        w0, w1, w2, w3 = weights[at + t], weights[at + t + 1], weights[at + t + 2], weights[at + t + 3]
        base = t * size
        for j in range(size):
            a = w0 * v[base + j] + w1 * v[base + size + j]
            b = w2 * v[base + 2 * size + j] + w3 * v[base + 3 * size + j]
            acc[to + j] += a + b
