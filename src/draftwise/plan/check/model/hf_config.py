"""A config.json as vLLM sees it once transformers has read it: with defaults, unified names and reachable parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.facts.transformers import find_model_type

__all__ = ["HfConfig", "Kind", "fill_in", "place_of"]

Kind = Literal["plain", "eagle", "medusa", "mlp_speculator", "speculators"]

_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
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
        return self if inner is self.values else HfConfig(fill_in(inner))

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
        return ModelConfig(name="", config=self.values, origin="json").num_experts

    @property
    def quantization(self) -> str | None:
        """Quantization method that the checkpoint declares, spelled as vLLM does."""
        for config in (self.values, self.text.values):
            declared = config.get("quantization_config") or config.get("compression_config")
            if isinstance(declared, Mapping):
                method = str(declared.get("quant_method") or "").lower()
                return method.replace("compressed_tensors", "compressed-tensors") or None
        return None


def place_of(role: str) -> str:
    """Return the key or argument that names the model of a role (`drafter` or `target`)."""
    return "model" if role == "drafter" else role


def fill_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
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
