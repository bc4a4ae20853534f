"""Whether a release can build a model class: its registry, the fallbacks of a name, and what the class supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.facts.transformers import is_buildable
from draftwise.plan.check.context import Context

__all__ = ["find_architecture", "has_interface", "supports"]

_BACKEND = "TransformersForCausalLM"
"""The class that builds what vLLM has no class of its own for."""
_ENDINGS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ChatModel",
    "LMHeadModel",
    "ForTextEncoding",
    "EmbeddingModel",
    "ForSequenceClassification",
    "ForRewardModeling",
    "RewardModel",
    "Model",
)
"""Endings that vLLM takes for one another, so that a served `LlamaModel` is built from `LlamaForCausalLM`."""


def find_architecture(context: Context, names: Sequence[str], *, served: bool = False) -> str | None:
    """Return the class that stands for a checkpoint's architectures, None where the release can build none.

    Args:
        context: whose release builds.
        names: as config.json, or vLLM after renaming, has them.
        served: for the model that answers, to which vLLM applies its pairs of endings; never to a drafter.
    """
    registry = context.release.table("architectures")
    for name in names:
        if name in registry:
            return name
        if served and (base := _swap_ending(registry, name)) is not None:
            return base
    if context.holds("transformers-takes-all"):
        return _BACKEND
    by_attention = context.holds("transformers-by-attention")
    return next((name for name in names[:1] if is_buildable(name, by_attention=by_attention)), None)


def _swap_ending(registry: Mapping[str, Any], name: str) -> str | None:
    own = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
    if own is None:
        return None
    return next((base for other in _ENDINGS if (base := name.replace(own, other)) in registry), None)


def supports(context: Context, names: Sequence[str], interface: str) -> bool:
    """Say whether the class for these architectures has an interface, e.g. `SupportsPP`; unknown classes have none."""
    name = find_architecture(context, names, served=True)
    registry = context.release.table("architectures")
    row = registry.get(name, registry.get(_BACKEND)) if name is not None else None
    return row is not None and interface in row.get("interfaces", ())


def has_interface(context: Context, interface: str) -> bool | None:
    """Say whether the target's model class has an interface in this release; None for one not in the catalogue."""
    names = () if context.target is None else context.target.architectures
    if not names or find_architecture(context, names, served=True) is None:
        return None
    return supports(context, names, interface)
