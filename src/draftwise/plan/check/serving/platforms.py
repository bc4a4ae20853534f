"""What CPU servers cannot do, and what they do wrong."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import SPEC, Draft, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_cpu"]


def find_cpu(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what speculation meets on a CPU server."""
    if context.platform != "cpu":
        return
    draft = Draft.resolved(context, resolved)
    yield from rule_if(
        context, "cpu-without-speculation", True, f"CPU servers of {context.release} do not speculate; start-up ends.",
        where=SPEC, fix="Use 0.20.0 or newer.",
    )  # fmt: skip
    yield from rule_if(
        context, "cpu-ngram-gpu", draft.method == "ngram_gpu", "ngram_gpu needs an accelerator's pinned memory.",
        where="method", fix="Use ngram.",
    )  # fmt: skip
    yield from rule_if(
        context, "cpu-synthetic", draft.spec.get("rejection_sample_method") == "synthetic",
        "synthetic acceptance is not written for CPU sampling.", where="rejection_sample_method", fix="Leave it out.",
    )  # fmt: skip
    yield from rule_if(
        context, "cpu-sampling-wrong", draft.method != "extract_hidden_states",
        "on CPU, requests with temperature > 0 are answered wrongly: their logits are divided by uninitialised memory.",
        where=SPEC, fix="Serve greedy requests only (temperature 0; the default of a request is 1).",
    )  # fmt: skip
    layers = (draft.config or {}).get("num_hidden_layers")
    yield from rule_if(
        context, "cpu-dflash-norm", draft.method == "dflash" and isinstance(layers, int) and layers > 1,
        f"on CPU, the keys of all {layers} drafter layers get the first layer's norm: almost no guess holds.",
        where="method", fix="Judge DFlash on a GPU.",
    )  # fmt: skip
