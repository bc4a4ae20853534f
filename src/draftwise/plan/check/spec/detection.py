"""Infers a drafter's method and class as vLLM does: by name, config.json, or elimination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from draftwise.core import Ruling
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.vllm import Release
from draftwise.plan.check.model.hf_config import V0_EAGLE
from draftwise.plan.check.model.model_config import HfConfig, Model, find_architecture
from draftwise.plan.check.spec.speculative_config import Spec
from draftwise.plan.check.stages import Context, Step

if TYPE_CHECKING:
    from draftwise.knowledge.published_drafters import PublishedDrafter

_LAYER_PER_TOKEN = ("step3p5_mtp", "step5_mtp", "inkling_mtp")
"""Types of drafters with a layer of their own for each token, for which no repetition is warned of."""
_LILICORR = "LiLiCorrDraftModel"
TOP_K_KEY = "dspark_draft_topk"
"""Key that only DSpark drafters read."""


def detect_method(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the method that follows from the drafter's name and config.json."""
    if spec.facts is not None and spec.facts.kept_by_vllm:
        return spec
    found = _find_method(context, spec)
    if found is None:
        return (yield from _settle_rest(context, spec))
    before = spec.method
    method, by_name = found
    spec = replace(spec, method=method)
    if not by_name:
        spec = yield from _check_mtp(context, spec)
    if method != before:
        yield from _find_changed(context, spec, before, "name" if by_name else "config.json")
    return spec


def find_missing_modules(context: Context, spec: Spec, config: HfConfig) -> Step[Spec]:
    """Judge a target with only a known class as its own drafter: the release has modules for it, or rejects it.

    A class without a `model_type` is not judged, nor one with modules, because their number is unknown.
    """
    if spec.facts is None or spec.facts.weights != "target" or not config.model_type:
        return spec
    table = context.release.table("mtp_remap")
    if _type_key(table, config.model_type) or not table.keys().isdisjoint(config.architectures):
        return spec
    if context.rules.holds("everything-else-is-draft-model"):
        return spec
    as_drafter = Model(config=config, max_model_len=0, quantization=None)
    return (yield from _refuse(context, replace(spec, draft=as_drafter), False))


