"""Which method vLLM takes a config for: from `method`, from the drafter's name, and from the drafter's config.json."""

from __future__ import annotations

from collections.abc import Mapping

from draftwise.plan.check.hf_config import HfConfig
from draftwise.plan.check.mtp import is_mtp_alias
from draftwise.plan.check.work import Work

__all__ = ["detect_method", "infer_method"]

_NGRAM_NAMES = ("ngram", "[ngram]")
_URLS = ("http://", "https://", "file://")
_LAYER_PER_TOKEN = ("step3p5_mtp", "step5_mtp", "inkling_mtp")
"""Drafters with a layer of their own for each token, for which no repetition is warned of."""
_BY_OWN_NAME = ("eagle", "eagle3", "dflash", "dspark")
"""Methods that, once asked for, neither a drafter's name nor its config.json changes."""


def infer_method(work: Work) -> None:
    """Set the method as far as `method` and the spelling of `model` decide it."""
    if not work.known("method", "model"):
        return
    work.method, work.model = work.get("method"), work.get("model")
    _infer_custom_class(work)
    if work.method is None and (work.model in _NGRAM_NAMES or work.context.holds("method-defaults-to-draft-model")):
        work.method = "ngram" if work.model in _NGRAM_NAMES else "draft_model"
    if work.method is not None and is_mtp_alias(work.method) and work.context.holds("mtp-alias"):
        work.add("mtp-alias", f"{work.method!r} is an old name of 'mtp'; the target decides which MTP layers are used.",
                 where="method", fix='Write "method": "mtp".', becomes="mtp")  # fmt: skip
        work.method = "mtp"


def _infer_custom_class(work: Work) -> None:
    model = work.model
    if model is None or "." not in model or "/" in model or model.startswith(_URLS):
        return
    if work.context.holds("dotted-name-is-class"):
        if work.method != "custom_class":
            work.add("dotted-name-is-class", f"{model!r} has a dot and no slash, so this release takes it for a Python "
                     "class and the method for custom_class, whatever `method` says.", where="model",
                     fix=f'Write it with a slash: "./{model}".', becomes="custom_class")  # fmt: skip
        work.method = "custom_class"
    elif (
        work.method is None
        and all(part.isidentifier() for part in model.split("."))
        and work.context.holds("dotted-name-is-class-unless-method")
    ):
        work.add("dotted-name-is-class-unless-method", f"{model!r} reads like a Python class, and no method is given.",
                 where="model", fix='Give a method if it is a directory, e.g. "method": "draft_model".',
                 becomes="custom_class")  # fmt: skip
        work.method = "custom_class"


def detect_method(work: Work) -> None:
    """Set the method of a config with a drafter, as its name and its config.json decide it."""
    before = work.method
    if before in _BY_OWN_NAME:
        return
    found = _find_method(work)
    if found is None:
        _settle_rest(work, before)
        return
    work.method, by_name = found
    if not by_name:
        _check_mtp(work)
    if work.method != before:
        _tell_changed(work, before, "its name" if by_name else "its config.json")


def _check_mtp(work: Work) -> None:
    """Judge a drafter that turned out to be MTP layers; vLLM dies of comparing an unset number of tokens with 1."""
    if work.method is None or not (work.method == "mtp" or is_mtp_alias(work.method)):
        return
    if work.target is not None and work.target.config.model_type == "deepseek_v41":
        work.add("mtp-not-for-v41", "has no MTP layers: its checkpoint ships DSpark stages.", where="target",
                 fix='Write "method": "dspark".')  # fmt: skip
    if work.tokens is None and work.known("num_speculative_tokens"):
        work.add("mtp-needs-tokens", "must be given for an MTP drafter: without it vLLM fails with a TypeError.",
                 where="num_speculative_tokens", fix='Add "num_speculative_tokens": 1.',
                 opens=("num_speculative_tokens", "draft"))  # fmt: skip
    elif isinstance(work.tokens, int) and work.tokens > 1 and not _has_own_layers(work):
        work.add("mtp-repeats-layer", f"is {work.tokens}, and the same MTP layer is run again for each further token, "
                 "so that later ones are accepted less often.", where="num_speculative_tokens")  # fmt: skip


