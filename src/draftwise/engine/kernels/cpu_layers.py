"""All layers of a quantized model as one call, so that a step takes little more than its products.

Shape letters: N rows of a pass, R of them that are wanted, H hidden size, E heads of q, k and v times their size.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.kernels.cpu import QuantizedLinear, Team
from draftwise.engine.kernels.cpu_code import compile_kernel
from draftwise.engine.kernels.cpu_layers_code import COLUMNS, JOB, LAYER, PHASES, run_layers
from draftwise.engine.kernels.reference import Rotations
from draftwise.engine.memory.kv import PagedKV
from draftwise.machine.folders import one_at_a_time


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """Weights of a layer: an RMS norm, attention, another norm, an MLP gated by SiLU."""

    input_norm: Tensor
    qkv: QuantizedLinear
    qk_norms: tuple[Tensor, Tensor] | None
    o: QuantizedLinear
    post_norm: Tensor
    gate_up: QuantizedLinear
    down: QuantizedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a pass, as `AttentionPlan` has them."""

    slots_N: Tensor
    page_table_BP: Tensor
    looks: tuple[Tensor, Tensor, int, int]
    wanted_R: Tensor | None


_FEW_ROWS = 32
"""Rows up to which a call is over before another thread would be worth waking."""


@functools.cache
def _compile() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the kernel for few rows, and for many."""
    with one_at_a_time("cpu-kernels"):
        compiled = compile_kernel(run_layers)
    return Team().kernel(compiled), Team().kernel(compiled, is_long=True)


@functools.cache
def _functions() -> tuple[int, int]:
    """Return the addresses of what yields a core, and of what counts the threads of a parallel region."""
    count = Team().count_threads
    if count == 0:  # one thread waits for nobody
        return 0, 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0, count


class QuantizedLayers:
    """Runs all layers; a row has the same bits for any other rows and threads.

    Args:
        layers: their weights.
        shape: of the model.
        eps: of all norms.
        scale: of the scores of attention.
        window: positions that a row looks at; None: all.
    """

    def __init__(
        self, layers: Sequence[LayerParts], shape: ModelShape, *, eps: float, scale: float, window: int | None
    ) -> None:
        self._layers, self._shape = layers, shape
        self._eps, self._scale = (int(np.float32(value).view(np.uint32)) for value in (eps, scale))
        self._window = window
        self._table_of: tuple[int, Tensor] = (0, torch.empty(0))

    def compile(self) -> None:
        """Compile what the first call would compile otherwise."""
        _compile()

    def __call__(
        self, x_NH: Tensor, rotations: Rotations, kv: PagedKV, rows: Rows, states: Mapping[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after the last attention, and what the last MLP adds to it, of wanted rows.

        Args:
            x_NH: float32, contiguous; the residual stream that enters, which is overwritten.
            rotations: cosine and sine of the rows.
            kv: float32 pages.
            rows: which rows.
            states: receives the residual stream that enters some layers, by their number.
        """
        shape, num_rows = self._shape, len(x_NH)
        heads, groups, size, inner = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.intermediate_size
        owners_N, lasts_N, longest, _ = rows.looks
        table = self._table(kv, longest)
        for i in range(len(self._layers)):
            table[i, 14] = 0
        for i, state in states.items():
            table[i, 14], table[i, 15] = state.data_ptr(), 4 * state.stride(0)
        count = num_rows if rows.wanted_R is None else len(rows.wanted_R)
        threads, room = torch.get_num_threads(), -(-longest // 16) * 16
        widest = max(shape.hidden_size, heads * size, inner)
        sizes = {
            "delta": 4 * num_rows * shape.hidden_size,
            "qkv": 4 * num_rows * (heads + 2 * groups) * size,
            "gate_up": 8 * num_rows * inner,
            "attended": 4 * num_rows * heads * size,
            "inputs": num_rows * widest // 32 * 48,
            "counters": 64 * (2 + PHASES * len(self._layers)),
            "scratch": threads * (12 * room + 8 * size + 4 * max(shape.hidden_size, COLUMNS)),
        }
        places, end = {}, 0
        for name, size_of in sizes.items():
            places[name], end = end, end + -(-size_of // 64) * 64
        memory = torch.empty(end + 64, dtype=torch.uint8)
        base = -(-memory.data_ptr() // 64) * 64
        first = base - memory.data_ptr()
        memory[first + places["counters"] :][: sizes["counters"]] = 0
        give_way, count_threads = _functions()
        values = {name: base + place for name, place in places.items()} | {
            "layers": table.data_ptr(),
            "num_layers": len(self._layers),
            "rows": num_rows,
            "hidden": shape.hidden_size,
            "heads": heads,
            "groups": groups,
            "size": size,
            "inner": inner,
            "x": x_NH.data_ptr(),
            "wanted": 0 if rows.wanted_R is None else rows.wanted_R.data_ptr(),
            "num_wanted": 0 if rows.wanted_R is None else count,
            "cos": rotations[0].data_ptr(),
            "sin": rotations[1].data_ptr(),
            "slots": rows.slots_N.data_ptr(),
            "table": rows.page_table_BP.data_ptr(),
            "table_width": rows.page_table_BP.stride(0),
            "owners": owners_N.data_ptr(),
            "lasts": lasts_N.data_ptr(),
            "eps": self._eps,
            "scale": self._scale,
            "block": kv.block_size,
            "room": room,
            "yield": give_way,
            "count_threads": count_threads,
        }
        _compile()[num_rows > _FEW_ROWS](True, *(values[name] for name in JOB[1:]))
        delta = memory[first + places["delta"] :][: 4 * count * shape.hidden_size].view(torch.float32)
        return x_NH if rows.wanted_R is None else x_NH[rows.wanted_R], delta.view(count, shape.hidden_size)

    def _table(self, kv: PagedKV, longest: int) -> Tensor:
        """Return the layers' rows for these pages."""
        key, known = self._table_of
        if key != kv.layers[0].data_ptr():
            known = torch.tensor([self._describe(i, layer, kv) for i, layer in enumerate(self._layers)])
            self._table_of = kv.layers[0].data_ptr(), known
        known[:, LAYER.index("window")] = longest if self._window is None else self._window
        return known

    def _describe(self, index: int, layer: LayerParts, kv: PagedKV) -> list[int]:
        chunks = {name: getattr(layer, name).chunks for name in ("qkv", "o", "gate_up", "down")}
        q_norm, k_norm = (0, 0) if layer.qk_norms is None else (each.data_ptr() for each in layer.qk_norms)
        values = {name: each.data_ptr() for name, each in chunks.items()}
        values |= {f"{name}_chunks": len(each) for name, each in chunks.items()}
        values |= {"input_norm": layer.input_norm.data_ptr(), "post_norm": layer.post_norm.data_ptr()}
        values |= {"pages": kv.layers[index].data_ptr(), "q_norm": q_norm, "k_norm": k_norm}
        return [values.get(name, 0) for name in LAYER]
