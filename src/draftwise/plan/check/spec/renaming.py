"""The names under which vLLM builds a drafter's class: those of EAGLE and DFlash get their method before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import HfConfig, find_architecture
from draftwise.plan.check.model.reading import V0_EAGLE
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["rename_classes", "with_config"]

_LILICORR = "LiLiCorrDraftModel"


def rename_classes(context: Context, spec: Spec) -> Step[Spec]:
    """Apply the naming of EAGLE and DFlash classes, and check that the release has the outcome."""
    prefix = None if spec.facts is None else spec.facts.class_prefix
    if prefix is None or spec.draft is None or spec.draft.config.kind in ("eagle", "speculators"):
        return spec
    names: Sequence[str] = [_rename(context, spec, name, prefix) for name in spec.draft_names]
    if context.runs_on_v0:
        names = [V0_EAGLE]
    return (yield from with_config(context, spec, spec.draft.config.changed(architectures=names, model_type="eagle")))


def _rename(context: Context, spec: Spec, name: str, prefix: str) -> str:
    """Return a class's name with the method's before it, unless that is in it."""
    several = spec.facts is not None and spec.facts.taps == "several"
    may_end = several and not context.rules.applies("eagle3-suffix-unknown", spec.method)
    if name.startswith(prefix) or (may_end and name.endswith(prefix)):
        return name
    if name == _LILICORR and context.rules.applies("dflash-lilicorr", spec.method):
        return name
    return prefix + name


def with_config(context: Context, spec: Spec, config: HfConfig) -> Step[Spec]:
    """Return the config with another one of the drafter; releases that look for its class this early must have it."""
    assert spec.draft is not None
    spec = replace(spec, draft=replace(spec.draft, config=config))
    if not context.rules.holds("drafter-class-missing") or find_architecture(context, config.architectures) is not None:
        return spec
    yield from context.rules.ruling(
        "drafter-class-missing",
        f"The drafter is run as {spec.method}, which needs the class {config.architectures[0]}; vLLM "
        f"{context.release} has none of that name.",
        where="model",
        fix="Use a head whose architecture this release registers, or the method that the head was made for.",
    )
    return spec.undecided("draft")
