"""What the benchmark of matrix products times: the products of some models, ways to compute them, and how to time."""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.kernels.cuda import matmul as products
from draftwise.engine.kernels.cuda.matmul_configs import Config, padded

SHARED_BYTES = 232_448


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a model; `num_out` counts gate and up where they are combined."""

    name: str
    num_out: int
    num_in: int
    gated: bool = False

    @property
    def weight_bytes(self) -> int:
        return 2 * self.num_out * self.num_in


def _model(name: str, hidden: int, qkv: int, attention: int, inner: int, head: int = 0) -> tuple[Product, ...]:
    """Return the products of a layer, and of the head where its width differs from those timed otherwise."""
    prefix = f"{name} " if name else ""
    products = (
        Product(f"{prefix}qkv", qkv, hidden),
        Product(f"{prefix}o", hidden, attention),
        Product(f"{prefix}gate_up", 2 * inner, hidden, gated=True),
        Product(f"{prefix}down", hidden, inner),
    )
    return (*products, Product(f"{prefix}head", head, hidden)) if head else products


LLAMA_8B = _model("", 4096, 6144, 4096, 14336)
HEAD = Product("head", 128256, 4096)
TUNED = (
    *LLAMA_8B,
    HEAD,
    Product("eagle3 qkv", 6144, 8192),
    Product("eagle3 fc", 4096, 12288),
    Product("eagle3 head", 32000, 4096),
    *_model("1b", 2048, 3072, 2048, 8192),
)
"""What the first rule was read off."""
SEEN = (
    *_model("Qwen2.5-14B", 5120, 7168, 5120, 13824, 152064),
    *_model("Llama-2-7B", 4096, 12288, 4096, 11008),
    *_model("Llama-3.2-3B", 3072, 5120, 3072, 8192),
    *_model("Qwen2.5-1.5B", 1536, 2048, 1536, 8960, 151936),
    *_model("Qwen3-4B", 2560, 6144, 4096, 9728),
    *_model("Qwen3-32B", 5120, 10240, 8192, 25600),
)
"""Other widths, which the rule was widened with."""
UNSEEN = (
    *_model("Mistral-Nemo-12B", 5120, 6144, 4096, 14336),
    *_model("Phi-3-medium", 5120, 7680, 5120, 17920),
    *_model("Yi-1.5-34B", 7168, 9216, 7168, 20480),
    *_model("Granite-3-8B", 4096, 6144, 4096, 12800),
    *_model("InternLM2-20B", 6144, 8192, 6144, 16384, 92544),
    *_model("Falcon3-10B", 3072, 5120, 3072, 23040),
)
"""Shapes that no rule was made with: how far it is from the best there is its error."""
PRODUCTS = {"tuned": TUNED, "seen": SEEN, "unseen": UNSEEN}


def products_of(kinds: Iterable[str]) -> list[Product]:
    """Return the products of these kinds, each size once."""
    found = {(each.num_out, each.num_in, each.gated): each for kind in kinds for each in reversed(PRODUCTS[kind])}
    return list(found.values())[::-1]


def run(config: Config | None, product: Product, x_RK: Tensor, weight_OK: Tensor) -> Tensor:
    """Return the product as a config says; None: cuBLAS, which leaves gate and up as they are."""
    if config is None:
        return F.linear(x_RK, weight_OK)
    return (products.run_gated if product.gated else products.run_matmul)(config, x_RK, weight_OK)


def cuts(product: Product, num_rows: int) -> list[tuple[int, int, int, int]]:
    """Return what is worth a try: rows of weights in a tile, fold, columns, programs on a multiprocessor."""
    rows = padded(num_rows)
    if product.gated:
        few = [(64, 2, 128, 2), (64, 4, 128, 2), (64, 2, 64, 4), (64, 4, 64, 4)] if rows <= 16 else []
        return [*few, (64, 1, 128, 1), (64, 1, 256, 1), (64, 1, 64, 2), (128, 1, 64, 1)]
    if product.num_out > 16384:
        few = [(64, 4, 128, 2), (64, 4, 128, 3), (64, 2, 128, 2), (64, 2, 64, 4)] if rows <= 16 else []
        return [*few, (64, 1, 128, 2), (64, 1, 128, 3), (128, 1, 128, 1)]
    if rows <= 16:
        return [(64, 4, 128, 2), (64, 4, 128, 3), (64, 4, 64, 3), (64, 4, 64, 4), (64, 2, 128, 2), (64, 8, 64, 4)]
    few = [(64, 2, 128, 1), (64, 2, 128, 2), (64, 2, 64, 2), (128, 2, 64, 1), (64, 1, 128, 1), (64, 4, 64, 2)]
    return [*few, (64, 1, 128, 2), (64, 1, 64, 2), (64, 1, 64, 3), (128, 1, 64, 1)]


def ways(product: Product, num_rows: int) -> list[Config]:
    """Return the configs that are worth a try, the first of them also without an early start and by pointers."""
    found: dict[Config, None] = {}
    for i, (tile, fold, columns, programs) in enumerate(cuts(product, num_rows)):
        config = Config(outputs=tile // fold, columns=columns, fold=fold, stages=2)
        stages = (SHARED_BYTES // programs - 1536) // config.stage_bytes(num_rows, gated=product.gated)
        config = dataclasses.replace(config, stages=min(11, stages, product.num_in // fold // columns))
        if config.stages < 2 or product.num_in % (fold * columns):
            continue
        found[config] = None
        if i == 0:
            found[dataclasses.replace(config, early=False)] = None
            found[dataclasses.replace(config, early=False, copies=False)] = None
    return list(found)


Job = tuple[Config, Product, int]


def compile_one(job: Job) -> tuple[Job, str | None]:
    """Run one way over few outputs, so that its code is in Triton's cache; return what went wrong."""
    config, product, num_rows = job
    try:
        small = dataclasses.replace(product, num_out=512)
        x, weight = (torch.zeros(n, product.num_in, dtype=torch.bfloat16, device="cuda") for n in (num_rows, 512))
        run(config, small, x, weight)
        torch.cuda.synchronize()
    except Exception as error:
        return job, f"{type(error).__name__}: {str(error)[:300]}"
    return job, None


