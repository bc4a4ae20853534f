"""Layers of a quantized network, and chains of draft tokens, as one call that takes little longer than its products.

Shape letters: N rows of a pass, R of them needed, B sequences, M draft tokens of each, H hidden size.
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
from draftwise.engine.kernels.cpu_code import COLUMNS, OPERATION_SIZE, OPERATIONS, compile_kernel, run_operations
from draftwise.engine.kernels.cpu_layouts import LAYOUTS, QuantizedTable, Table
from draftwise.engine.kernels.reference import RotaryTable
from draftwise.engine.memory.kv import PagedKV
from draftwise.machine.folders import one_at_a_time


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """Weights of a layer: an RMS norm, attention, another norm, an MLP gated by SiLU."""

    input_norm: Tensor | None
    """None: the caller norms the first layer's input."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Parts of a model before and after its layers."""

    embedding: Table
    factor: float
    """Factor of the embeddings."""
    norm: Tensor
    head: QuantizedLinear | None
    """None: a call picks no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainParts:
    """Parts, before and after the layers, of a network that drafts token by token."""

    embedding: Table
    factor: float = 1.0
    """Factor of the embeddings."""
    reads_state: bool = True
    norms: tuple[Tensor, Tensor] | None = None
    """Norm weights for the embedding and for the state."""
    state_first: bool = False
    skips_first: bool = False
    """Whether the row at position 0 gets a zero embedding."""
    projection: QuantizedLinear | None = None
    """Projects embedding and state to the residual stream. None: the stream is the state, or else the embedding."""
    input_norm: Tensor | None = None
    """Norm after the projection, if layers do not norm their input."""
    starts_normed: bool = False
    """Whether the residual stream starts as the normed state."""
    last_norm: Tensor | None
    carries_normed: bool
    """Whether the next row's state is the head's input instead of the residual stream."""
    head: QuantizedLinear
    target_ids_U: Tensor | None


_FEW_ROWS = 32
"""Rows up to which a call is over before another thread would be worth waking."""
_Value = int | str
"""A number, or the name of one that each call has."""


@functools.cache
def _compile() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the kernel for few rows, and for many."""
    with one_at_a_time("cpu-kernels"):
        compiled = compile_kernel(run_operations)
    return Team().kernel(compiled), Team().kernel(compiled, is_long=True)


@functools.cache
def _functions() -> tuple[int, int]:
    """Return the addresses of what yields a core, and of what counts the threads of a parallel region."""
    count = Team().count_threads
    if count == 0:  # one thread waits for nobody
        return 0, 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0, count


