"""Make speculative decoding pay: choose, run, measure, decide and watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftwise.version import __version__

__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from draftwise.engine.llm import LLM
    from draftwise.engine.sampling.params import SamplingParams


def __getattr__(name: str) -> Any:
    """Import the engine (and torch) only when it is asked for."""
    if name == "LLM":
        from draftwise.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from draftwise.engine.sampling.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
