"""Adaptive verification: what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.graphs import cudagraph_mode, lacks_full_graphs, runs_eagerly

__all__ = ["find_adaptive"]

_KEY = "enable_adaptive_verification"
_REJECTED_FLAGS: Mapping[str, str] = {
    "adaptive-rejects-routed-experts": "enable_return_routed_experts",
    "adaptive-rejects-sampling-mask": "return_sampling_mask",
}


def find_adaptive(context: Context) -> Iterator[Ruling]:
    """Yield what adaptive verification cannot be combined with."""
    if not context.keys.get(_KEY):
        return
    fix = f"Leave one of the two out; without {_KEY} every draft is verified."
    without = "Adaptive verification does not go with"
    if context.is_on("enable_lora"):
        yield from context.rules.ruling("adaptive-rejects-lora", f"{without} --enable-lora.", where=_KEY, fix=fix)
    if (stages := context.stages) > 1:
        message = f"{without} pipeline parallelism ({stages} stages)."
        yield from context.rules.ruling("adaptive-rejects-pipeline", message, where=_KEY, fix=fix)
    yield from _find_graphs(context)
    for code, flag in _REJECTED_FLAGS.items():
        if context.is_on(flag):
            yield from context.rules.ruling(code, f"{without} --{flag.replace('_', '-')}.", where=_KEY, fix=fix)


def _find_graphs(context: Context) -> Iterator[Ruling]:
    eager = runs_eagerly(context)
    if eager:
        yield from context.rules.ruling(
            "adaptive-needs-graphs",
            "Adaptive verification chooses by step times measured on CUDA graphs, and they are turned off.",
            where=_KEY,
            fix="Drop --enforce-eager.",
        )
    if eager or lacks_full_graphs(context):
        state = "they are off" if eager else f"the mode is {cudagraph_mode(context)}"
        yield from context.rules.ruling(
            "adaptive-needs-full-graphs",
            f"Adaptive verification needs full CUDA graphs, and {state}.",
            where=_KEY,
            fix="Use cudagraph_mode FULL_AND_PIECEWISE, the default.",
        )