def _check_mtp(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a drafter that turned out to be MTP layers. VLLM dies of comparing an unset number of tokens with 1."""
    if spec.facts is None or spec.facts.weights != "target":
        return spec
    if spec.target is not None and spec.target.config.model_type == "deepseek_v41":
        yield from context.rules.ruling("mtp-not-for-v41")
    if spec.tokens is None and spec.known("num_speculative_tokens"):
        yield from context.rules.ruling("mtp-needs-tokens")
        return spec.undecided("num_speculative_tokens", "draft")
    has_own_layers = spec.draft is not None and spec.draft.config.model_type in _LAYER_PER_TOKEN
    if isinstance(spec.tokens, int) and spec.tokens > 1 and not has_own_layers:
        yield from context.rules.ruling("mtp-repeats-layer", tokens=spec.tokens)
    return spec


def _find_method(context: Context, spec: Spec) -> tuple[str, bool] | None:
    table = context.release.table("method_inference")
    name = (spec.model or "").lower()
    for method in table["order"]:
        for condition in table[method]:
            if "name" in condition:
                if condition["name"] in name:
                    return method, True
            elif spec.draft is not None and _meets_condition(context, spec.draft.config, condition):
                return method, False
    return None


def _meets_condition(context: Context, config: HfConfig, condition: Mapping[str, str]) -> bool:
    if "model_type_in" in condition:
        row = context.release.table("methods").get(config.model_type)
        return row is not None and row["group"] == condition["model_type_in"]
    if "architecture" in condition and condition["architecture"] not in config.architectures:
        return False
    return condition.get("model_type", config.model_type) == config.model_type


def _find_changed(context: Context, spec: Spec, before: str | None, by: str) -> Iterator[Ruling]:
    if before is None or "method" not in spec.fields.given:
        return
    yield from context.rules.ruling(
        "drafter-decides-method", by=by, model=spec.model, method=spec.method, before=before, becomes=spec.method or ""
    )


def _settle_rest(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a drafter that neither name nor config.json assigns to a method."""
    before = spec.method
    if spec.draft is None:
        return _guess_method(context, spec)
    asks_draft_model = spec.facts is not None and spec.facts.drafts_from == "own_model"
    if context.rules.holds("everything-else-is-draft-model"):
        spec = replace(spec, method="draft_model")
        if not asks_draft_model:
            yield from _find_changed(context, spec, before, "config.json")
        return spec
    if not asks_draft_model or context.rules.holds("draft-model-not-supported"):
        return (yield from _refuse(context, spec, asks_draft_model))
    if "method" not in spec.fields.given:
        yield from _find_unnamed_head(context, spec)
    return spec


def _guess_method(context: Context, spec: Spec) -> Spec:
    """Return the config for a drafter without a config.json: its method is what was asked for, or what its type means.

    A default is no answer: vLLM keeps it only for a config.json that fits no method.
    """
    if spec.method is not None and "method" in spec.fields.given:
        return spec
    published = find_published(context, spec)
    if published is not None and published.model_type:
        is_known = published.model_type in context.release.table("mtp_remap")
        return replace(spec, method=published.method) if is_known else spec
    return spec if context.drafter is not None and not _is_target(context, spec) else spec.undecided("method")


def find_published(context: Context, spec: Spec) -> PublishedDrafter | None:
    """Return the row of the drafter among the published ones."""
    from draftwise.knowledge.published_drafters import find_published_drafter  # most drafters are directories

    return find_published_drafter(context.origins.get(spec.model or "", spec.model or ""))


def _refuse(context: Context, spec: Spec, asks_draft_model: bool) -> Step[Spec]:
    if asks_draft_model and context.rules.holds("draft-model-refused"):
        return spec.undecided("method", "draft")  # refused before anything else
    named = spec.method is not None
    said = f"cannot run as {spec.method}" if named else "fits no method that vLLM can detect without `method`"
    kind = "" if spec.draft is None else spec.draft.config.model_type
    own = _is_target(context, spec)
    message = (
        f"The target has no modules for {spec.method}: its config.json is of type {kind!r}."
        if own and named
        else f"The drafter {spec.model!r} {said}: its config.json is of type {kind!r}."
    )
    fix = "Use vLLM 0.15.0 or newer."
    yield from context.rules.ruling("draft-model-not-supported", message=message)
    where, fix = "method" if own and named else "model", _suggest_method(context, spec)
    yield from context.rules.ruling("drafter-fits-no-method", message=message, where=where, fix=fix)
    return replace(spec.undecided("method", "draft"), method=None, draft=None)


def _is_target(context: Context, spec: Spec) -> bool:
    return spec.model == (context.verifier or context.setup.target)


def _suggest_method(context: Context, spec: Spec) -> str:
    if (head := _find_head(spec)) is not None:
        return f'Write "method": "{head}".'
    if _is_target(context, spec):
        return "Use a head that was trained for this target, a smaller model of its family, or ngram."
    return 'Write "method": "draft_model" for a plain language model, or use a checkpoint of the method you want.'


def _find_unnamed_head(context: Context, spec: Spec) -> Iterator[Ruling]:
    if (head := _find_head(spec)) is not None:
        yield from context.rules.ruling("head-taken-for-draft-model", model=spec.model, head=head)


def _find_head(spec: Spec) -> str | None:
    """Return the method that the drafter's architectures speak of, of those that vLLM does not see in them."""
    names = [name.lower() for name in spec.draft_names]
    for method in get_rule("head-taken-for-draft-model").methods:
        if any(part in name for part in get_method(method).architectures for name in names):
            return method
    return None


def name_class(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the class that vLLM builds the drafter with."""
    spec = yield from _rename_classes(context, spec)
    return (yield from _rewrite_dspark(context, spec))


def _rename_classes(context: Context, spec: Spec) -> Step[Spec]:
    """Apply the naming of EAGLE and DFlash classes, and check that the release has the outcome."""
    prefix = None if spec.facts is None else spec.facts.class_prefix
    if prefix is None or spec.draft is None or spec.draft.config.kind in ("eagle", "speculators"):
        return spec
    names: Sequence[str] = [_rename(context, spec, name, prefix) for name in spec.draft_names]
    if context.runs_on_v0:
        names = [V0_EAGLE]
    return (yield from _with_config(context, spec, spec.draft.config.changed(architectures=names, model_type="eagle")))


def _rename(context: Context, spec: Spec, name: str, prefix: str) -> str:
    """Return a class's name with the method's before it, unless that is in it."""
    several = spec.facts is not None and spec.facts.aux_states == "several"
    may_end = several and not context.rules.applies("eagle3-suffix-unknown", spec.method)
    if name.startswith(prefix) or (may_end and name.endswith(prefix)):
        return name
    if name == _LILICORR and context.rules.applies("dflash-lilicorr", spec.method):
        return name
    return prefix + name


def _with_config(context: Context, spec: Spec, config: HfConfig) -> Step[Spec]:
    """Return the config with another one of the drafter. Releases that look for its class this early must have it."""
    assert spec.draft is not None
    spec = replace(spec, draft=replace(spec.draft, config=config))
    if not context.rules.holds("drafter-class-missing") or find_architecture(context, config.architectures) is not None:
        return spec
    yield from context.rules.ruling("drafter-class-missing", method=spec.method, name=config.architectures[0])
    return spec.undecided("draft")


def _rewrite_dspark(context: Context, spec: Spec) -> Step[Spec]:
    """Give a DSpark drafter the class that vLLM builds it with: its own, else DeepSeek's inside the target."""
    if not spec.reads(TOP_K_KEY) or spec.draft is None:
        return spec
    config = spec.draft.config
    is_dense = "DSparkDraftModel" in config.architectures and config.model_type == "qwen3"
    if is_dense and context.rules.holds("dspark-qwen3-omni"):
        config = config.changed(architectures=["Qwen3DSparkModel"])
    elif not _standalone(context) & set(config.architectures):
        config = _inside_target(context, spec, config)
    elif "Gemma4DSparkModel" in config.architectures and config.get("n_predict") is None:
        config = config.changed(n_predict=config.get("block_size"))
    else:
        return spec
    return (yield from _with_config(context, spec, config))


def _standalone(context: Context) -> set[str]:
    """Return the drafter classes with weights of their own that the release knows."""
    conditions = context.release.table("method_inference")["dspark"]
    named = {each["architecture"] for each in conditions if "architecture" in each and "model_type" not in each}
    return named | ({"K3DSparkModel"} if context.rules.holds("dspark-k3") else set())


def _inside_target(context: Context, spec: Spec, config: HfConfig) -> HfConfig:
    """Return the config of the DSpark stages that a DeepSeek checkpoint ships."""
    target_type = "" if spec.target is None else spec.target.config.model_type
    if target_type == "deepseek_v41" and context.rules.holds("dspark-deepseek-v41"):
        steps = config.get("dspark_block_size") or config.get("n_predict")
        return config.changed(architectures=["DSparkV41DraftModel"], model_type="deepseek_v41", n_predict=steps)
    steps = config.get("n_predict")
    return config.changed(architectures=["DSparkDraftModel"], model_type="deepseek_v4", n_predict=steps)


def rewrite_draft(release: Release, config: HfConfig) -> HfConfig:
    """Return a drafter's config after vLLM's rewriting of targets into MTP drafters; most configs stay unchanged."""
    table = release.table("mtp_remap")
    first = config.architectures[0] if config.architectures else ""
    for key in (_type_key(table, config.model_type), first):
        row = table.get(key)
        if row is not None and (row["by"] == "architecture") == (key == first):
            config = _apply(row, config) if all(_look_up(config, path) for path in row.get("requires", ())) else config
    return config


def _type_key(table: Mapping[str, Any], model_type: str) -> str:
    """Return the row's key for a model_type. Some rows stand for every type that contains the key."""
    if model_type in table:
        return model_type
    parts = (key for key, row in table.items() if row["by"] == "part_of_model_type" and key in model_type)
    return next(parts, "")


def _apply(row: Mapping[str, Any], config: HfConfig) -> HfConfig:
    changes: dict[str, Any] = {}
    if "n_predict" in row:
        changes["n_predict"] = _count_steps(row, config)
    if "model_type" in row:
        changes["model_type"] = row["model_type"]
    if "architectures" in row:
        changes["architectures"] = row["architectures"]
    return config.changed(**changes)


def _count_steps(row: Mapping[str, Any], config: HfConfig) -> int | None:
    """Return the trained MTP steps. The fields lie in the whole config or in its language model's part."""
    given, default = row["n_predict"], row.get("n_predict_default")
    if isinstance(given, int):
        return given
    for path in (given, default):
        if isinstance(path, str) and isinstance(steps := _look_up(config, path), int):
            return steps
    return default if isinstance(default, int) else None


def _look_up(config: HfConfig, path: str) -> Any:
    """Return the value at a dotted path, of the whole config or else of its text part."""
    for part in (config.values, config.text.values):
        value: Any = part
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
