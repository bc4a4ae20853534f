"""A sizing as rows for tables, plots and JSON: the memory of one GPU item by item, and sequences by context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from draftwise.core.budget import Budget
from draftwise.plan.size.sizing import Sizing

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Context lengths at which concurrency is shown, up to `max_model_len`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One share of a GPU's memory."""

    key: str
    label: str
    num_bytes: int


def items(budget: Budget) -> tuple[Item, ...]:
    """Return the shares of a GPU's memory, which add up to all of it, or to more if the memory runs out."""
    counted = budget.graphs_counted + (budget.buffers if budget.buffers_counted else 0)
    rows = (
        Item("target", "target weights", budget.target),
        Item("drafter", "drafter weights", budget.drafter),
        Item("activations", "activations (profiled peak)", budget.activations),
        Item("overhead", "libraries" if not counted else "libraries, graphs, buffers", budget.non_torch + counted),
        Item("kv", "KV cache", max(0, budget.kv_bytes)),
        Item("outside", "used, outside vLLM's plan", budget.outside),
        Item("reserve", "left free", max(0, budget.reserve)),
    )
    return tuple(row for row in rows if row.num_bytes)


def contexts_of(sizing: Sizing, asked: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the context lengths to show: the requested ones, else powers of two up to the longest allowed."""
    limit = sizing.request.max_model_len
    return tuple(sorted(set(asked))) or tuple(sorted({*(each for each in CONTEXTS if each < limit), limit}))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The memory of one GPU, in bytes unless a field says otherwise."""

    requested: int
    target: int
    drafter: int
    activations: int
    non_torch: int
    graphs: int
    graphs_counted: int
    buffers: int
    buffers_counted: bool
    context: int
    kv_bytes: int
    num_blocks: int
    """KV blocks."""
    kv_tokens: int
    """Tokens that fit into the KV cache."""
    outside: int
    reserve: int
    fits: bool
    """Whether one sequence of `max_model_len` tokens fits."""
    kv_bytes_per_token: int
    max_concurrency: float
    """Sequences of `max_model_len` tokens that fit, as vLLM logs it."""
    longest_context: int
    """Tokens of the longest sequence that fits."""
    sequences: Mapping[str, int]
    """Sequences that fit, by their length in tokens."""


def describe_memory(budget: Budget, contexts: tuple[int, ...]) -> GpuMemory:
    """Return the memory of one GPU for the JSON, with the sequences that fit at each length of `contexts`."""
    own = {each.name for each in fields(GpuMemory)}
    computed: dict[str, Any] = {
        "kv_bytes_per_token": budget.kv.bytes_per_token,
        "max_concurrency": round(budget.max_concurrency, 2),
        "longest_context": budget.longest_context(),
        "sequences": {str(context): budget.sequences(context) for context in contexts},
    }
    return GpuMemory(**{name: getattr(budget, name) for name in own - computed.keys()}, **computed)
