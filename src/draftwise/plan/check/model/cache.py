"""KV-cache types and prefix caching that the release or its platform does not have for the target."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.hf_config import HfConfig

__all__ = ["find_cache"]

_QUANTIZED_CACHES = ("fp8", "int8_per_token_head", "nvfp4")


def find_cache(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield what is refused of the target's KV cache."""
    yield from _find_unknown_type(context)
    yield from _find_type_on_cpu(context)
    yield from _find_window_on_v0(context, config.text)


def _find_unknown_type(context: Context) -> Iterator[Ruling]:
    asked = context.given.get("kv_cache_dtype")
    known = context.release.table("flags")["--kv-cache-dtype"].get("suggestions", ())
    if isinstance(asked, str) and asked not in known:
        near = get_close_matches(asked.lower(), known, n=1)
        yield from context.ruling(
            "kv-cache-dtype-unknown",
            f"kv_cache_dtype {asked!r} does not exist in vLLM {context.release}.",
            where="kv_cache_dtype",
            fix=f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}.",
        )


def _find_type_on_cpu(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of a KV-cache dtype that a CPU server has no kernels for."""
    asked = context.given.get("kv_cache_dtype")
    if context.platform != "cpu" or asked in (None, "auto"):
        return
    quantized = context.holds("cpu-kv-cache-any-dtype") or str(asked).startswith(_QUANTIZED_CACHES)
    caches = context.flag("enable_prefix_caching")
    if context.holds("cpu-kv-cache-takes-v0"):
        features = caches is True or context.flag("enable_chunked_prefill") is True
    else:
        features = caches is not False or context.chunks_prefill
    if quantized and features:
        yield from context.ruling(
            "cpu-kv-cache-dtype",
            f"kv_cache_dtype is {asked!r}, which a CPU server of vLLM {context.release} does not combine with chunked "
            "prefill or prefix caching.",
            where="kv_cache_dtype",
            fix="Leave it out, or use 0.21.0 or newer.",
        )


def _find_window_on_v0(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield that V0 does not cache prefixes of a target with a sliding window."""
    window = None if config.get("use_sliding_window") is False else config.get("sliding_window")
    asked = context.is_on("enable_prefix_caching") and not context.is_on("disable_sliding_window")
    if window is not None and asked and context.runs_on_v0:
        yield from context.ruling(
            "v0-rejects-prefixes-with-window",
            f"The V0 engine takes the server, and caches no prefixes with a sliding window, here {window}.",
            where="--enable-prefix-caching",
            fix="Leave it out, or add --disable-sliding-window.",
        )