class _Program:
    """Operations that are written once; what differs from call to call has a name in them."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._places: list[tuple[int, int, str]] = []
        self._ready: tuple[np.ndarray, np.ndarray, list[tuple[str, int]], np.ndarray] | None = None

    def append(self, operation: str, **values: _Value) -> None:
        """Add an operation of `OPERATIONS`; what is not given is 0. `name+8` is 8 bytes behind a named address."""
        row, fields = [0] * OPERATION_SIZE, OPERATIONS[operation]
        row[0] = list(OPERATIONS).index(operation)
        for name, value in values.items():
            at = 1 + fields.index(name)
            if isinstance(value, str):
                self._places.append((len(self._rows), at, value))
            else:
                row[at] = value
        self._rows.append(row)

    def run(self, values: dict[str, int], sizes: dict[str, int], *, longest: int, width: int, rows: int) -> Tensor:
        """Run all operations; return the memory of `sizes`, which begins with the first of them.

        Args:
            values: by name.
            sizes: bytes of buffers by name, aligned to 64.
            longest: positions that a row looks at at most.
            width: values of the widest row that is normed, and of a head.
            rows: rows of the largest operation.
        """
        if self._ready is None:
            names = sorted({name for _, _, name in self._places})
            index = {name: i for i, name in enumerate(names)}
            which = [index[name] for _, _, name in self._places]
            at = [row * OPERATION_SIZE + place for row, place, _ in self._places]
            parts = [name.partition("+") for name in names]
            known_as = [(name, int(offset or 0)) for name, _, offset in parts]
            self._ready = np.array(self._rows, np.int64), np.array(at), known_as, np.array(which)
        operations, at_places, known_as, which_value = self._ready
        threads, room = torch.get_num_threads(), -(-longest // 16) * 16
        scratch = 12 * room + 4 * max(width, COLUMNS)
        places, end = {}, 0
        for name, size in (*sizes.items(), ("counters", 64 * (2 + len(operations))), ("scratch", threads * scratch)):
            places[name], end = end, end + -(-size // 64) * 64
        memory = torch.empty(end + 64, dtype=torch.uint8)
        base = -(-memory.data_ptr() // 64) * 64
        memory = memory[base - memory.data_ptr() :]
        memory[places["counters"] : places["scratch"]] = 0
        known = {name: base + place for name, place in places.items()} | values
        own = np.array([known[name] + offset for name, offset in known_as], np.int64)
        operations.ravel()[at_places] = own[which_value]
        _compile()[rows > _FEW_ROWS](
            True,
            operations.ctypes.data,
            len(operations),
            *(base + places[name] for name in ("counters", "scratch")),
            scratch,
            room,
            *_functions(),
        )
        return memory


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


class QuantizedLayers:
    """Runs all layers. A row's bits do not depend on other rows or the number of threads.

    Args:
        window: number of positions that a row attends to. None: all.
        ends: what a call computes before and after them. None: nothing.
    """

    def __init__(
        self,
        layers: Sequence[LayerParts],
        shape: ModelShape,
        rope: RotaryTable,
        *,
        eps: float,
        scale: float,
        window: int | None,
        ends: Ends | None,
    ) -> None:
        self.shape, self.eps_bits = shape, _bits(eps)
        self._layers, self._scale, self._ends, self._rope = layers, _bits(scale), ends, rope
        self._window = 2**40 if window is None else window
        self._turns_TD = torch.empty(0, shape.head_dim)
        self._programs: dict[tuple[PagedKV, tuple[int, ...], bool], _Program] = {}

    @property
    def widest(self) -> int:
        """Number of values of the widest row multiplied."""
        shape, first = self.shape, self._layers[0].qkv.blocks * 32
        heads = max(shape.num_heads, 2) * shape.head_dim
        return max(shape.hidden_size, heads, shape.intermediate_size, first)

    @property
    def norms_input(self) -> bool:
        """Whether the first layer norms its input."""
        return self._layers[0].input_norm is not None

    def compile(self) -> None:
        """Compile ahead what the first call would compile."""
        _compile()

    def turns(self, count: int) -> Tensor:
        """Return cosines followed by sines of at least `count` positions, float32 [T, D]."""
        known = len(self._turns_TD)
        if count > known:
            new_T = torch.arange(known, max(2 * count, 512))
            self._turns_TD = torch.cat((self._turns_TD, torch.cat(self._rope.rotations(new_T, torch.float32), dim=-1)))
        return self._turns_TD

    def __call__(
        self,
        x_NH: Tensor,
        positions_N: Tensor,
        kv: PagedKV,
        rows: Rows,
        states: Mapping[int, Tensor],
        *,
        normed_NX: Tensor | None = None,
        tokens_N: Tensor | None = None,
        likeliest_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after the last attention, and what the last MLP adds to it, of wanted rows; with
        `Ends` the stream after the last layer, and its norm.

        Args:
            x_NH: float32, contiguous; the residual stream that enters, which is overwritten. `Ends` fill it.
            positions_N: int64, contiguous.
            kv: float32 pages.
            states: receives the residual stream that enters some layers, by their number.
            normed_NX: float32, contiguous; what the first attention reads, where that layer has no norm.
            tokens_N: int64, contiguous; what `Ends` look up.
            likeliest_R: int64, contiguous; receives the token that their head finds likeliest.
        """
        num_rows, hidden = x_NH.shape
        owners_N, lasts_N, longest, _ = rows.looks
        count = num_rows if rows.wanted_R is None else len(rows.wanted_R)
        hidden_RH, picked = torch.empty(count, hidden), 0 if likeliest_R is None else likeliest_R.data_ptr()
        values = {
            "rows": num_rows,
            "count": count,
            "x": x_NH.data_ptr(),
            "normed": 0 if normed_NX is None else normed_NX.data_ptr(),
            "tokens": 0 if tokens_N is None else tokens_N.data_ptr(),
            "hidden": hidden_RH.data_ptr(),
            "chosen": picked,
            "column": picked,
            "column_stride": 8,
            "wanted": 0 if rows.wanted_R is None else rows.wanted_R.data_ptr(),
            "turns": self.turns(int(positions_N.numpy().max()) + 1).data_ptr(),
            "positions": positions_N.data_ptr(),
            "slots": rows.slots_N.data_ptr(),
            "table": rows.page_table_BP.data_ptr(),
            "table_width": rows.page_table_BP.stride(0),
            "owners": owners_N.data_ptr(),
            "lasts": lasts_N.data_ptr(),
        }
        for i, state in states.items():
            values |= {f"state.{i}": state.data_ptr(), f"state_stride.{i}": 4 * state.stride(0)}
        key = kv, tuple(states), likeliest_R is not None
        if key not in self._programs:
            self._programs[key] = self._write(*key)
        sizes = self.sizes(num_rows)
        if likeliest_R is not None and self._ends is not None and self._ends.head is not None:
            sizes["logits"] = 4 * count * self._ends.head.width
        memory = self._programs[key].run(values, sizes, longest=longest, width=self.widest, rows=num_rows)
        x_RH = x_NH if rows.wanted_R is None else x_NH[rows.wanted_R]
        if self._ends is None:
            return x_RH, memory[: hidden_RH.nbytes].view(torch.float32).view_as(hidden_RH)
        return x_RH, hidden_RH

    def _write(self, kv: PagedKV, states: tuple[int, ...], picks: bool) -> _Program:
        program, ends, stride = _Program(), self._ends, 4 * self.shape.hidden_size
        if ends is not None:
            _add_embedding(program, ends.embedding, rows="rows", tokens="tokens", out="x", factor=ends.factor)
        self.add(program, kv, states=states, reads_normed=not self.norms_input)
        if ends is not None:
            norm: dict[str, _Value] = {"x": "x", "x_stride": stride, "index": "wanted", "eps": self.eps_bits}
            norm |= {"delta": "delta", "delta_stride": stride, "values": "hidden", "values_stride": stride}
            norm |= {"weight": ends.norm.data_ptr(), "width": self.shape.hidden_size}
            norm |= {"out": "inputs", "out_stride": self.shape.hidden_size // 32 * 48}
            program.append("norm", rows="count", **norm)
            if picks and ends.head is not None:
                _add_choice(program, ends.head, None, rows="count", column="column")
        return program

    def sizes(self, num_rows: int) -> dict[str, int]:
        """Return the bytes of the buffers that `add` names."""
        shape = self.shape
        return {
            "delta": 4 * num_rows * shape.hidden_size,
            "qkv": 4 * num_rows * self._layers[0].qkv.width,
            "gate_up": 8 * num_rows * shape.intermediate_size,
            "attended": 4 * num_rows * shape.num_heads * shape.head_dim,
            "inputs": 48 * num_rows * self.widest // 32,
        }

    def add(
        self,
        program: _Program,
        kv: PagedKV,
        *,
        x: str = "x",
        step: str = "",
        states: tuple[int, ...] = (),
        reads_normed: bool = False,
    ) -> None:
        """Write all layers into a program.

        Args:
            program: it leaves in `x` and `delta` the stream after the last attention and what the last MLP adds to it.
            x: name of the residual stream that enters.
            step: what the names of the rows end with: `rows`, `positions`, `slots`, `owners` and `lasts`; of `count`
                and `wanted`, the last layer's rows that somebody reads.
            states: layers whose entering stream somebody reads.
            reads_normed: whether a first layer without a norm reads `normed`, and not `inputs`.
        """
        shape, eps = self.shape, self.eps_bits
        hidden, heads, groups, size = shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim
        stride, quantized = 4 * hidden, hidden // 32 * 48

        def product(matrix: QuantizedLinear, rows: str, out: str) -> None:
            add_product(program, matrix, rows=rows, out=out)

        for i, layer in enumerate(self._layers):
            is_last = i == len(self._layers) - 1
            all_rows = "rows" + step
            rows, index = ("count" + step, "wanted" + step) if is_last else (all_rows, 0)
            norm: dict[str, _Value] = {"width": hidden, "eps": eps, "out": "inputs", "out_stride": quantized}
            if layer.input_norm is not None:
                norm |= {"weight": layer.input_norm.data_ptr(), "x": x, "x_stride": stride}
                norm |= {"delta": "delta", "delta_stride": stride} if i else {}
                norm |= {"state": f"state.{i}", "state_stride": f"state_stride.{i}"} if i in states else {}
                program.append("norm", rows=all_rows, **norm)
            elif reads_normed:
                width = layer.qkv.blocks * 32
                norm |= {"x": "normed", "x_stride": 4 * width, "width": width, "out_stride": width // 32 * 48}
                program.append("norm", rows=all_rows, **norm)
            product(layer.qkv, all_rows, "qkv")
            q_norm, k_norm = (0, 0) if layer.qk_norms is None else (each.data_ptr() for each in layer.qk_norms)
            of_heads: dict[str, _Value] = {"heads": heads, "groups": groups, "size": size, "qkv": "qkv"}
            of_heads |= {"stride": 4 * layer.qkv.width, "pages": kv.layers[i].data_ptr()}
            turns: dict[str, _Value] = {"turns": "turns", "positions": "positions" + step, "slots": "slots" + step}
            program.append("rotate", rows=all_rows, q_norm=q_norm, k_norm=k_norm, eps=eps, **turns, **of_heads)
            program.append(
                "attend",
                rows=rows,
                index=index,
                table="table",
                table_width="table_width",
                owners="owners" + step,
                lasts="lasts" + step,
                window=self._window,
                attended="attended",
                out="inputs",
                scale=self._scale,
                block=kv.block_size,
                all_rows=all_rows,
                **of_heads,
            )
            product(layer.o, rows, "delta")
            norm |= {"x": x, "x_stride": stride, "width": hidden, "out_stride": quantized}
            norm |= {"weight": layer.post_norm.data_ptr(), "delta": "delta", "delta_stride": stride, "state": 0}
            program.append("norm", rows=rows, index=index, **norm)
            product(layer.gate_up, rows, "gate_up")
            program.append("gate", rows=rows, gate_up="gate_up", inner=shape.intermediate_size, out="inputs")
            product(layer.down, rows, "delta")


def add_product(program: _Program, matrix: QuantizedLinear, *, rows: str, out: str, inputs: str = "inputs") -> None:
    """Write a product into a program."""
    chunks = {"chunks": matrix.chunks.data_ptr(), "count": len(matrix.chunks)}
    program.append("product", rows=rows, inputs=inputs, out=out, out_stride=4 * matrix.width, **chunks)


def _add_embedding(
    program: _Program, table: Table, *, rows: str, tokens: str, out: str, factor: float, **positions: _Value
) -> None:
    """Write the embeddings of tokens, times a factor, into a program."""
    width = table.shape[1]
    where: dict[str, _Value] = {"blocks": width // 32, "out": out, "out_stride": 4 * width, **positions}
    if isinstance(table, QuantizedTable):
        matrix = table.matrix
        where |= {"table": matrix.memory.data_ptr(), "bits": LAYOUTS[matrix.kind].bits}
        where |= {"group_bytes": matrix.group_bytes}
    else:
        where |= {"table": table.data_ptr()}
    program.append("embed", rows=rows, tokens=tokens, factor=_bits(factor), **where)


def _add_choice(
    program: _Program, head: QuantizedLinear, ids_U: Tensor | None, *, rows: str, column: str, inputs: str = "inputs"
) -> None:
    """Write a head's product and the choice of the likeliest token into a program."""
    add_product(program, head, rows=rows, out="logits", inputs=inputs)
    program.append(
        "choose",
        rows=rows,
        logits="logits",
        stride=4 * head.width,
        width=head.num_out,
        ids=0 if ids_U is None else ids_U.data_ptr(),
        tokens="chosen",
        column=column,
        column_stride="column_stride",
    )


class QuantizedChain:
    """Drafts the most likely tokens, one after another, in one call."""

    def __init__(self, layers: QuantizedLayers, parts: ChainParts) -> None:
        self._layers, self._parts = layers, parts
        self._programs: dict[tuple[PagedKV, int], _Program] = {}
        _compile()  # the target may have layers of another kind

    def __call__(
        self,
        tokens_N: Tensor,
        state_NH: Tensor | None,
        kv: PagedKV,
        rows: Rows,
        positions_N: Tensor,
        further: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return int64 draft tokens [B, M].

        Args:
            state_NH: float32, their states, which are overwritten; None for a network that reads none.
            rows: the confirmed rows; the last one of each sequence is wanted.
            further: positions and slots of the rows of draft tokens but the last, [M - 1, B] each.
        """
        layers, parts, hidden = self._layers, self._parts, self._layers.shape.hidden_size
        assert rows.wanted_R is not None
        num_rows, num_seqs = len(tokens_N), len(rows.wanted_R)
        positions_MB, slots_MB = further
        num_steps = len(positions_MB) + 1
        owners_N, lasts_N, _, _ = rows.looks
        longest = 1 + max(int(each.numpy().max(initial=0)) for each in (positions_N, positions_MB))
        turns_TD = layers.turns(longest)
        tokens_BM, owners_B = torch.empty(num_seqs, num_steps, dtype=torch.int64), torch.arange(num_seqs)
        values = {
            "rows": num_rows,
            "count": num_seqs,
            "wanted": rows.wanted_R.data_ptr(),
            "tokens": tokens_N.data_ptr(),
            "slots": rows.slots_N.data_ptr(),
            "owners": owners_N.data_ptr(),
            "lasts": lasts_N.data_ptr(),
            "positions": positions_N.data_ptr(),
            "turns": turns_TD.data_ptr(),
            "table": rows.page_table_BP.data_ptr(),
            "table_width": rows.page_table_BP.stride(0),
            "column_stride": 8 * num_steps,
        }
        if state_NH is not None:
            values["state"] = state_NH.data_ptr()
        for step in range(num_steps):
            values[f"column.{step}"] = tokens_BM.data_ptr() + 8 * step
            if step:
                place = 8 * (step - 1) * num_seqs
                values |= {f"rows.{step}": num_seqs, f"count.{step}": num_seqs, f"wanted.{step}": 0}
                values |= {f"slots.{step}": slots_MB.data_ptr() + place, f"owners.{step}": owners_B.data_ptr()}
                values |= {f"{name}.{step}": positions_MB.data_ptr() + place for name in ("lasts", "positions")}
        for name in ("rows", "count", "wanted", "slots", "owners", "lasts", "positions"):
            values[f"{name}.0"] = values[name]
        widest = max(layers.widest, 2 * hidden)
        sizes = layers.sizes(num_rows) | {
            "inputs": 48 * num_rows * widest // 32,
            "embedded": 4 * num_rows * hidden,
            "stream": 4 * num_rows * hidden,
            "carry": 4 * num_seqs * hidden,
            "logits": 4 * num_seqs * parts.head.width,
            "chosen": 8 * num_seqs,
        }
        key = kv, num_steps
        if key not in self._programs:
            self._programs[key] = self._write(kv, num_steps)
        self._programs[key].run(values, sizes, longest=longest, width=widest, rows=num_rows)
        return tokens_BM

    def _write(self, kv: PagedKV, num_steps: int) -> _Program:
        program, parts, layers = _Program(), self._parts, self._layers
        hidden, eps = layers.shape.hidden_size, layers.eps_bits
        stride, quantized = 4 * hidden, hidden // 32 * 48
        for step in range(num_steps):
            end, state = f".{step}", "state" if step == 0 else "carry"
            x = "stream" if parts.projection is not None or parts.starts_normed or not parts.reads_state else state
            rows = "rows" + end
            _add_embedding(
                program,
                parts.embedding,
                rows=rows,
                tokens="chosen" if step else "tokens",
                out="embedded" if parts.reads_state else x,
                factor=parts.factor,
                **({"positions": "positions" + end} if parts.skips_first else {}),
            )
            if parts.reads_state:
                halves = ("embedded", 0), (state, 1)
                for source, half in halves:
                    norm: dict[str, _Value] = {"x": source, "x_stride": stride, "width": hidden, "eps": eps}
                    norm |= {"weight": parts.norms[half].data_ptr()} if parts.norms is not None else {}
                    norm |= {"out": f"inputs+{quantized}" if half != parts.state_first else "inputs"}
                    if half and parts.starts_normed:
                        norm |= {"values": x, "values_stride": stride}
                    program.append("norm", rows=rows, out_stride=2 * quantized, **norm)
            if parts.projection is not None:
                add_product(program, parts.projection, rows=rows, out=x)
                if not layers.norms_input:
                    norm = {"x": x, "x_stride": stride, "width": hidden, "eps": eps}
                    norm |= {} if parts.input_norm is None else {"weight": parts.input_norm.data_ptr()}
                    program.append("norm", rows=rows, out="inputs", out_stride=quantized, **norm)
            layers.add(program, kv, x=x, step=end)
            norm = {"x": x, "x_stride": stride, "index": "wanted" + end, "width": hidden, "eps": eps}
            norm |= {"delta": "delta", "delta_stride": stride, "out": "inputs", "out_stride": quantized}
            norm |= {} if parts.last_norm is None else {"weight": parts.last_norm.data_ptr()}
            if parts.reads_state and parts.carries_normed:
                norm |= {"values": "carry", "values_stride": stride}
            elif parts.reads_state and x != "carry":
                norm |= {"state": "carry", "state_stride": stride}
            program.append("norm", rows="count" + end, **norm)
            _add_choice(program, parts.head, parts.target_ids_U, rows="count" + end, column="column" + end)
        return program


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStage:
    """Computes one draft token from the target's last state: products and a head."""

    products: tuple[QuantizedLinear, ...]
    head: QuantizedLinear
    embedding_VI: Tensor | None = None
    """float32 weights for the previous token. None: draft tokens are independent (Medusa)."""
    norm: tuple[Tensor, Tensor] | None = None
    """Weight and bias, if there is an embedding."""


class QuantizedStages:
    """Drafts the most likely tokens from only the target's last state, in one call.

    Args:
        stages: one for each draft token, all of the same kind.
        token_weight: factor of the embeddings.
        target_ids_U: see `HeadVocabulary`.
    """

    def __init__(
        self,
        stages: Sequence[DraftStage],
        *,
        token_weight: float = 1.0,
        eps: float = 0.0,
        target_ids_U: Tensor | None = None,
    ) -> None:
        self._stages, self._factor, self._eps, self._ids_U = stages, _bits(token_weight), _bits(eps), target_ids_U
        products = [each for stage in stages for each in (*stage.products, stage.head)]
        self._widest = max(32 * each.blocks for each in products)
        self._inner = max(each.width for stage in stages for each in stage.products)
        self._logits = max(stage.head.width for stage in stages)
        self._is_joined = stages[0].embedding_VI is None and len({id(stage.head) for stage in stages}) == 1
        """Whether one product with a head serves all draft tokens."""
        self._programs: dict[int, _Program] = {}
        _compile()  # see `QuantizedChain`

    def __call__(self, state_BH: Tensor, tokens_B: Tensor, num_steps: int) -> Tensor:
        """Return int64 draft tokens [B, M] that follow `tokens_B`."""
        state_BH, tokens_B, rows = state_BH.float().contiguous(), tokens_B.contiguous(), len(tokens_B)
        tokens_BM = torch.empty(rows, num_steps, dtype=torch.int64)
        values = {"rows": rows, "state": state_BH.data_ptr(), "tokens": tokens_B.data_ptr(), "all": rows * num_steps}
        values |= {"column_stride": 8 if self._is_joined else 8 * num_steps}
        values |= {f"column.{step}": tokens_BM.data_ptr() + 8 * step for step in range(num_steps)}
        sizes = {
            "inputs": 48 * rows * self._widest // 32,
            "entered": 48 * rows * self._widest // 32,
            "joined": 48 * rows * num_steps * self._widest // 32,
            "y": 4 * rows * self._inner,
            "x": 4 * rows * self._widest,
            "logits": 4 * rows * (num_steps if self._is_joined else 1) * self._logits,
            "chosen": 8 * rows * num_steps,
        }
        if num_steps not in self._programs:
            self._programs[num_steps] = self._write(num_steps)
        self._programs[num_steps].run(values, sizes, longest=0, width=self._widest, rows=rows * num_steps)
        return tokens_BM

    def _write(self, num_steps: int) -> _Program:
        program, width = _Program(), self._stages[0].products[0].blocks * 32
        entry: dict[str, _Value] = {"x": "state", "x_stride": 4 * width, "width": width}
        program.append("norm", rows="rows", out="entered", out_stride=width // 32 * 48, **entry)
        source = "entered"
        for step, stage in enumerate(self._stages[:num_steps]):
            x = "state"
            for number, product in enumerate(stage.products):
                inner = product.num_out
                quantized, joined = inner // 32 * 48, self._is_joined and product is stage.products[-1]
                add_product(program, product, rows="rows", out="y", inputs=source if number == 0 else "inputs")
                how: dict[str, _Value] = {"out": "inputs", "out_stride": quantized}
                if joined:
                    how = {"out": f"joined+{step * quantized}", "out_stride": num_steps * quantized}
                if stage.embedding_VI is not None and stage.norm is not None:
                    where = {"table": stage.embedding_VI.data_ptr(), "blocks": inner // 32, "factor": self._factor}
                    tokens = "chosen" if step else "tokens"
                    program.append("embed", rows="rows", tokens=tokens, out="x", out_stride=4 * inner, **where)
                    x, source = "x", "inputs"
                    how |= {"weight": stage.norm[0].data_ptr(), "bias": stage.norm[1].data_ptr(), "eps": self._eps}
                else:
                    how |= {"values": "x", "values_stride": 4 * inner}
                strides = {"y_stride": 4 * product.width, "x_stride": 4 * inner}
                program.append("activate", rows="rows", y="y", x=x, width=inner, **strides, **how)
                x = "x"
            if not self._is_joined:
                _add_choice(program, stage.head, self._ids_U, rows="rows", column=f"column.{step}")
        if self._is_joined:
            _add_choice(program, self._stages[0].head, self._ids_U, rows="all", column="column.0", inputs="joined")
        return program
