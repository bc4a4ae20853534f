"""The target: what ModelConfig makes of the served model, and what the engine's config still says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling, Stage
from draftwise.facts.methods import find_method
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.architecture import supports
from draftwise.plan.check.model.cache import find_cache
from draftwise.plan.check.model.model import Model, build_model
from draftwise.plan.check.model.parallel import find_target_parallel
from draftwise.plan.check.model.quantization import find_unquantized
from draftwise.plan.check.model.reading import read_hf_config
from draftwise.plan.check.model.sizes import find_sizes
from draftwise.plan.check.steps import Step

__all__ = ["find_target", "read_target"]


def read_target(context: Context) -> Step[Model | None]:
    """Return the target as ModelConfig holds it, and yield why it is refused; None where it cannot be read here."""
    if context.target is None:
        yield from _find_unknown(context)
        return None
    config = yield from read_hf_config(context, context.target, role="target")
    if config is None:
        return None
    yield from find_sizes(context)
    length = context.given.get("max_model_len")
    quantization = context.given.get("quantization")
    return (
        yield from build_model(
            context,
            config,
            role="target",
            max_model_len=length if isinstance(length, int) else None,
            quantization=quantization if isinstance(quantization, str) else None,
        )
    )


def _find_unknown(context: Context) -> Iterator[Ruling]:
    name = context.setup.target
    for fault in context.faults:
        if fault.where == name:
            yield from context.ruling("target-config-unreadable", fault.message, where="target", fix=fault.fix)
            return
    yield from context.ruling(
        "target-not-here",
        f"The target {name!r} is neither a directory here nor in the table of known models; what depends on its "
        "config.json is not checked.",
        where="target",
        fix="Give a directory with its config.json to have the rest checked.",
    )


def find_target(context: Context, target: Model, method: str | None) -> Iterator[Ruling]:
    """Yield what the engine's config says of the target once the speculative config stands.

    Args:
        context: the setup.
        target: the served model.
        method: as resolved, None where it is not.
    """
    for ruling in find_target_parallel(context, target.config):
        yield replace(ruling, stage=Stage.CONFIG) if _stands_in(context, method) else ruling
    yield from find_unquantized(context, target.config)
    names = target.config.architectures
    if context.flag("enable_lora") is True and not supports(context, names, "SupportsLoRA"):
        yield from context.ruling(
            "target-without-lora",
            f"enable_lora is set, and {', '.join(names)} has no LoRA support.",
            where="enable_lora",
            fix="Remove it.",
        )
    yield from find_cache(context, target.config)


def _stands_in(context: Context, method: str | None) -> bool:
    """Say whether vLLM puts the target in the place of the drafter that a method does not have, and checks it first."""
    found = find_method(method)
    return found is not None and not found.has_weights and not context.applies("suffix-without-draft-config", method)
