"""Which method vLLM takes a config for, as far as `method` and the spelling of `model` decide it."""

from __future__ import annotations

from dataclasses import replace

from draftwise.facts.methods import find_placeholder, get_method
from draftwise.plan.check.context import Context
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["infer_method"]

_URLS = ("http://", "https://", "file://")
_CUSTOM_CLASS = "custom_class"


def infer_method(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the method that its own two keys stand for."""
    if not spec.known("method", "model"):
        return spec
    spec = replace(spec, method=spec.get("method"), model=spec.get("model"))
    spec = yield from _infer_custom_class(context, spec)
    if spec.method is None:
        stood_for = find_placeholder(spec.model)
        if stood_for is not None or context.rules.holds("method-defaults-to-draft-model"):
            spec = replace(spec, method="draft_model" if stood_for is None else stood_for.name)
    name = spec.method
    if name is not None and (meant := get_method(name).name) != name and context.rules.holds("mtp-alias"):
        yield from context.rules.ruling(
            "mtp-alias",
            f"The method {name!r} is an old name of {meant!r}; the target decides which MTP layers are used.",
            where="method",
            fix=f'Write "method": "{meant}".',
            becomes=meant,
        )
        spec = replace(spec, method=meant)
    return spec


def _infer_custom_class(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the method custom_class where `model` is taken for the path of a Python class."""
    model = spec.model
    if model is None or "." not in model or "/" in model or model.startswith(_URLS):
        return spec
    if context.rules.holds("dotted-name-is-class"):
        if spec.facts is None or spec.facts.drafts_from != "own_code":
            yield from context.rules.ruling(
                "dotted-name-is-class",
                f"The model {model!r} has a dot and no slash, so this release takes it for a Python class and the "
                "method for custom_class, whatever `method` says.",
                where="model",
                fix=f'Write it with a slash: "./{model}".',
                becomes=_CUSTOM_CLASS,
            )
        return replace(spec, method=_CUSTOM_CLASS)
    if (
        spec.method is None
        and all(part.isidentifier() for part in model.split("."))
        and context.rules.holds("dotted-name-is-class-unless-method")
    ):
        yield from context.rules.ruling(
            "dotted-name-is-class-unless-method",
            f"The model {model!r} reads like a Python class, and no method is given.",
            where="model",
            fix='Give a method if it is a directory, e.g. "method": "draft_model".',
            becomes=_CUSTOM_CLASS,
        )
        return replace(spec, method=_CUSTOM_CLASS)
    return spec
