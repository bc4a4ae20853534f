"""vLLM's config object for a config.json: transformers', its own, or that of a speculators checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from packaging.version import Version

from draftwise.checkpoints.config_json import ModelConfig
from draftwise.core import Ruling
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.model_types import fill_in, find_model_type, read_speculators
from draftwise.knowledge.models import find_model, is_hub_name, names_directory, near_models
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release
from draftwise.plan.check.model.model_config import HfConfig, place_of
from draftwise.plan.check.stages import Context, Step

V0_EAGLE = "EAGLEModel"
"""The V0 engine's class for every EAGLE head."""
_MEDUSA_TYPE = "medusa"
_SCALED = ("llama3", "yarn", "longrope")
"""Scalings of positions for which transformers 5 asks a config for its length."""
_MEDUSA = {"vocab_size": 32001, "max_seq_len": 2**20, "num_attention_heads": 0, "architectures": ["MedusaModel"]}
_MLP_SPECULATOR = {"vocab_size": 32000, "n_predict": 3}
Config = Mapping[str, Any]
_DSPARK = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")


def find_other_name(rules: Rulebook, name: str, found: ModelConfig | None, *, where: str) -> Iterator[Ruling]:
    """Yield a finding for a name that is invalid on the hub: it may be a directory on the server's machine."""
    known = None if found is None or found.origin != "table" else find_model(name)
    if known is not None and name.lower() not in map(str.lower, known.names):
        hint = f"Write {known.id}"
    elif found is not None and found.copy is not None and "/" not in name:
        hint = "Write ORG/NAME for a model of the hub"
    elif found is None and not _may_be_there(name):
        hint = f"{near_models(name)}Write ORG/NAME for a model of the hub"
    else:
        return
    yield from rules.ruling("name-not-of-hub", name=name, hint=hint, where=where)


def _may_be_there(name: str) -> bool:
    repository = name.partition(":")[0] if "/" in name else name  # behind the colon the quantization of a GGUF file
    return names_directory(name) or name.count("/") > 1 or is_hub_name(repository)


def read_hf_config(
    context: Context, model: ModelConfig, *, role: str, as_medusa: bool = False
) -> Step[HfConfig | None]:
    """Return vLLM's config object for a model; if it cannot be made, return None and yield the reason.

    Args:
        context: setup whose release reads the file.
        model: the config.json.
        role: `drafter` or `target`.
        as_medusa: whether to read it as a Medusa despite its own type, as some releases do for an explicit `method`.
    """
    model_type = _MEDUSA_TYPE if as_medusa else _model_type(model)
    known = model_type in context.release.table("config_model_types") or model_type not in _OWN_CLASSES
    read = _READERS.get(model_type) if known else None
    return (yield from _read_plain(context, model, model_type, role) if read is None else read(context, model, role))


def _given(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in config.items() if value is not None or key != "architectures"}


def _model_type(model: ModelConfig) -> str:
    if model.model_type:
        return model.model_type
    return "speculators" if model.config.get("speculators_config") is not None else ""


