"""What CPU servers cannot do, and what they do wrong."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_cpu"]


def find_cpu(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what speculation meets on a CPU server."""
    if context.platform != "cpu":
        return
    message = f"CPU servers of vLLM {context.release} do not speculate; start-up ends."
    yield from context.rules.ruling("cpu-without-speculation", message, where=SPEC, fix="Use 0.20.0 or newer.")
    message = f"{resolved.method} needs an accelerator's pinned memory."
    yield from context.rules.ruling("cpu-ngram-gpu", message, where="method", fix="Use ngram.", method=resolved.method)
    if context.keys.get("rejection_sample_method") == "synthetic":
        message = "Synthetic acceptance is not written for CPU sampling."
        yield from context.rules.ruling("cpu-synthetic", message, where="rejection_sample_method", fix="Leave it out.")
    if resolved.facts.drafts_from != "none":
        yield from context.rules.ruling(
            "cpu-sampling-wrong",
            "On CPU, requests with temperature > 0 are answered wrongly: their logits are divided by uninitialised "
            "memory.",
            where=SPEC,
            fix="Serve greedy requests only (temperature 0; the default of a request is 1).",
        )
    layers = context.draft_config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > 1:
        yield from context.rules.ruling(
            "cpu-dflash-norm",
            f"On CPU, the keys of all {layers} drafter layers get the first layer's norm: almost no drafted token is "
            "accepted.",
            where="method",
            fix="Judge DFlash on a GPU.",
            method=resolved.method,
        )
