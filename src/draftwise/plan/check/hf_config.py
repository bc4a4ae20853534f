"""A config.json as vLLM sees it once transformers has read it: with defaults, unified names and reachable parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.facts.transformers import find_model_type
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.legacy import V0_EAGLE, runs_on_v0
from draftwise.plan.check.speculators import SpeculatorsFault, to_layer_config

__all__ = ["HfConfig", "read_hf_config"]

Kind = Literal["plain", "eagle", "medusa", "mlp_speculator", "speculators"]

_MEDUSA = {"vocab_size": 32001, "max_seq_len": 2**20, "num_attention_heads": 0, "architectures": ["MedusaModel"]}
_MLP_SPECULATOR = {"vocab_size": 32000, "n_predict": 3}
_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Where vLLM looks for a model's context length: the smallest counts."""


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The attributes of a config object, as far as vLLM's checks look at them."""

    values: Mapping[str, Any]
    kind: Kind = "plain"
    """Which class holds it: vLLM rewrites the architectures of plain drafter configs only."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute; `default` where the config object has none."""
        return self.values.get(name, default)

    def changed(self, **values: Any) -> HfConfig:
        """Return the config with some attributes set."""
        return replace(self, values={**self.values, **values})

    @property
    def model_type(self) -> str:
        """`model_type`, or an empty string."""
        return str(self.values.get("model_type") or "")

    @property
    def architectures(self) -> tuple[str, ...]:
        """`architectures`, empty where there is none."""
        given = self.values.get("architectures")
        return tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()

    @property
    def text(self) -> HfConfig:
        """The language model's part of a multimodal config, else the whole."""
        inner = ModelConfig(name="", config=self.values, origin="json").text_config
        return self if inner is self.values else HfConfig(_fill_in(inner))

    @property
    def context_length(self) -> int | None:
        """The context that the weights were made for, before scaled positions; None where no key tells it."""
        text = self.text
        found = [value for key in _LENGTH_KEYS if isinstance(value := text.get(key), int)]
        special = text.get("model_max_length")
        return special if isinstance(special, int) and special else min(found, default=None)

    @property
    def num_attention_heads(self) -> int:
        """Query heads; 0 for a config without, such as a Medusa's."""
        heads = self.text.get("num_attention_heads")
        return heads if isinstance(heads, int) else 0

    @property
    def num_experts(self) -> int:
        """Experts of a mixture; 0 for a dense model."""
        keys = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
        found = [value for key in keys if (value := self.text.get(key))]
        first = found[0] if found else 0
        first = first[0] if isinstance(first, list) and first else first
        return first if isinstance(first, int) else 0

    @property
    def quantization(self) -> str | None:
        """Quantization method that the checkpoint declares, spelled as vLLM does."""
        for config in (self.values, self.text.values):
            declared = config.get("quantization_config") or config.get("compression_config")
            if isinstance(declared, Mapping):
                method = str(declared.get("quant_method") or "").lower()
                return method.replace("compressed_tensors", "compressed-tensors") or None
        return None


def read_hf_config(context: Context, model: ModelConfig, *, role: str, as_medusa: bool = False) -> HfConfig | Ruling:
    """Return the config object that vLLM gets for a model, or the ruling that it gets none.

    Args:
        context: whose release reads the file.
        model: the config.json.
        role: `drafter` or `target`.
        as_medusa: read it as a Medusa whatever its own type says, as an explicit `method` makes some releases do.
    """
    model_type = "medusa" if as_medusa else _model_type(model)
    if model_type == "medusa" and model_type in context.release.table("config_model_types"):
        return HfConfig({**_MEDUSA, **_given(model.config), "model_type": "medusa"}, "medusa")
    if model_type == "mlp_speculator" and model_type in context.release.table("config_model_types"):
        if role == "drafter" and (rule := context.rule("mlp-speculator-without-heads")) is not None:
            return rule.ruling("has no attention heads, which this release asks for.", where="model",
                               fix="Use another method: no V1 engine runs MLP speculators.")  # fmt: skip
        return HfConfig({**_MLP_SPECULATOR, **_given(model.config)}, "mlp_speculator")
    if model_type == "eagle":
        if (rule := context.rule("eagle-type-unreadable")) is not None and not runs_on_v0(context):
            return rule.ruling("has the model_type 'eagle', which this release cannot read.", where=_where(role),
                               fix="Write the inner model's type, e.g. 'llama', with its keys at the top.")  # fmt: skip
        return _read_eagle(context, model)
    if model_type == "speculators":
        return _read_speculators(context, model, role)
    return _read_plain(context, model, model_type, role)


