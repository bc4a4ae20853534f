"""Recognizes a checkpoint's drafter, method and format from its config and its tensors' names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftwise.checkpoints.config_values import AuxLayers, find_aux_layers, find_mask_token
from draftwise.checkpoints.speculators_format import find_by_marks, flatten
from draftwise.knowledge.methods import Method, methods_where


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizedDrafter:
    """What a checkpoint is, as drafters go."""

    method: str
    """vLLM's method name; `draft_model` for a whole language model, which may also be a target."""
    traits: Method
    """What is true of the method."""
    layout: Literal["plain", "speculators"]
    algorithm: str
    """`speculators_model_type`, else the method."""
    config: Mapping[str, Any]
    """Plain fields, whatever the layout."""
    architecture: str
    """The first, empty where none is named."""
    parallel: bool
    """Whether it drafts all tokens in one pass over masked tokens."""
    mask_token_id: int | None
    aux_layers: AuxLayers | None
    """None for drafters that do not read states of several layers, and where the config does not say which."""

    @property
    def is_head(self) -> bool:
        """Whether it runs on the target's hidden states instead of being a model of its own."""
        return self.traits.drafts_from == "target_states"


def recognize(config: Mapping[str, Any], names: Collection[str]) -> RecognizedDrafter:
    """Return what a config.json and the names of its tensors amount to."""
    algorithm = config.get("speculators_model_type")
    plain = flatten(config)
    named = plain.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    method = _find_by_algorithm(algorithm) or find_by_marks(plain, architecture, names)
    mask = find_mask_token(plain)
    return RecognizedDrafter(
        method=method.name,
        traits=method,
        layout="plain" if algorithm is None else "speculators",
        algorithm=method.name if algorithm is None else str(algorithm),
        config=plain,
        architecture=architecture,
        parallel=method.parallel == "always" or (mask is not None and method.parallel == "option"),
        mask_token_id=mask,
        aux_layers=find_aux_layers(plain) if method.aux_states == "several" else None,
    )


def _find_by_algorithm(algorithm: object) -> Method | None:
    return next((method for method in methods_where().values() if algorithm in method.speculators), None)
