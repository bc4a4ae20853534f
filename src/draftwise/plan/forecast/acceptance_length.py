"""Computes the tokens of a step if every draft token is accepted with the same probability."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.plan.cost.machine import DecodeBatch, Drafting, Machine

_CLOSE_ENOUGH = 1e-4


def compute_acceptance_length(acceptance: float, k: int) -> float:
    """Return the tokens that a step emits if each draft token is accepted with this probability, once those before it
    were."""
    return sum(acceptance**place for place in range(k + 1))


def find_acceptance(length: float, k: int) -> float:
    """Return the probability at which a step emits `length` tokens; 0 or 1, whichever is nearer, where none does."""
    low, high = 0.0, 1.0
    while high - low > _CLOSE_ENOUGH:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_acceptance_length(middle, k) >= length else (middle, high)
    return high


def choose_best_k(
    machine: Machine, batch: DecodeBatch, drafting: Drafting, acceptance: float, among: Iterable[int]
) -> int:
    """Return the k that emits most tokens per second; the smallest of equals."""
    return max(
        sorted(among), key=lambda k: compute_acceptance_length(acceptance, k) / machine.drafting_s(batch, drafting, k)
    )
