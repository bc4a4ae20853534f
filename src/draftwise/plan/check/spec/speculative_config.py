"""The speculative config as far as vLLM has filled it in, with the method and model that its keys mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.methods import Method, find_method, find_placeholder
from draftwise.plan.check.cli import Fields, find_load_faults, read_fields
from draftwise.plan.check.model import Model
from draftwise.plan.check.stages import Context, Step

_URLS = ("http://", "https://", "file://")
_CUSTOM_CLASS = "custom_class"
_IMPLIED = {
    "deepseek_v3": "target-implies-mtp",
    "mimo": "target-implies-mtp",
    "ernie4_5_moe": "more-targets-imply-mtp",
    "qwen3_next": "more-targets-imply-mtp",
}
"""Targets whose MTP layers old releases use whatever method is asked for, and the rule of those releases."""
_IMPLIED_METHOD = "deepseek_mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The config so far. A value that an earlier fault leaves open is not `known`, and its rules are skipped."""

    fields: Fields
    target: Model | None
    """None if the target's config.json cannot be read here."""
    method: str | None = None
    model: str | None = None
    """Name of the drafter, or a placeholder for methods without one."""
    tokens: Any = None
    quantization: str | None = None
    lookup: tuple[int | None, int | None] = (None, None)
    """(shortest, longest) n-gram in tokens."""
    draft: Model | None = None
    """None without a drafter, or if its config.json cannot be read or was rejected."""
    draft_tp: int | None = None
    draft_len: int | None = None
    parallel_drafting: bool = False
    rates: tuple[float, ...] | None = None
    filled: Mapping[str, Any] = field(default_factory=dict)
    """Keys that vLLM fills in and that are no fields of `Resolved`."""
    open: frozenset[str] = frozenset()
    """Keys whose value an earlier fault leaves open; `draft` is the drafter itself."""

    @property
    def facts(self) -> Method | None:
        """Facts about the method; None until it is known.

        Raises:
            MissingFacts: a release that the user added has a method without a row in draftwise.
        """
        found = find_method(self.method)
        if self.method is None or found is not None:
            return found
        raise MissingFacts.because(
            "method-not-known",
            f"draftwise knows only the name of the method {self.method}, so it cannot judge this setup.",
            where="method",
            fix="Upgrade draftwise.",
        )

    @property
    def draft_names(self) -> tuple[str, ...]:
        """The drafter's architectures; empty without a drafter."""
        return () if self.draft is None else self.draft.config.architectures

    def get(self, key: str) -> Any:
        """Return a key's value; None for one that is unset, faulty or not in the release."""
        return self.fields.values.get(key)

    def known(self, *keys: str) -> bool:
        """Return whether none of these keys is faulty or open."""
        return self.open.isdisjoint(keys)

    def reads(self, key: str) -> bool:
        """Return whether this method reads a key that only certain methods read."""
        return self.facts is not None and key in self.facts.keys

    def undecided(self, *keys: str) -> Spec:
        """Return the config with further keys left open by a fault."""
        return replace(self, open=self.open | set(keys))


def read_spec(context: Context, target: Model | None) -> Step[Spec]:
    """Return the config as its keys give it, with the method and model that they mean."""
    fields = yield from read_fields(context)
    yield from find_load_faults(context)
    spec = Spec(
        fields=fields,
        target=target,
        tokens=fields.values.get("num_speculative_tokens"),
        quantization=fields.values.get("quantization"),
        open=fields.faulty,
    )
    spec = yield from _infer_method(context, spec)
    return (yield from _imply_model(context, spec))


def _infer_method(context: Context, spec: Spec) -> Step[Spec]:
    if not spec.known("method", "model"):
        return spec
    spec = replace(spec, method=spec.get("method"), model=spec.get("model"))
    spec = yield from _infer_custom_class(context, spec)
    if spec.method is None:
        stood_for = find_placeholder(spec.model)
        if stood_for is not None or context.rules.holds("method-defaults-to-draft-model"):
            spec = replace(spec, method="draft_model" if stood_for is None else stood_for.name)
    facts = spec.facts
    if facts is not None and facts.name != spec.method and context.rules.holds("mtp-alias"):
        yield from context.rules.ruling("mtp-alias", method=spec.method, name=facts.name)
        spec = replace(spec, method=facts.name)
    return spec


def _infer_custom_class(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the method custom_class where `model` is taken for the path of a Python class."""
    model = spec.model
    if model is None or "." not in model or "/" in model or model.startswith(_URLS):
        return spec
    if context.rules.holds("dotted-name-is-class"):
        if spec.facts is None or spec.facts.drafts_from != "own_code":
            yield from context.rules.ruling("dotted-name-is-class", model=model)
        return replace(spec, method=_CUSTOM_CLASS)
    if (
        spec.method is None
        and all(part.isidentifier() for part in model.split("."))
        and context.rules.holds("dotted-name-is-class-unless-method")
    ):
        yield from context.rules.ruling("dotted-name-is-class-unless-method", model=model)
        return replace(spec, method=_CUSTOM_CLASS)
    return spec


def _imply_model(context: Context, spec: Spec) -> Step[Spec]:
    """Give a config without `model` the drafter that its method implies."""
    names_neither = spec.model is None and "method" not in spec.fields.given
    if names_neither and spec.target is None and context.rules.holds("speculators-format"):
        # A target that nobody has seen may be a checkpoint of Speculators, which brings all of these.
        return spec.undecided("method", "model", "draft", "num_speculative_tokens")
    if spec.model is not None or not spec.known("method", "model", "num_speculative_tokens") or spec.tokens is None:
        return spec
    facts = spec.facts
    target_type = "" if spec.target is None else spec.target.config.text.model_type
    if target_type in _IMPLIED and context.rules.holds(_IMPLIED[target_type]):
        if spec.method != _IMPLIED_METHOD:
            yield from context.rules.ruling(_IMPLIED[target_type], target_type=target_type)
        return (yield from _draft_with_target(context, spec))
    # Releases that still go by the old names of mtp draft with the target only where its type implies it.
    if facts is not None and facts.weights in ("target", "either") and spec.method not in facts.aliases:
        return (yield from _draft_with_target(context, spec))
    if facts is not None and facts.drafts_from == "own_code":
        yield from context.rules.ruling("custom-class-needs-path", method=spec.method)
        return spec.undecided("model")
    if facts is not None and facts.weights == "none":
        return replace(spec, model=spec.method)
    if target_type or not context.rules.holds("target-implies-mtp"):
        named = "method" in spec.fields.given
        yield from context.rules.ruling(
            "model-missing",
            message=f"The method {spec.method} needs the key `model`, which names the drafter."
            if named
            else "The config needs the key `method` or `model`.",
        )
        return spec.undecided("model", "draft")
    return spec


def _draft_with_target(context: Context, spec: Spec) -> Step[Spec]:
    spec = replace(spec, model=context.verifier or context.setup.target)
    if not spec.quantization and spec.target is not None and context.rules.holds("mtp-inherits-quantization"):
        spec = replace(spec, quantization=spec.target.quantization)
    is_v32 = spec.target is not None and spec.target.config.text.model_type == "deepseek_v32"
    if is_v32 and context.rules.holds("mtp-v32-eager"):
        yield from context.rules.ruling("mtp-v32-eager", method=spec.method)
        spec = replace(spec, filled={**spec.filled, "enforce_eager": True})
    return spec
