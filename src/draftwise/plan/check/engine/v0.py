"""The V0 engine of the oldest release, which takes over what its V1 engine does not know."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_v0"]


def find_v0(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what becomes of a method that the V1 engine does not know by the name that is written."""
    if context.spec is None or context.is_known_to_v1:
        return
    if context.runs_on_v0:
        yield from _find_conflicts(context, resolved)
    method = context.spec.get("method")
    unknown = f"{f'The method {method}' if method else 'A config without method'} is not known to the V1 engine"
    fix = "Write the method of an EAGLE or Medusa head, or use a newer release."
    if context.insists_on_v1:
        message = f"{unknown} of vLLM {context.release}, and VLLM_USE_V1=1 forbids V0."
        yield from context.rules.ruling("v0-engine-refused", message, where="method", fix=fix)
    else:
        message = f"{unknown} of vLLM {context.release}: the V0 engine takes the whole server."
        yield from context.rules.ruling("v0-engine-taken", message, where="method", fix=fix, becomes="the V0 engine")


def _find_conflicts(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what V0 refuses and V1 does not."""
    if resolved is not None and context.chunks_prefill:
        yield from context.rules.ruling(
            "v0-rejects-chunked-eagle",
            "The V0 engine takes the server, and does not split prompts with EAGLE.",
            where="--enable-chunked-prefill",
            fix="Write the method, so that V1 is taken, or leave the flag out.",
            method=resolved.method,
        )
    length = context.given.get("max_model_len")
    if isinstance(length, int) and length < 0:
        yield from context.rules.ruling(
            "v0-rejects-negative-length",
            f"The V0 engine takes the server, and max_model_len is {length}.",
            where="--max-model-len",
            fix="Leave it out.",
        )