def _read_medusa(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    scaling = model.config.get("rope_scaling")
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind in _SCALED and model.config.get("rope_theta") and context.rules.holds("medusa-scales-positions"):
        yield from context.rules.ruling("medusa-scales-positions", role=role, kind=kind, where=place_of(role))
        return None
    return HfConfig({**_MEDUSA, **_given(model.config), "model_type": _MEDUSA_TYPE}, "medusa")


def _read_mlp_speculator(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if role == "drafter" and context.rules.holds("mlp-speculator-without-heads"):
        yield from context.rules.ruling("mlp-speculator-without-heads")
        return None
    return HfConfig({**_MLP_SPECULATOR, **_given(model.config)}, "mlp_speculator")


def _read_eagle(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if context.rules.holds("eagle-type-unreadable") and not context.runs_on_v0:
        yield from context.rules.ruling("eagle-type-unreadable", role=role, where=place_of(role))
        return None
    inner = model.config.get("model")
    body = fill_in(inner) if isinstance(inner, Mapping) else {}
    names = body.get("architectures") or []
    renamed = [name if name.startswith("Eagle") else f"Eagle{name}" for name in names]
    if context.runs_on_v0:
        renamed = [V0_EAGLE]
    return HfConfig({**body, **model.config, "architectures": renamed, "model_type": "eagle"}, "eagle")


def _read_speculators(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if not context.rules.holds("speculators-format"):
        yield from _find_unknown_type(context, model, "speculators", role)
        return None
    layers = yield from _read_layers(context.rules, context.release, model.config, place_of(role))
    return None if layers is None else HfConfig({**fill_in(layers), "model_type": "speculators"}, "speculators")


def _read_plain(context: Context, model: ModelConfig, model_type: str, role: str) -> Step[HfConfig | None]:
    config = model.config
    if not model_type:
        hints = [
            f' For a {name} head, add "model_type": "{method.model_types[0]}".'
            for name, method in methods_where().items()
            if method.model_types and not model.config.keys().isdisjoint(method.config_keys)
        ]
        yield from context.rules.ruling(
            f"{role}-untyped", where=place_of(role), fix="Add the model_type to its config.json." + "".join(hints)
        )
        return None
    is_late = context.release.version < _FIRST_RELEASES.get(model_type, context.release.version)
    known = None if is_late or model_type in _OWN_CLASSES else find_model_type(model_type)
    own = context.release.table("config_model_types")
    if (known is None or "library" in known) and model_type not in own and not _is_trusted(context, config):
        yield from _find_unknown_type(context, model, model_type, role)
        return None
    values = dict(fill_in(config))
    stand_in = None if known is None else known.get("model_class")
    if not values.get("architectures") and stand_in is not None and context.rules.holds("architectures-by-type"):
        values["architectures"] = [stand_in]
    return HfConfig(values)


def _is_trusted(context: Context, config: Mapping[str, Any]) -> bool:
    return _has_own_class(config) and context.flags.get("trust_remote_code") is True


def _has_own_class(config: Mapping[str, Any]) -> bool:
    auto_map = config.get("auto_map")
    return isinstance(auto_map, Mapping) and "AutoConfig" in auto_map


def _find_unknown_type(context: Context, model: ModelConfig, model_type: str, role: str) -> Iterator[Ruling]:
    if _has_own_class(model.config):
        yield from context.rules.ruling(f"{role}-needs-remote-code", model_type=model_type, where=place_of(role))
    else:
        yield from context.rules.ruling(f"{role}-type-unknown", model_type=model_type, where=place_of(role))


_OWN_CLASSES = frozenset({_MEDUSA_TYPE, "mlp_speculator", "kimi_k2", "inkling_model"})
"""Types that only vLLM has a class for, and not in every release."""

_FIRST_RELEASES: Mapping[str, Version] = {"deepseek_v4": Version("0.20.0")}
"""Types whose config older releases refuse, even where transformers has a class for it."""


_READERS: Mapping[str, Callable[[Context, ModelConfig, str], Step[HfConfig | None]]] = {
    _MEDUSA_TYPE: _read_medusa,
    "mlp_speculator": _read_mlp_speculator,
    "eagle": _read_eagle,
    "speculators": _read_speculators,
}
"""Types that transformers has no class for, and how vLLM reads them."""


def _read_layers(rules: Rulebook, release: Release, config: Config, where: str) -> Step[Config | None]:
    """Return the attributes of the drafter's config object that vLLM builds, or None and yield what stops it."""
    refused = False
    for ruling in islice(find_faults(rules, release, config, where), 1):
        yield ruling
        refused = True
    if refused:
        return None
    layers = config.get("transformer_layer_config")
    convert = _CONVERTERS[str(config.get("speculators_model_type"))]
    return {**(layers if isinstance(layers, Mapping) else {}), **convert(rules, config)}


def find_faults(rules: Rulebook, release: Release, config: Config, where: str) -> Iterator[Ruling]:
    """Yield why a speculators config.json cannot be read, in vLLM's order; stops at the first reason."""
    kind, readable = config.get("speculators_model_type"), release.table("speculators_types")
    if str(kind) not in _CONVERTERS or kind not in readable:
        shown = "missing" if kind is None else repr(kind)
        yield from rules.ruling("unknown-speculators-type", kind=shown, readable=readable, where=where)
        return
    if rules.holds("speculators-structure"):
        yield from find_incomplete(rules, config, where)
    layer_type, row = _layer_type(config), read_speculators()["types"][kind]
    classes = row["classes"]
    if classes and layer_type not in classes:
        yield from rules.ruling(
            "speculators-layer-types",
            layer_type=layer_type,
            release=release,
            classes=" and ".join(classes),
            where=where,
        )
    for key in row["needs"]:
        if key not in config:
            yield from rules.ruling("speculators-key-missing", key=key, where=where)


def find_incomplete(rules: Rulebook, config: Config, where: str) -> Iterator[Ruling]:
    """Yield a finding if a part is missing that the whole format needs."""
    try:
        inner = config["speculators_config"]
        needed: tuple[Any, ...] = (
            inner["proposal_methods"][0]["speculative_tokens"],
            inner["verifier"]["name_or_path"],
            config["speculators_model_type"],
        )
    except (KeyError, IndexError, TypeError):
        needed = (None,)
    if None in needed or not isinstance(config.get("transformer_layer_config"), Mapping):
        yield from rules.ruling("speculators-incomplete", where=where)


def _layer_type(config: Config) -> str:
    layers = config.get("transformer_layer_config")
    return str(layers.get("model_type", "llama")) if isinstance(layers, Mapping) else "llama"


def _named_by_layers(rules: Rulebook, config: Config, kind: str) -> Config:
    """Return the class of an EAGLE-3 head, which later releases name after the type of its layers."""
    layer_type = _layer_type(config) if rules.holds("speculators-layer-types") else "llama"
    return {
        "architectures": [read_speculators()["types"][kind]["classes"][layer_type]],
        "draft_vocab_size": config.get("draft_vocab_size"),
    }


def _eagle3(rules: Rulebook, config: Config) -> Config:
    return _named_by_layers(rules, config, "eagle3")


def _peagle(rules: Rulebook, config: Config) -> Config:
    return {**_named_by_layers(rules, config, "peagle"), "pard_token": config["mask_token_id"]}


def _dflash(_: Rulebook, config: Config) -> Config:
    inner = {"mask_token_id": config["mask_token_id"], "target_layer_ids": config["aux_hidden_state_layer_ids"]}
    return {
        "architectures": ["DFlashDraftModel"],
        "draft_vocab_size": config.get("draft_vocab_size"),
        "dflash_config": inner,
    }


def _dflash2(rules: Rulebook, config: Config) -> Config:
    return {**_dflash(rules, config), "architectures": ["DFlash2DraftModel"]}


def _dspark(_: Rulebook, config: Config) -> Config:
    named = [name for name in config.get("architectures") or () if name in _DSPARK]
    copied = {key: config[key] for key in read_speculators()["dspark_keys"] if config.get(key) is not None}
    return {**copied, "architectures": named or [_DSPARK[0]]}


_CONVERTERS: Mapping[str, Callable[[Rulebook, Config], Config]] = {
    "eagle3": _eagle3,
    "peagle": _peagle,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
}