class Compiler:
    """Processes that compile at the same time; they must be forked before this one uses the GPU."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pool = context.Pool(workers)
        self._alone = context.Pool(2, maxtasksperchild=1)

    def run(self, jobs: Iterable[Job]) -> set[tuple[object, ...]]:
        """Compile everything once; return the keys of what fails even with a process and CUDA context of its own."""
        unique = {code_key(*job): job for job in jobs}
        start = time.monotonic()
        failed = self._compile(self._pool, unique.values())
        failed = self._compile(self._alone, failed)
        print(f"{len(unique)} kernels compiled in {time.monotonic() - start:.1f} s, {len(failed)} failed", flush=True)
        for job, error in list(failed.items())[:8]:
            print("  ", *job, error)
        return {code_key(*job) for job in failed}

    def _compile(self, pool: Any, jobs: Iterable[Job]) -> dict[Job, str]:
        """Return the jobs that failed, and why; where nothing ends for long, something hangs and all are killed."""
        failed = dict.fromkeys(jobs, "nothing came back")
        try:
            results = pool.imap_unordered(compile_one, list(failed))
            while True:
                job, error = results.next(timeout=30)
                failed[job] = error or ""
        except StopIteration:
            pass
        except (ValueError, multiprocessing.TimeoutError):  # ValueError: killed before
            self.close()
        return {job: error for job, error in failed.items() if error}

    def close(self) -> None:
        for pool in (self._pool, self._alone):
            pool.terminate()


def code_key(config: Config, product: Product, num_rows: int) -> tuple[object, ...]:
    """Return what makes two products the same code."""
    return config, product.num_in, product.gated, padded(num_rows)


def graph_ms(calls: list[Callable[[], object]], repeats: int = 5) -> float:
    """Return the median time of one call, all of them captured in one graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / len(calls)


def describe(config: Config | None) -> dict[str, Any] | str:
    return "cuBLAS" if config is None else dataclasses.asdict(config)


def short(way: dict[str, Any] | str) -> str:
    if isinstance(way, str):
        return way
    kind = "early" if way["early"] else "copies" if way["copies"] else "pointers"
    return f"o{way['outputs']} k{way['columns']} f{way['fold']} st{way['stages']} {kind}"


def chosen(product: Product, num_rows: int) -> Config | None:
    """Return what the package itself does."""
    x_RK, weight_OK = (
        torch.empty(n, product.num_in, dtype=torch.bfloat16, device="cuda") for n in (num_rows, product.num_out)
    )
    return products.find_config(x_RK, weight_OK, gated=product.gated)
