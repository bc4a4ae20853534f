"""How many tokens are drafted: as given, as the drafter was made for, or as a tree of old releases spells out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["require_tokens", "settle_tokens", "verify_tokens"]

_KEY = "num_speculative_tokens"
_TREE = "speculative_token_tree"
_LONGEST_TREE = 1000
"""The tree of a chain grows with the square of its length; a longer one is not written out."""


def settle_tokens(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in or check the number of tokens against what the drafter was made for."""
    if spec.draft is None or not spec.known(_KEY) or context.rules.applies("dspark-tokens-by-block", spec.method):
        return spec
    yield from _find_inkling(context, spec)
    steps = spec.draft.config.get("n_predict")
    if not isinstance(steps, int) or steps < 0:
        return spec
    if spec.tokens is None and steps:
        yield from context.rules.ruling(
            "tokens-from-drafter",
            f"{_KEY} is not given; the drafter's n_predict makes it {steps}.",
            where=_KEY,
            becomes=str(steps),
        )
        return replace(spec, tokens=steps)
    if isinstance(spec.tokens, (int, float)):
        yield from _find_misfit(context, spec.tokens, steps)
    return spec


def _find_inkling(context: Context, spec: Spec) -> Iterator[Ruling]:
    if spec.draft is not None and spec.draft.config.model_type == "inkling_mtp" and spec.tokens not in (None, 1):
        yield from context.rules.ruling(
            "inkling-one-token",
            f"{_KEY} is {spec.tokens}; this release drafts exactly one token with Inkling.",
            where=_KEY,
            fix="Give 1, or use 0.28.0 or newer.",
        )


def _find_misfit(context: Context, tokens: float, steps: int) -> Iterator[Ruling]:
    if not steps and tokens > 0:
        yield from context.rules.ruling(
            "drafter-predicts-nothing",
            "The drafter has 0 for the number of its prediction steps.",
            where="model",
            fix="Use a checkpoint with MTP modules, or another method.",
        )
    elif steps and tokens > steps and tokens % steps:
        yield from context.rules.ruling(
            "tokens-not-divisible",
            f"{_KEY} is {tokens}, and above the drafter's n_predict it must be a multiple of {steps}.",
            where=_KEY,
            fix=f"Give {steps} or a multiple, e.g. {steps * (tokens // steps)}.",
        )


def require_tokens(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a missing or fractional number as old releases do, and fill in their token tree."""
    if not spec.known(_KEY):
        return spec
    if (tree := spec.get(_TREE)) is not None:
        yield from _find_malformed_tree(context, tree)
        return spec
    if spec.tokens is None:
        yield from context.rules.ruling(
            "tokens-missing-type-error",
            f"{_KEY} must be given: without it vLLM fails with a TypeError.",
            where=_KEY,
            fix='Add it, e.g. "num_speculative_tokens": 3.',
        )
        return spec.undecided(_KEY) if context.rules.holds("tokens-missing-type-error") else spec
    if isinstance(spec.tokens, float):
        yield from context.rules.ruling(
            "tokens-not-whole",
            f"{_KEY} must be an integer, got {spec.tokens}.",
            where=_KEY,
            fix="Give an integer above 0.",
        )
        return spec.undecided(_KEY) if context.rules.holds("tokens-not-whole") else spec
    if context.rules.holds("token-tree-malformed") and isinstance(spec.tokens, int) and spec.tokens <= _LONGEST_TREE:
        chain = str([(0,) * length for length in range(1, spec.tokens + 1)])
        return replace(spec, filled={**spec.filled, _TREE: chain})
    return spec


def _find_malformed_tree(context: Context, tree: str) -> Iterator[Ruling]:
    try:
        choices = ast.literal_eval(tree)
        sorted(choices, key=lambda path: (len(path), path))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        yield from context.rules.ruling(
            "token-tree-malformed",
            f"{_TREE} is not a list of tuples.",
            where=_TREE,
            fix="Leave it out: chains are the default, and the key is gone from 0.21.0 on.",
        )


def verify_tokens(context: Context, spec: Spec) -> Step[Spec]:
    """Judge the number that every other step has had its say about."""
    if not spec.known(_KEY):
        return spec
    tokens = spec.tokens
    if tokens is None:
        if not spec.known("model", "draft"):
            return spec
        code, message, fix = "tokens-missing", f"{_KEY} must be given.", 'Add it, e.g. "num_speculative_tokens": 3.'
    elif not isinstance(tokens, (int, float)):
        code, fix = "tokens-not-a-number", "Give an integer above 0."
        message = f"{_KEY} must be an integer, got {tokens!r}."
    elif tokens <= 0:
        code, fix = "tokens-not-positive", "Give 1 or more; leave out speculation to switch it off."
        message = f"{_KEY} is {tokens}; it must be above 0."
    else:
        if isinstance(tokens, float) and not tokens.is_integer():
            yield from context.rules.ruling(
                "tokens-not-whole-lookahead",
                f"{_KEY} is {tokens}; it must be whole.",
                where=_KEY,
                fix="Give an integer above 0.",
            )
        return spec
    yield from context.rules.ruling(code, message, where=_KEY, fix=fix)
    return spec.undecided(_KEY) if context.rules.holds(code) else spec
