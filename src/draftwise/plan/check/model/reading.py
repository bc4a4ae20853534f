"""Which config object vLLM gets for a config.json: transformers' own, vLLM's, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.core import Ruling
from draftwise.facts.methods import methods_where
from draftwise.facts.rules import Rulebook
from draftwise.facts.transformers import find_model_type
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.hf_config import HfConfig, fill_in, place_of
from draftwise.plan.check.model.speculators import read_layers
from draftwise.plan.check.steps import Step

__all__ = ["V0_EAGLE", "read_hf_config"]

V0_EAGLE = "EAGLEModel"
"""The one class that the V0 engine has for every EAGLE head."""

_MEDUSA_TYPE = "medusa"
_MEDUSA = {"vocab_size": 32001, "max_seq_len": 2**20, "num_attention_heads": 0, "architectures": ["MedusaModel"]}
_MLP_SPECULATOR = {"vocab_size": 32000, "n_predict": 3}


def read_hf_config(
    context: Context, model: ModelConfig, *, role: str, as_medusa: bool = False
) -> Step[HfConfig | None]:
    """Return the config object that vLLM gets for a model, or None and yield why it gets none.

    Args:
        context: whose release reads the file.
        model: the config.json.
        role: `drafter` or `target`.
        as_medusa: read it as a Medusa whatever its own type says, as an explicit `method` makes some releases do.
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


def _read_medusa(_: Context, model: ModelConfig, __: str) -> Step[HfConfig | None]:
    yield from ()  # nothing is said of it
    return HfConfig({**_MEDUSA, **_given(model.config), "model_type": _MEDUSA_TYPE}, "medusa")


def _read_mlp_speculator(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if role == "drafter" and context.holds("mlp-speculator-without-heads"):
        yield from context.ruling(
            "mlp-speculator-without-heads",
            "The drafter, an MLP speculator, has no attention heads, which this release asks for.",
            where="model",
            fix="Use another method: no V1 engine runs MLP speculators.",
        )
        return None
    return HfConfig({**_MLP_SPECULATOR, **_given(model.config)}, "mlp_speculator")


def _read_eagle(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if context.holds("eagle-type-unreadable") and not context.runs_on_v0:
        yield from context.ruling(
            "eagle-type-unreadable",
            f"The {role} has the model_type 'eagle', which this release cannot read.",
            where=place_of(role),
            fix="Write the inner model's type, e.g. 'llama', with its keys at the top.",
        )
        return None
    inner = model.config.get("model")
    body = fill_in(inner) if isinstance(inner, Mapping) else {}
    names = body.get("architectures") or []
    renamed = [name if name.startswith("Eagle") else f"Eagle{name}" for name in names]
    if context.runs_on_v0:
        renamed = [V0_EAGLE]
    return HfConfig({**body, **model.config, "architectures": renamed, "model_type": "eagle"}, "eagle")


def _read_speculators(context: Context, model: ModelConfig, role: str) -> Step[HfConfig | None]:
    if not context.holds("speculators-format"):
        yield from _find_unknown_type(context, model, "speculators", role)
        return None
    rules = Rulebook(context.release.version)
    layers = yield from read_layers(rules, context.release, model.config, place_of(role))
    return None if layers is None else HfConfig({**fill_in(layers), "model_type": "speculators"}, "speculators")


def _read_plain(context: Context, model: ModelConfig, model_type: str, role: str) -> Step[HfConfig | None]:
    config = model.config
    if not model_type:
        yield from _find_untyped(context, model, role)
        return None
    known = find_model_type(model_type)
    own = context.release.table("config_model_types")
    if known is None and model_type not in own and not _is_trusted(context, config):
        yield from _find_unknown_type(context, model, model_type, role)
        return None
    values = dict(fill_in(config))
    stand_in = None if known is None else known.get("model_class")
    if not values.get("architectures") and stand_in is not None and context.holds("architectures-by-type"):
        values["architectures"] = [stand_in]
    return HfConfig(values)


def _is_trusted(context: Context, config: Mapping[str, Any]) -> bool:
    """Say whether the server runs the checkpoint's own configuration class."""
    return _has_own_class(config) and context.flag("trust_remote_code") is True


def _has_own_class(config: Mapping[str, Any]) -> bool:
    auto_map = config.get("auto_map")
    return isinstance(auto_map, Mapping) and "AutoConfig" in auto_map


def _find_unknown_type(context: Context, model: ModelConfig, model_type: str, role: str) -> Iterator[Ruling]:
    has = f"The {role} has the model_type {model_type!r},"
    if _has_own_class(model.config):
        yield from context.ruling(
            f"{role}-needs-remote-code",
            f"{has} whose configuration is code of the checkpoint.",
            where=place_of(role),
            fix="Set trust_remote_code, if you trust the checkpoint's authors.",
        )
    else:
        yield from context.ruling(
            f"{role}-type-unknown",
            f"{has} which neither vLLM {context.release} nor transformers knows.",
            where=place_of(role),
            fix="Use a newer vLLM, or a checkpoint of a known type.",
        )


def _find_untyped(context: Context, model: ModelConfig, role: str) -> Iterator[Ruling]:
    hints = [
        f' For a {name} head, add "model_type": "{method.model_types[0]}".'
        for name, method in methods_where().items()
        if method.model_types and not model.config.keys().isdisjoint(method.config_keys)
    ]
    yield from context.ruling(
        f"{role}-untyped",
        f"The {role} has a config.json without model_type, so that transformers cannot tell what it is.",
        where=place_of(role),
        fix="Add the model_type to its config.json." + "".join(hints),
    )


_OWN_CLASSES = frozenset({_MEDUSA_TYPE, "mlp_speculator"})
"""Types that only vLLM has a class for, and not in every release."""
_READERS: Mapping[str, Callable[[Context, ModelConfig, str], Step[HfConfig | None]]] = {
    _MEDUSA_TYPE: _read_medusa,
    "mlp_speculator": _read_mlp_speculator,
    "eagle": _read_eagle,
    "speculators": _read_speculators,
}
"""Types that transformers has no class for, and how vLLM reads them."""