def _given(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in config.items() if value is not None or key != "architectures"}


def _model_type(model: ModelConfig) -> str:
    if model.model_type:
        return model.model_type
    return "speculators" if model.config.get("speculators_config") is not None else ""


def _read_eagle(context: Context, model: ModelConfig) -> HfConfig:
    inner = model.config.get("model")
    body = _fill_in(inner) if isinstance(inner, Mapping) else {}
    names = body.get("architectures") or []
    renamed = [name if name.startswith("Eagle") else f"Eagle{name}" for name in names]
    if runs_on_v0(context):
        renamed = [V0_EAGLE]
    return HfConfig({**body, **model.config, "architectures": renamed, "model_type": "eagle"}, "eagle")


def _read_speculators(context: Context, model: ModelConfig, role: str) -> HfConfig | Ruling:
    if not context.holds("speculators-format"):
        return _unknown(context, model, "speculators", role)
    try:
        layers = to_layer_config(context.release, model.config, _where(role))
        return HfConfig({**_fill_in(layers), "model_type": "speculators"}, "speculators")
    except SpeculatorsFault as fault:
        return fault.ruling


def _read_plain(context: Context, model: ModelConfig, model_type: str, role: str) -> HfConfig | Ruling:
    config = model.config
    if not model_type:
        return _untyped(context, model, role)
    known = find_model_type(model_type)
    own = context.release.table("config_model_types")
    if known is None and model_type not in own and not _is_trusted(context, config):
        return _unknown(context, model, model_type, role)
    values = dict(_fill_in(config))
    stand_in = None if known is None else known.get("model_class")
    if not values.get("architectures") and stand_in is not None and context.holds("architectures-by-type"):
        values["architectures"] = [stand_in]
    return HfConfig(values)


def _is_trusted(context: Context, config: Mapping[str, Any]) -> bool:
    """Say whether the server runs the checkpoint's own configuration class."""
    auto_map = config.get("auto_map")
    return isinstance(auto_map, Mapping) and "AutoConfig" in auto_map and context.flag("trust_remote_code") is True


def _unknown(context: Context, model: ModelConfig, model_type: str, role: str) -> Ruling:
    auto_map = model.config.get("auto_map")
    if isinstance(auto_map, Mapping) and "AutoConfig" in auto_map:
        return get_rule(f"{role}-needs-remote-code").ruling(
            f"has the model_type {model_type!r}, whose configuration is code of the checkpoint.", where=_where(role),
            fix="Set trust_remote_code, if you trust the checkpoint's authors.",
        )  # fmt: skip
    return get_rule(f"{role}-type-unknown").ruling(
        f"has the model_type {model_type!r}, which neither vLLM {context.release} nor transformers knows.",
        where=_where(role), fix="Use a newer vLLM, or a checkpoint of a known type.",
    )  # fmt: skip


def _untyped(context: Context, model: ModelConfig, role: str) -> Ruling:
    del context
    hint = ""
    if any("medusa" in key for key in model.config):
        hint = ' For a Medusa head, add "model_type": "medusa".'
    return get_rule(f"{role}-untyped").ruling(
        "has a config.json without model_type, so that transformers cannot tell what it is.", where=_where(role),
        fix="Add the model_type to its config.json." + hint,
    )  # fmt: skip


def _where(role: str) -> str:
    return "model" if role == "drafter" else role


def _fill_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with what its transformers class adds: defaults, and the common name of renamed attributes."""
    known = find_model_type(str(config.get("model_type") or ""))
    if known is None:
        return config
    names = ("vocab_size", "max_position_embeddings", "num_attention_heads", "rope_parameters")
    defaults = {name: known[name] for name in names if name in known}
    if config.get("rope_scaling"):
        defaults.pop("rope_parameters", None)
    renamed = {name: config[own] for name, own in known.get("rename", {}).items() if own in config}
    return {**defaults, **renamed, **config}
