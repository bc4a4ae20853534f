"""Computes the tokens per step if every draft token has the same probability of acceptance."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.plan.cost.machine import DecodeBatch, Drafting, Machine

_CLOSE_ENOUGH = 1e-4


def compute_acceptance_length(acceptance: float, k: int) -> float:
    """Return the tokens per step if each draft token is accepted with this probability, given that those before it
    were."""
    return sum(acceptance**place for place in range(k + 1))


def find_acceptance(length: float, k: int) -> float:
    """Return the probability at which a step emits `length` tokens; if there is no such probability, 0 or 1."""
    low, high = 0.0, 1.0
    while high - low > _CLOSE_ENOUGH:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_acceptance_length(middle, k) >= length else (middle, high)
    return high


def choose_best_k(
    machine: Machine, batch: DecodeBatch, drafting: Drafting, acceptance: float, among: Iterable[int]
) -> int:
    """Return the k with the most tokens per second; the smallest of equals."""
    return max(
        sorted(among), key=lambda k: compute_acceptance_length(acceptance, k) / machine.drafting_s(batch, drafting, k)
    )
