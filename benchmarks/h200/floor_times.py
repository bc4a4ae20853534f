"""How fast this GPU can be for a step: its copy bandwidth, and a step's matrix products through cuBLAS."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from cases import CASES
from floors import Product, products
from shapes import Scale
from torch import Tensor

__all__ = ["copy_bytes_per_s", "product_chains_ms"]


def copy_bytes_per_s(num_bytes: int = 2 << 30) -> float:
    """Return bytes read plus written a second by the fastest of some large copies within the device."""
    source = torch.randint(-100, 100, (num_bytes,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / (min(_times_ms(lambda: target.copy_(source), 30)) / 1e3)


@torch.inference_mode()
def product_chains_ms(scale: Scale, batches: dict[str, list[int]]) -> Iterator[dict[str, float | int | str]]:
    """Yield, for each case and batch size, the time of all of a step's matrix products, replayed as one CUDA graph."""
    shared: dict[int, list[Tensor]] = {}
    for name, sizes in batches.items():
        chain = products(CASES[name], scale)
        weights = _matrices(chain, shared, scale)
        for batch in sizes:
            yield {"case": name, "batch": batch, "ms": round(_chain_ms(chain, weights, batch), 4)}


def _matrices(chain: list[Product], shared: dict[int, list[Tensor]], scale: Scale) -> list[Tensor]:
    """Return a matrix for each product; the target's are made once, and a drafter's passes share theirs."""
    num_target = 4 * scale.target["num_hidden_layers"] + 1
    if 0 not in shared:
        shared[0] = [_matrix(product) for product in chain[:num_target]]
    own: dict[tuple[int, int, int], Tensor] = {}
    drafter, seen = [], dict[tuple[int, int], int]()
    for product in chain[num_target:]:
        shape = (product.num_out, product.num_in)
        at = seen.get(shape, 0)
        seen[shape] = at + 1
        key = (*shape, at % _MOST_LAYERS)
        if key not in own:
            own[key] = _matrix(product)
        drafter.append(own[key])
    return shared[0] + drafter


_MOST_LAYERS = 16
"""Matrices of a shape that a drafter holds at most: those of a model of so many layers."""


def _matrix(product: Product) -> Tensor:
    return torch.empty(product.num_out, product.num_in, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)


def _chain_ms(chain: list[Product], weights: list[Tensor], batch: int) -> float:
    inputs: dict[tuple[int, int], Tensor] = {}
    for product in chain:
        shape = (product.rows * batch, product.num_in)
        if shape not in inputs:
            inputs[shape] = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def once() -> None:
        for product, weight in zip(chain, weights, strict=True):
            torch.nn.functional.linear(inputs[product.rows * batch, product.num_in], weight)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        once()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return statistics.median(_times_ms(graph.replay, 7))


def _times_ms(work: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times[2:]
