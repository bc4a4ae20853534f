"""Make speculative decoding pay: choose, run, measure, decide and watch it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from draftwise.version import __version__

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__", "forecast"]

_ENGINE = {
    "LLM": "draftwise.engine.llm",
    "SamplingParams": "draftwise.engine.sampling.params",
    "StructuredOutputsParams": "draftwise.engine.sampling.structured_outputs",
}
_LIGHT = {"forecast": "draftwise.verbs.forecast"}
"""What needs no engine."""

if TYPE_CHECKING:
    from draftwise.engine.llm import LLM
    from draftwise.engine.sampling.params import SamplingParams
    from draftwise.engine.sampling.structured_outputs import StructuredOutputsParams
    from draftwise.verbs.forecast import forecast


def __getattr__(name: str) -> Any:
    """Import the engine (and torch) only when it is asked for, and what else is here with its first use.

    Raises:
        ImportError: the engine's packages are not installed; says how to install them.
    """
    if name in _LIGHT:
        return getattr(importlib.import_module(_LIGHT[name]), name)
    if name not in _ENGINE:
        raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_ENGINE[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("draftwise"):
            raise
        raise ImportError(
            f"draftwise.{name} needs {error.name}, which is not installed. Run: pip install 'draftwise[engine]'."
        ) from error
