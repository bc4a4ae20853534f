"""The V0 engine of the oldest release, which takes over what its V1 engine does not know."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import holds, is_on, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["V0_EAGLE", "find_v0", "find_window", "has_chunked_prefill", "runs_on_v0"]

V0_EAGLE = "EAGLEModel"
"""The one class that V0 has for every EAGLE head."""

_KNOWN_TO_V1 = ("ngram", "[ngram]", "medusa", "eagle", "eagle3", "deepseek_mtp")


def runs_on_v0(context: Context) -> bool:
    """Say whether the V0 engine serves the setup: the rules about V1's runners then do not apply."""
    return holds(context, "v0-engine-taken") and not _is_known(context) and not _insists_on_v1(context)


def has_chunked_prefill(context: Context) -> bool:
    """Say whether prompts may be split over steps; V0 does not do it by default while it speculates."""
    given = context.flag("enable_chunked_prefill")
    if runs_on_v0(context):
        return given is True
    return given is not False or holds(context, "v1-always-chunks")


def find_v0(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what becomes of a method that the V1 engine does not know by the name that is written."""
    if context.spec is None or _is_known(context):
        return
    if runs_on_v0(context):
        yield from _find_conflicts(context, resolved)
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


def _find_conflicts(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what V0 refuses and V1 does not."""
    eagle = resolved is not None and resolved.method in ("eagle", "eagle3")
    yield from rule_if(
        context, "v0-rejects-chunked-eagle", eagle and has_chunked_prefill(context),
        "the V0 engine takes the server, and does not split prompts with EAGLE.",
        where="--enable-chunked-prefill", fix="Write the method, so that V1 is taken, or leave the flag out.",
    )  # fmt: skip
    length = context.given.get("max_model_len")
    yield from rule_if(
        context, "v0-rejects-negative-length", isinstance(length, int) and length < 0,
        f"the V0 engine takes the server, and max_model_len is {length}.", where="--max-model-len", fix="Leave it out.",
    )  # fmt: skip


def find_window(context: Context, window: object) -> Iterator[Ruling]:
    """Yield that V0 does not cache prefixes of a target with a sliding window.

    Args:
        context: the setup.
        window: the target's, in tokens; None for one without.
    """
    asked = is_on(context, "enable_prefix_caching") and not is_on(context, "disable_sliding_window")
    yield from rule_if(
        context, "v0-rejects-prefixes-with-window", window is not None and asked and runs_on_v0(context),
        f"the V0 engine takes the server, and caches no prefixes with a sliding window, here {window}.",
        where="--enable-prefix-caching", fix="Leave it out, or add --disable-sliding-window.",
    )  # fmt: skip


def _is_known(context: Context) -> bool:
    spec = context.spec or {}
    return context.spec is None or (spec.get("method") or spec.get("model")) in _KNOWN_TO_V1


def _insists_on_v1(context: Context) -> bool:
    return context.env.get("VLLM_USE_V1") == "1"
