"""Make speculative decoding pay: choose, run, measure, decide and watch it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from draftwise.version import __version__, tell_install

__all__ = [
    "LLM", "SamplingParams", "StructuredOutputsParams", "__version__", "bundle", "calibrate", "check", "compare",
    "decide", "deploy", "explain", "export", "facts", "fetch", "forecast", "guard", "inspect", "pick", "replay",
    "report", "rollback", "schedule", "size", "train", "ui", "upgrade", "verify", "watch",
]  # fmt: skip

_ENGINE = {
    "LLM": "draftwise.engine.llm",
    "SamplingParams": "draftwise.engine.sampling.params",
    "StructuredOutputsParams": "draftwise.engine.sampling.params",
}
_VERBS = frozenset(__all__) - {*_ENGINE, "__version__"}

if TYPE_CHECKING:
    from draftwise.engine.llm import LLM
    from draftwise.engine.sampling.params import SamplingParams, StructuredOutputsParams
    from draftwise.verbs.bundle import bundle
    from draftwise.verbs.calibrate import calibrate
    from draftwise.verbs.check import check
    from draftwise.verbs.compare import compare
    from draftwise.verbs.decide import decide
    from draftwise.verbs.deploy import deploy
    from draftwise.verbs.explain import explain
    from draftwise.verbs.export import export
    from draftwise.verbs.facts import facts
    from draftwise.verbs.fetch import fetch
    from draftwise.verbs.forecast import forecast
    from draftwise.verbs.guard import guard
    from draftwise.verbs.inspect import inspect
    from draftwise.verbs.pick import pick
    from draftwise.verbs.replay import replay
    from draftwise.verbs.report import report
    from draftwise.verbs.rollback import rollback
    from draftwise.verbs.schedule import schedule
    from draftwise.verbs.size import size
    from draftwise.verbs.train import train
    from draftwise.verbs.ui import ui
    from draftwise.verbs.upgrade import upgrade
    from draftwise.verbs.verify import verify
    from draftwise.verbs.watch import watch
else:

    def __getattr__(name: str) -> Any:
        """Import a verb, or the engine (and torch), when it is first used.

        Raises:
            ImportError: the engine's packages are not installed; says how to install them.
        """
        if name in _VERBS:
            return getattr(import_module(f"draftwise.verbs.{name}"), name)
        if name not in _ENGINE:
            raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
        try:
            return getattr(import_module(_ENGINE[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("draftwise"):
                raise
            raise ImportError(
                f"draftwise.{name} needs {error.name}, which is not installed. {tell_install('engine')}"
            ) from error

    def __dir__() -> list[str]:
        """Return the public names; `help` asks for each, so the engine counts only where it can be imported."""
        return [name for name in __all__ if name not in _ENGINE or find_spec("torch")]
