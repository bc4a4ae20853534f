"""The V0 engine of the oldest release, which takes over what its V1 engine does not know."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import holds, rule_if

__all__ = ["find_v0", "runs_on_v0"]

_KNOWN_TO_V1 = ("ngram", "[ngram]", "medusa", "eagle", "eagle3", "deepseek_mtp")


def runs_on_v0(context: Context) -> bool:
    """Say whether the V0 engine serves the setup: the rules about V1's runners then do not apply."""
    return holds(context, "v0-engine-taken") and not _is_known(context) and not _insists_on_v1(context)


def find_v0(context: Context) -> Iterator[Ruling]:
    """Yield what becomes of a method that the V1 engine does not know by the name that is written."""
    if context.spec is None or _is_known(context):
        return
    method, insists = context.spec.get("method"), _insists_on_v1(context)
    text = (
        f"{f'method {method}' if method else 'a config without method'} is not known to {context.release}'s V1 engine"
    )
    fix = "Write the method of an EAGLE or Medusa head, or use a newer release."
    yield from rule_if(
        context, "v0-engine-taken", not insists, f"{text}: the V0 engine takes the whole server.",
        where="method", fix=fix, becomes="the V0 engine",
    )  # fmt: skip
    yield from rule_if(
        context, "v0-engine-refused", insists, f"{text}, and VLLM_USE_V1=1 forbids V0.", where="method", fix=fix
    )


def _is_known(context: Context) -> bool:
    spec = context.spec or {}
    return context.spec is None or (spec.get("method") or spec.get("model")) in _KNOWN_TO_V1


def _insists_on_v1(context: Context) -> bool:
    return context.env.get("VLLM_USE_V1") == "1"