def _has_own_layers(work: Work) -> bool:
    return work.draft is not None and work.draft.config.model_type in _LAYER_PER_TOKEN


def _find_method(work: Work) -> tuple[str, bool] | None:
    """Return the method that the drafter stands for, and whether its name alone says so."""
    table = work.context.release.table("method_inference")
    name = (work.model or "").lower()
    for method in table["order"]:
        for condition in table[method]:
            if "name" in condition:
                if condition["name"] in name:
                    return method, True
            elif work.draft is not None and _meets(work, work.draft.config, condition):
                return method, False
    return None


def _meets(work: Work, config: HfConfig, condition: Mapping[str, str]) -> bool:
    if "model_type_in" in condition:
        row = work.context.release.table("methods").get(config.model_type)
        return row is not None and row["group"] == condition["model_type_in"]
    if "architecture" in condition and condition["architecture"] not in config.architectures:
        return False
    return condition.get("model_type", config.model_type) == config.model_type


def _tell_changed(work: Work, before: str | None, why: str) -> None:
    if before is None or "method" not in work.fields.given:
        return
    found = work.method or ""
    work.add("drafter-decides-method", f"{why} makes vLLM run {work.model!r} as {found}, although the method given is "
             f"{before!r}.", where="model", fix=f'Write "method": "{found}", or rename the directory.',
             becomes=found)  # fmt: skip


def _settle_rest(work: Work, before: str | None) -> None:
    """Judge a drafter that neither name nor config.json assigns to a method."""
    holds = work.context.holds
    if work.draft is None:
        # The config.json is not here: what was asked for is the best guess.
        if before is None:
            work.open.add("method")
        return
    if holds("everything-else-is-draft-model"):
        if before not in (None, "draft_model"):
            work.method = "draft_model"
            _tell_changed(work, before, "its config.json")
        work.method = "draft_model"
    elif before != "draft_model" or holds("draft-model-not-supported"):
        _refuse(work, before)
    elif "method" not in work.fields.given:
        _warn_of_head(work)


def _refuse(work: Work, before: str | None) -> None:
    if before == "draft_model" and work.context.holds("draft-model-refused"):
        work.open.update(("method", "draft"))  # refused before anything else
        return
    code = "draft-model-not-supported" if work.context.holds("draft-model-not-supported") else "drafter-fits-no-method"
    said = f"cannot run as {before}" if before is not None else "fits no method that can be told without `method`"
    fix = "Use a release from 0.15.0 on." if code == "draft-model-not-supported" else _suggest_method(work)
    work.add(code, f"{work.model!r} {said}: its config.json is of type {_type(work)!r}.", where="model", fix=fix,
             opens=("method", "draft"))  # fmt: skip
    work.method = None
    work.draft = None


def _type(work: Work) -> str:
    return "" if work.draft is None else work.draft.config.model_type


def _suggest_method(work: Work) -> str:
    names = () if work.draft is None else work.draft.config.architectures
    if any("eagle3" in name.lower() for name in names):
        return 'Write "method": "eagle3".'
    if any("eagle" in name.lower() for name in names):
        return 'Write "method": "eagle".'
    return 'Write "method": "draft_model" for a plain language model, or use a checkpoint of the method you want.'


def _warn_of_head(work: Work) -> None:
    names = () if work.draft is None else work.draft.config.architectures
    for mark, method in (("eagle3", "eagle3"), ("eagle", "eagle"), ("dflash", "dflash")):
        if any(mark in name.lower() for name in names):
            work.add("head-taken-for-draft-model", f"{work.model!r} is a head for {method} by its architecture, but "
                     "without `method` it runs as an independent draft model.", where="method",
                     fix=f'Write "method": "{method}".', becomes="draft_model")  # fmt: skip
            return
