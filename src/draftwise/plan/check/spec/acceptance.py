"""Which drafts are accepted by something else than the target's word: synthetic acceptance, and FLy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["resolve_fly", "resolve_synthetic"]

_METHOD = "rejection_sample_method"
_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
_WINDOW, _LONGEST_WINDOW = "fly_window_size", 6


def resolve_synthetic(context: Context, spec: Spec) -> Step[tuple[float, ...] | None]:
    """Return the rate at which each position is accepted; None without synthetic acceptance."""
    if not spec.known(_METHOD, _RATES, _LENGTH):
        return None
    rates, length = spec.get(_RATES), spec.get(_LENGTH)
    if spec.get(_METHOD) != "synthetic":
        if rates is not None or length is not None:
            key = _RATES if rates is not None else _LENGTH
            message = f'{key} works only with "{_METHOD}": "synthetic".'
            yield from context.rules.ruling(
                "synthetic-needs-method", message, where=key, fix="Add that, or remove the key."
            )
        return None
    if not context.rules.holds("synthetic-needs-method"):
        return None
    if (rates is None) == (length is None):
        yield from context.rules.ruling(
            "synthetic-needs-one",
            f"Synthetic acceptance needs exactly one of {_RATES} and {_LENGTH}.",
            where=_METHOD,
            fix=f'Add e.g. "{_LENGTH}": 2.5.',
        )
        return None
    if not isinstance(spec.tokens, int) or not spec.known("num_speculative_tokens"):
        return None
    if rates is None:
        return (yield from _spread(context, float(length), spec.tokens))
    faults = [*_find_rate_faults(context, rates, spec.tokens)]
    yield from faults
    return None if faults else tuple(rates)


def _find_rate_faults(context: Context, rates: Sequence[float], tokens: int) -> Iterator[Ruling]:
    if len(rates) != tokens:
        wrong = f"has {len(rates)} entries; num_speculative_tokens is {tokens}"
    elif not all(0 <= rate <= 1 for rate in rates):
        wrong = "has an entry outside 0 to 1"
    elif any(later > earlier for earlier, later in pairwise(rates)):
        wrong = "rises; each position can be accepted at most as often as the one before it"
    else:
        return
    fix = f"Give {tokens} falling numbers from 0 to 1."
    yield from context.rules.ruling("synthetic-rates", f"{_RATES} {wrong}.", where=_RATES, fix=fix)


def _spread(context: Context, length: float, tokens: int) -> Step[tuple[float, ...] | None]:
    """Return the rate of each position for a mean length: whole positions first, then the fraction."""
    if not 1 <= length <= tokens + 1:
        yield from context.rules.ruling(
            "synthetic-length",
            f"{_LENGTH} is {length}; with {tokens} tokens it must be 1 to {tokens + 1}.",
            where=_LENGTH,
            fix=f"Give 1 to {tokens + 1}.",
        )
        return None
    whole = int(length - 1)
    rates = [1.0] * whole + [length - 1 - whole] + [0.0] * (tokens - whole - 1)
    return tuple(rates[:tokens])


def resolve_fly(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in the window of FLy, which accepts some rejected tokens, and yield what it cannot work with."""
    if spec.get(_METHOD) != "fly" or not spec.known("num_speculative_tokens", "method"):
        return spec
    window = spec.get(_WINDOW)
    if spec.facts is not None and spec.facts.drafts_from == "none":
        message = f"FLy makes no sense with {spec.method}, which drafts nothing."
        yield from context.rules.ruling("fly-needs-drafts", message, where=_METHOD, fix="Remove it.")
    elif not isinstance(spec.tokens, int):  # what is wrong with it is said where it is judged
        return spec
    elif spec.tokens < 2:
        yield from context.rules.ruling(
            "fly-needs-two-tokens",
            "FLy needs num_speculative_tokens of 2 or more.",
            where=_METHOD,
            fix='Write "num_speculative_tokens": 2 or more.',
        )
    elif window is not None and window >= spec.tokens:
        yield from context.rules.ruling(
            "fly-window-too-long",
            f"{_WINDOW} is {window}; it must be below num_speculative_tokens, {spec.tokens}.",
            where=_WINDOW,
            fix=f"Give at most {min(_LONGEST_WINDOW, spec.tokens - 1)}.",
        )
    else:
        yield from context.rules.ruling(
            "fly-is-lossy",
            "FLy lets some rejected tokens through: answers differ from the target's own.",
            where=_METHOD,
            fix="Use standard for lossless speculation.",
        )
        length = window or min(_LONGEST_WINDOW, spec.tokens - 1)
        return replace(spec, filled={**spec.filled, _WINDOW: length})
    return spec
