"""What the rules of this package look at beside the context: drafter, target interfaces, engine flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.architecture import find_architecture, supports
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = [
    "MODEL_FREE", "SPEC", "Draft", "get_experts", "get_size", "has_interface", "holds", "is_on", "read_json", "rule_if",
]  # fmt: skip

SPEC = "--speculative-config"

MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods whose guesses do not come out of a model that vLLM loads."""

_CANDIDATE_HEADS = frozenset({"DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel"})
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
_EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The drafting side of a setup."""

    method: str
    parallel: bool
    """Whether all guesses come from one pass."""
    spec: Mapping[str, Any]
    """The JSON as written, with dashes in keys as underscores."""
    config: Mapping[str, Any] | None
    """The drafter's config.json; None where there is none or it is not known here."""
    architectures: frozenset[str]

    @classmethod
    def of(
        cls, context: Context, method: str, parallel: bool = False, architectures: tuple[str, ...] | None = None
    ) -> Draft:
        """Return the drafting side of a context for a method."""
        drafter = context.drafter
        if architectures is None:
            architectures = () if drafter is None else drafter.architectures
        return cls(
            method=method,
            parallel=parallel,
            spec=context.keys,
            config=None if drafter is None else drafter.config,
            architectures=frozenset(architectures),
        )

    @classmethod
    def resolved(cls, context: Context, resolved: Resolved) -> Draft:
        """Return the drafting side of a resolved config."""
        return cls.of(context, resolved.method, resolved.parallel_drafting, resolved.draft_architectures)

    @property
    def mixes_attention(self) -> bool:
        """Whether the drafter has sliding-window and full-attention layers."""
        kinds = (self.config or {}).get("layer_types")
        sliding = kinds.count("sliding_attention") if isinstance(kinds, list) else 0
        return isinstance(kinds, list) and 0 < sliding < len(kinds)

    @property
    def has_candidate_head(self) -> bool:
        """Whether the drafter is of the DFlash2 or LiLiCorr kind."""
        return bool(self.architectures & _CANDIDATE_HEADS)

    @property
    def is_xpress(self) -> bool:
        """Whether the drafter carries an XPress refiner."""
        return bool(self.architectures & _XPRESS)


def holds(context: Context, code: str) -> bool:
    """Say whether a rule holds in the context's release."""
    return get_rule(code).holds(context.release.version)


def rule_if(
    context: Context, code: str, met: object, message: str, *, where: str = "", fix: str = "", becomes: str = ""
) -> Iterator[Ruling]:
    """Yield the ruling of one rule if it holds in the release and the setup has met it."""
    if met and holds(context, code):
        yield get_rule(code).ruling(message, where=where, fix=fix, becomes=becomes)


def is_on(context: Context, flag: str) -> bool:
    """Say whether an engine flag is given and neither false nor empty; the defaults of these flags are all off."""
    return context.given.get(flag) not in (None, False, "", [], {}, "false", "False")


def get_size(context: Context, flag: str) -> int | None:
    """Return an engine flag that holds a number; None where the default depends on the GPU."""
    value = context.flag(flag)
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def read_json(value: Any) -> Any:
    """Return a flag's JSON as an object: command lines carry it as text; None for text that is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def get_experts(model: ModelConfig) -> int:
    """Return the routed experts of a model, 0 for a dense one."""
    for key in _EXPERT_KEYS:
        value = model.text_config.get(key)
        if isinstance(value, list):
            value = max((count for count in value if isinstance(count, int)), default=0)
        if isinstance(value, int):
            return value
    return 0


def has_interface(context: Context, name: str) -> bool | None:
    """Say whether the target's model class has an interface in this release; None for one not in the catalogue."""
    names = () if context.target is None else context.target.architectures
    if not names or find_architecture(context, names, served=True) is None:
        return None
    return supports(context, names, name)
