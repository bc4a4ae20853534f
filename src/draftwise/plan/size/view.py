"""A sizing as rows to show, plot and write out: the memory of one GPU item by item, and sequences by context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftwise.core.budget import Budget
from draftwise.plan.size.sizing import Sizing

__all__ = ["CONTEXTS", "Item", "contexts_of", "items", "to_dict"]

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Lengths at which concurrency is shown, as far as `max_model_len` allows."""


@dataclass(frozen=True, slots=True)
class Item:
    """One share of a GPU's memory."""

    key: str
    label: str
    num_bytes: int


def items(budget: Budget) -> tuple[Item, ...]:
    """Return the shares of a GPU's memory: together they are all of it, unless more is used than there is."""
    counted = budget.graphs_counted + (budget.buffers if budget.buffers_counted else 0)
    rows = (
        Item("target", "target weights", budget.target),
        Item("drafter", "drafter weights", budget.drafter),
        Item("activations", "activations (profiled peak)", budget.activations),
        Item("overhead", "libraries" if not counted else "libraries, graphs, buffers", budget.non_torch + counted),
        Item("kv", "KV cache", max(0, budget.kv_bytes)),
        Item("outside", "used, not in vLLM's plan", budget.outside),
        Item("reserve", "left free", max(0, budget.reserve)),
    )
    return tuple(row for row in rows if row.num_bytes)


def contexts_of(sizing: Sizing, asked: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the context lengths to show: those asked for, else powers of two up to the longest allowed."""
    limit = sizing.request.max_model_len
    return tuple(sorted(set(asked))) or tuple(sorted({*(each for each in CONTEXTS if each < limit), limit}))


def to_dict(sizing: Sizing, contexts: tuple[int, ...]) -> dict[str, Any]:
    """Return a sizing as JSON: bytes throughout."""
    request = sizing.request
    return {
        "target": request.name,
        "method": request.drafter.method if request.num_speculative_tokens else None,
        "num_speculative_tokens": request.num_speculative_tokens or None,
        "vllm": str(request.release),
        "runner": request.runner,
        "gpu": {"name": request.gpu.name, "memory": request.gpu.memory_bytes},
        "tensor_parallel_size": request.tensor_parallel_size,
        "pipeline_parallel_size": request.pipeline_parallel_size,
        "max_model_len": request.max_model_len,
        "max_num_seqs": request.max_num_seqs,
        "max_num_batched_tokens": request.max_num_batched_tokens,
        "with_drafter": _budget_to_dict(sizing.budget, contexts),
        "without_drafter": _budget_to_dict(sizing.plain, contexts),
        "findings": [
            {
                "code": each.code,
                "severity": str(each.severity),
                "message": each.message,
                "where": each.where,
                "fix": each.fix,
                "source": each.source,
            }
            for each in sizing.findings
        ],
    }


def _budget_to_dict(budget: Budget, contexts: tuple[int, ...]) -> dict[str, Any]:
    names = (
        "requested",
        "target",
        "drafter",
        "activations",
        "non_torch",
        "graphs",
        "graphs_counted",
        "buffers",
        "buffers_counted",
        "context",
        "kv_bytes",
        "num_blocks",
        "kv_tokens",
        "outside",
        "reserve",
        "fits",
    )
    return {
        **{name: getattr(budget, name) for name in names},
        "kv_bytes_per_token": budget.kv.bytes_per_token,
        "max_concurrency": round(budget.max_concurrency, 2),
        "longest_context": budget.longest_context(),
        "sequences": {str(context): budget.sequences(context) for context in contexts},
    }
