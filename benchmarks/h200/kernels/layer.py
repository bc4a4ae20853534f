"""Times the operations of a decoder layer on one GPU: Triton with and without dependent launch, against plain torch.

First a chain of all operations and small products, captured with and without dependent launch, is replayed over
changing inputs: a kernel that does not wait for its predecessor gives other bits. Then each case is compared with the
reference in float64, and timed in graphs of 64 launches over inputs that lie in the L2, as they do in a step. (Torch's
rotation computes cosine and sine each time, which a step does once.) `host` is what a launch outside of a graph takes
the host, `triton` the same through Triton's own launcher.

    PYTHONPATH=src python benchmarks/h200/kernels/layer.py --out layer.json

Shape letters: N rows, H hidden size, I intermediate size, A query heads, G key-value heads, S = A + 2G, D head
dimension, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.kernels import Kernels
from draftwise.engine.kernels.cuda import CudaKernels, launch, layer
from draftwise.engine.kernels.cuda.plan import place_rows
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.rope import Rope

ROWS, LAUNCHES, SETS, WARPS = (1, 4, 8, 32, 64, 256), 64, 4, (1, 2, 4, 8, 16, 32)
STEP, BYTE_STEP = 2**-8, 2**-4 + 2**-8
"""Half a rounding step of bfloat16, and of 8-bit floats that were bfloat16 before, relative."""
LIMIT, EPS, COPY_BYTES_PER_S = 4096, 1e-5, 4.27e12
SHAPES = {
    "8B": ModelShape(
        hidden_size=4096,
        num_layers=1,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=32000,
        max_position_embeddings=LIMIT,
    ),
    "1B": ModelShape(
        hidden_size=2048,
        num_layers=1,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=32000,
        max_position_embeddings=LIMIT,
    ),
}


@contextmanager
def launches(dependent: bool) -> Iterator[None]:
    """Let kernels start before their predecessors end, or not."""
    with mock.patch.dict(os.environ, DRAFTWISE_PDL="1" if dependent else "0"):
        launch.pdl.cache_clear()
        yield
    launch.pdl.cache_clear()


class Model:
    """Random weights and the operations of one shape: ours, those in plain torch, and the same in float64."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        frequencies = 500000.0 ** -(torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
        rope = Rope(frequencies_D=frequencies, attention_scale=1.0, context_limit=LIMIT)
        self.ours = CudaKernels(shape, rope, EPS, torch.bfloat16)
        self.torch = Kernels(shape, rope, EPS, torch.bfloat16)
        self.exact = Kernels(shape, rope, EPS, torch.float64)
        self.norm, self.other_norm = (self.random(shape.hidden_size) for _ in range(2))
        self.head_norms = self.random(shape.head_dim), self.random(shape.head_dim)
        self.embedding = self.random(shape.vocab_size, shape.hidden_size)

    def random(self, *size: int) -> Tensor:
        return torch.randn(*size, device=self.device).bfloat16()

    def indices(self, limit: int, num_rows: int) -> Tensor:
        return torch.randint(limit, (num_rows,), device=self.device)

    def pages(self, dtype: torch.dtype = torch.bfloat16) -> PagedKV:
        return PagedKV(self.shape, num_pages=LIMIT // 16, block_size=16, dtype=dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: `call(kernels, inputs)` returns what it computes; inputs are float where they are numbers."""

    name: str
    inputs: Callable[[Model, int], tuple[Any, ...]]
    call: Callable[[Model, Kernels, tuple[Any, ...]], list[Tensor]]
    num_bytes: Callable[[ModelShape], int]
    """Read and written for a row."""


def _rotate(norms: bool, dtype: torch.dtype) -> Case:
    def inputs(model: Model, num_rows: int) -> tuple[Any, ...]:
        heads = model.shape.num_heads + 2 * model.shape.num_kv_heads
        slots = torch.randperm(LIMIT, device=model.device)[:num_rows]
        qkv_NSD = model.random(num_rows, heads, model.shape.head_dim)
        return qkv_NSD, model.indices(LIMIT, num_rows), slots, model.pages(dtype), model.pages(torch.float64)

    def call(model: Model, kernels: Kernels, given: tuple[Any, ...]) -> list[Tensor]:
        qkv_NSD, positions_N, slots_N, narrow, wide = given
        kv = wide if kernels is model.exact else narrow
        weights = tuple(weight.to(qkv_NSD.dtype) for weight in model.head_norms) if norms else None
        q_NAD = kernels.rotate_and_store(qkv_NSD, weights, kernels.rotations(positions_N), kv, 0, slots_N)
        return [q_NAD, kv.layers[0].flatten(0, 1)]

    def num_bytes(shape: ModelShape) -> int:
        keys = 2 * shape.num_kv_heads * shape.head_dim
        return 2 * (2 * shape.num_heads * shape.head_dim + keys) + dtype.itemsize * keys + 4 * shape.head_dim

    kind = "8-bit" if dtype.itemsize == 1 else "16-bit"
    return Case(f"rotate_and_store {kind}{' normed' if norms else ''}", inputs, call, num_bytes)


def _hidden(model: Model, num_rows: int) -> Tensor:
    return model.random(num_rows, model.shape.hidden_size)


def _place_rows() -> Case:
    def inputs(model: Model, num_rows: int) -> tuple[Any, ...]:
        width = 4 if num_rows % 4 == 0 else 1
        starts_B = model.indices(LIMIT - 8, num_rows // width)
        table_BP = torch.randint(500, (len(starts_B), LIMIT // 16 + 1), device=model.device, dtype=torch.int32)
        return starts_B, torch.full_like(starts_B, width), table_BP, width

    def call(model: Model, kernels: Kernels, given: tuple[Any, ...]) -> list[Tensor]:
        starts_B, lengths_B, table_BP, width = given
        if kernels is model.ours:
            return list(place_rows(starts_B, table_BP, width=width, block_size=16))
        spans = Spans(starts_B=starts_B, lengths_B=lengths_B, width=width, host=None)
        plan = plan_attention(spans, table_BP, block_size=16)
        return [plan.positions_N, plan.slots_N]

    return Case("place_rows", inputs, call, lambda _: 20)


CASES = (
    _place_rows(),
    Case(
        "add_norm",
        lambda m, n: (_hidden(m, n), _hidden(m, n)),
        lambda m, k, given: list(k.add_norm(*given, m.norm.to(given[0].dtype))),
        lambda s: 8 * s.hidden_size,
    ),
    Case(
        "embed",
        lambda m, n: (m.indices(m.shape.vocab_size, n),),
        lambda m, k, given: list(k.embed(given[0], _table(m, k), _table(m, k, m.norm))),
        lambda s: 6 * s.hidden_size,
    ),
    Case(
        "embed_beside",
        lambda m, n: (m.indices(m.shape.vocab_size, n), _hidden(m, n)),
        lambda m, k, given: [
            k.embed_beside(given[0], _table(m, k), given[1], (_table(m, k, m.norm), _table(m, k, m.other_norm)))
        ],
        lambda s: 8 * s.hidden_size,
    ),
    Case(
        "silu_mul",
        lambda m, n: (m.random(n, 2 * m.shape.intermediate_size),),
        lambda _, k, given: [k.silu_mul(given[0])],
        lambda s: 6 * s.intermediate_size,
    ),
    _rotate(norms=False, dtype=torch.bfloat16),
    _rotate(norms=True, dtype=torch.bfloat16),
    _rotate(norms=False, dtype=torch.float8_e4m3fn),
)


def _table(model: Model, kernels: Kernels, tensor: Tensor | None = None) -> Tensor:
    """Return the embedding or another weight in the type that the kernels take."""
    tensor = model.embedding if tensor is None else tensor
    return tensor.double() if kernels is model.exact else tensor


def check(model: Model, case: Case, num_rows: int) -> str:
    """Return PASS or what is wrong: each result is the exact one rounded once, or twice where a byte is stored."""
    given = case.inputs(model, num_rows)
    exact = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]
    if case.name == "add_norm":  # the norm is one of the rounded sum
        exact = [(given[0] + given[1]).double(), None]
    expected = case.call(model, model.exact, tuple(exact))
    results = case.call(model, model.ours, given)
    for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        step = BYTE_STEP if result.dtype.itemsize == 1 else STEP
        floor = 2**-9 if result.dtype.itemsize == 1 else 1e-4
        excess = ((result.double() - wanted).abs() - wanted.abs() * step * 1.01 - floor).max().item()
        if not excess <= 0:
            return f"FAIL result {i}: beyond a rounding step by {excess:.3g}"
    return "PASS"


def capture(body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Return the graph of `body`, which has run before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def microseconds(body: Callable[[], Any], count: int) -> float:
    """Return the median time of one of the `count` operations of `body` when it is replayed."""
    graph = capture(body)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(8):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / count)
    return statistics.median(times)


def host_microseconds(body: Callable[[], Any], count: int) -> float:
    """Return the host's time for one of the `count` operations of `body` without a graph."""
    body()
    torch.cuda.synchronize()
    start = time.perf_counter()
    body()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed * 1e6 / count


def measure(model: Model, case: Case, num_rows: int) -> dict[str, Any]:
    """Return the row of one case."""
    sets = [case.inputs(model, num_rows) for _ in range(SETS)]

    def body(kernels: Kernels) -> Callable[[], None]:
        def run() -> None:
            for i in range(LAUNCHES):
                case.call(model, kernels, sets[i % SETS])

        return run

    row: dict[str, Any] = {"case": case.name, "rows": num_rows}
    for name, dependent in (("pdl_us", True), ("us", False)):
        with launches(dependent):
            row[name] = microseconds(body(model.ours), LAUNCHES)
    row["torch_us"] = microseconds(body(model.torch), LAUNCHES)
    row["host_us"] = host_microseconds(body(model.ours), LAUNCHES)
    with mock.patch.object(
        launch, "_specialise", side_effect=lambda _: ([], (object(),))
    ):  # nothing is ever found again
        row["triton_host_us"] = host_microseconds(body(model.ours), LAUNCHES)
    row["floor_us"] = case.num_bytes(model.shape) * num_rows / COPY_BYTES_PER_S * 1e6
    return row


def tune(model: Model) -> Iterator[dict[str, Any]]:
    """Yield times of what norms a row, by the warps that share it."""
    for case in CASES:
        if case.name not in ("add_norm", "embed_beside", "silu_mul"):
            continue
        for num_rows in (1, 32, 256):
            sets = [case.inputs(model, num_rows) for _ in range(SETS)]

            def run(case: Case = case, sets: list[tuple[Any, ...]] = sets) -> None:
                for i in range(LAUNCHES):
                    case.call(model, model.ours, sets[i % SETS])

            row: dict[str, Any] = {"case": case.name, "rows": num_rows}
            for num_warps in WARPS:
                with mock.patch.object(layer, "_num_warps", return_value=num_warps):
                    row[f"{num_warps}"] = round(microseconds(run, LAUNCHES), 2)
            yield row


class Chain:
    """All operations one after another, between products that do not depend on the launch, for `LAYERS` layers."""

    LAYERS = 8

    def __init__(self, num_rows: int, device: torch.device) -> None:
        shape = ModelShape(
            hidden_size=2048,
            num_layers=1,
            num_heads=16,
            num_kv_heads=8,
            head_dim=64,
            intermediate_size=1024,
            vocab_size=32000,
            max_position_embeddings=LIMIT,
        )
        self.model, self.num_rows = Model(shape, device), num_rows
        self.weight_OH = self.model.random(2048, 1024) / 32
        self.narrow_VH, self.narrow_norms = self.model.random(500, 1024), (self.model.random(1024),) * 2
        self.x_NH, self.tokens_N = self.model.random(num_rows, 2048), self.model.indices(500, num_rows)
        self.positions_N = self.model.indices(LIMIT, num_rows)
        self.slots_N = torch.randperm(LIMIT, device=device)[:num_rows]

    def change(self) -> None:
        """Draw new inputs into the tensors that the graphs read."""
        self.x_NH.copy_(self.model.random(self.num_rows, 2048))
        self.tokens_N.copy_(self.model.indices(500, self.num_rows))
        self.positions_N.copy_(self.model.indices(LIMIT, self.num_rows))
        self.slots_N.copy_(torch.randperm(LIMIT, device=self.model.device)[: self.num_rows])

    def run(self, kv: PagedKV) -> list[Tensor]:
        """Return what the last layer leaves; q of each layer is the state beside its embedding."""
        kernels, model = self.model.ours, self.model
        x_NH, delta_NH = kernels.embed(self.tokens_N, model.embedding, model.norm)
        x_NH = kernels.add(self.x_NH, x_NH)
        for _ in range(self.LAYERS):
            x_NH, normed_NH = kernels.add_norm(x_NH, delta_NH, model.norm)
            qkv_NSD = normed_NH.view(self.num_rows, 32, 64)
            rotations = kernels.rotations(self.positions_N)
            q_NAD = kernels.rotate_and_store(qkv_NSD, model.head_norms, rotations, kv, 0, self.slots_N)
            state_NQ = normed_NH[:, : q_NAD.shape[1] * 64]
            both_NX = kernels.embed_beside(self.tokens_N, self.narrow_VH, state_NQ, self.narrow_norms)
            delta_NH = F.linear(kernels.silu_mul(both_NX), self.weight_OH)
            stored_NH = kv.layers[0].flatten(0, 1).flatten(1).index_select(0, self.slots_N).repeat(1, 2)
            x_NH, _ = kernels.add_norm(x_NH, stored_NH, model.other_norm)
        return [x_NH, delta_NH, kv.layers[0]]


def find_races(num_rows: int, device: torch.device, replays: int) -> str:
    """Return PASS when the chain gives the same bits with and without dependent launch, in every replay."""
    chain, graphs = Chain(num_rows, device), []
    for dependent in (True, False):
        kv, out = chain.model.pages(), list[Tensor]()

        def body(kv: PagedKV = kv, out: list[Tensor] = out) -> None:
            out[:] = chain.run(kv)

        with launches(dependent):
            graphs.append((capture(body), kv, out))
    different = 0
    for _ in range(replays):
        chain.change()
        for graph, kv, _ in graphs:
            kv.layers[0].zero_()
            graph.replay()
        different += not all(torch.equal(a, b) for a, b in zip(graphs[0][2], graphs[1][2], strict=True))
    moved = graphs[0][2][0].isfinite().all().item() and graphs[0][2][0].any().item()
    return "PASS" if moved and not different else f"FAIL {different} of {replays} replays differ, finite: {moved}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=40.0, help="cases after that are checked but not timed")
    parser.add_argument("--tune", action="store_true", help="time other numbers of warps too")
    args = parser.parse_args()
    torch.manual_seed(0)
    start, device, rows = time.perf_counter(), torch.device("cuda"), list[dict[str, Any]]()
    tuned = list[dict[str, Any]]()
    races = {num_rows: _attempt(find_races, num_rows, device, args.replays) for num_rows in (1, 64)}
    for name, shape in SHAPES.items():
        model = Model(shape, device)
        if args.tune:
            result = _attempt(list, tune(model))
            tuned += [{"shape": name} | row for row in result] if isinstance(result, list) else [{name: result}]
        for case in CASES:
            for num_rows in ROWS:
                row: dict[str, Any] = {"shape": name, "case": case.name, "rows": num_rows}
                row["check"] = _attempt(check, model, case, num_rows)
                if time.perf_counter() - start < args.seconds:
                    measured = _attempt(measure, model, case, num_rows)
                    row |= measured if isinstance(measured, dict) else {"timing": measured}
                rows.append(row)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "races": races,
        "rows": rows,
        "warps": tuned,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))
    _print(report, time.perf_counter() - start)


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns, or FAIL and its error: one case never stops the others."""
    try:
        return function(*args)
    except Exception:
        traceback.print_exc()
        return "FAIL " + traceback.format_exc(limit=0).strip().splitlines()[-1][:200]


def _print(report: dict[str, Any], seconds: float) -> None:
    titles = ("pdl us", "us", "torch", "host", "triton", "floor")
    print(f"{'shape':5} {'case':32} {'rows':>4} {' '.join(f'{title:>7}' for title in titles)}")
    for row in report["rows"]:
        times = [row.get(key) for key in ("pdl_us", "us", "torch_us", "host_us", "triton_host_us", "floor_us")]
        cells = " ".join("      -" if value is None else f"{value:7.2f}" for value in times)
        verdict = "" if row["check"] == "PASS" and "timing" not in row else f"  {row['check']} {row.get('timing', '')}"
        print(f"{row['shape']:5} {row['case']:32} {row['rows']:4} {cells}{verdict}")
    for row in report["warps"]:
        print(row)
    failed = sum(row["check"] != "PASS" or "timing" in row for row in report["rows"])
    print(f"races: {report['races']}; {failed} of {len(report['rows'])} cases failed; {seconds:.0f} s")


if __name__ == "__main__":
    main()
