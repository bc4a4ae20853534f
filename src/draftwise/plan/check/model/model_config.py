"""Predicts vLLM's ModelConfig of a target or drafter: class, context length, quantization, or the refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftwise.checkpoints.config_json import count_experts, get_text_config
from draftwise.core import Ruling
from draftwise.knowledge.model_copies import UNKNOWN as UNKNOWN_WEIGHTS
from draftwise.knowledge.model_types import (
    fill_in,
    find_media,
    find_plugin,
    is_buildable,
    is_deprecated,
    read_config_keys,
    reads_weights_of,
    runs_in_float32,
)
from draftwise.plan.check.stages import Context, Step

Kind = Literal["plain", "eagle", "medusa", "mlp_speculator", "speculators"]
_DEFAULT_LENGTH = 2048
_NEEDS_WIDE_RANGE = frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"})
_TRANSFORMERS = "TransformersForCausalLM"
"""The class that builds what vLLM has no class of its own for."""
_LONGEST_CONTEXT = 1 << 40
"""No context comes near it; larger numbers are damaged files."""
_UNSCALED = frozenset({"su", "longrope", "llama3"})
_YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_ROPE_KEYS = ("rope_parameters", "rope_scaling")
_PLAIN_KERNELS = {"awq": "plain-awq-in-float16", "gptq": "plain-gptq-in-float16"}
"""Kernels for float16 only, and the rule of the releases that still have them."""
_MAY_BE_REPLACED, _REPLACING = "quantization-may-be-replaced", ("auto-round", "modelopt")
"""Rule, and how the formats begin whose checkpoints replace the method that is asked for."""
_LOADED_AS = {"auto-round": "inc"}
"""Names that checkpoints declare and the listed methods no longer hold, and the method that loads them."""


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The attributes of a config object that vLLM's checks read."""

    values: Mapping[str, Any]
    kind: Kind = "plain"
    """Class of the object: vLLM rewrites only the architectures of plain drafter configs."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute; `default` if the config object lacks it."""
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
        """`architectures`, empty if missing."""
        given = self.values.get("architectures")
        return tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()

    @property
    def text(self) -> HfConfig:
        """The language model's part of a multimodal config; any other config as a whole."""
        inner = get_text_config(self.values)
        return self if inner is self.values else HfConfig(fill_in(inner))

    @property
    def context_length(self) -> int | None:
        """Context length of the weights in tokens, before scaled positions; None if no key gives it."""
        text = self.text
        found = [value for key in read_config_keys()["length_keys"] if isinstance(value := text.get(key), int)]
        special = text.get("model_max_length")
        return special if isinstance(special, int) and special else min(found, default=None)

    @property
    def num_attention_heads(self) -> int:
        """Number of query heads; 0 for a config without them, such as a Medusa's."""
        heads = self.text.get("num_attention_heads")
        return heads if isinstance(heads, int) else 0

    @property
    def num_experts(self) -> int:
        """Number of experts; 0 for a dense model."""
        return count_experts(self.values)

    @property
    def quantization(self) -> str | None:
        """Quantization method that the checkpoint declares, spelled as vLLM does."""
        method = str(self.weights.get("quant_method") or "").lower()
        return method.replace("compressed_tensors", "compressed-tensors") or None

    @property
    def weights(self) -> Mapping[str, Any]:
        """What the checkpoint says of its quantization; empty if nothing."""
        configs = (self.values, self.text.values)
        found = (each.get("quantization_config") or each.get("compression_config") for each in configs)
        return next((each for each in found if isinstance(each, Mapping)), {})


def place_of(role: str) -> str:
    """Return the key or argument that names the model of a role (`drafter` or `target`)."""
    return "model" if role == "drafter" else role


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as ModelConfig resolves it."""

    config: HfConfig
    max_model_len: int
    quantization: str | None


_GENERATING = frozenset({"ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel"})
"""Endings of classes that generate: vLLM tries no other ending for them where a pooling server is asked for."""


def build_model(
    context: Context,
    config: HfConfig,
    *,
    role: str,
    max_model_len: int | None = None,
    quantization: str | None = None,
    target_length: int | None = None,
) -> Step[Model]:
    """Return the model, and yield what is wrong with it.

    Args:
        context: setup whose release judges.
        config: config after transformers and, for a drafter, after the MTP rewriting.
        role: `drafter` or `target`.
        max_model_len: requested context length.
        quantization: requested method.
        target_length: the target's context length, for a drafter without its own.
    """
    yield from find_class_faults(context, config, role)
    derived = _derive_length(context, config)
    length = max_model_len if max_model_len not in (None, -1) else derived
    if length is None:
        length = target_length or _DEFAULT_LENGTH
    elif derived is not None and length > derived:
        yield from _find_too_long(context, config, length, derived, role)
    method = yield from _resolve_quantization(context, config, quantization, role)
    return Model(config=config, max_model_len=length, quantization=method)


def find_class_faults(context: Context, config: HfConfig, role: str) -> Iterator[Ruling]:
    """Yield why a release cannot build the class of a model, or not in the requested type of weights."""
    if find_architecture(context, config.architectures, served=role == "target") is None:
        names = config.architectures or ["(none)"]
        yield from context.rules.ruling(f"{role}-class-unknown", names=names, where=place_of(role))
    if context.flags.get("dtype") in ("half", "float16") and config.model_type in _NEEDS_WIDE_RANGE:
        yield from context.rules.ruling(f"{role}-needs-bfloat16", model_type=config.model_type)


def find_architecture(context: Context, names: Sequence[str], *, served: bool = False) -> str | None:
    """Return the class for a checkpoint's architectures; None if the release can build none.

    Args:
        context: setup whose release builds.
        names: architectures from config.json, or after vLLM's renaming.
        served: whether it is the served model, for which vLLM also tries pairs of name endings; not for a drafter.
    """
    registry = context.release.table("architectures")
    for name in names:
        if name in registry:
            return name
        if served and (base := _swap_ending(context, registry, name)) is not None:
            return base
    if context.rules.holds("transformers-takes-all"):
        return _TRANSFORMERS
    by_attention = context.rules.holds("transformers-by-attention")
    return next((name for name in names[:1] if is_buildable(name, by_attention=by_attention)), None)


def _swap_ending(context: Context, registry: Mapping[str, Any], name: str) -> str | None:
    endings = read_config_keys()["class_endings"]
    own = next((ending for ending in endings if name.endswith(ending)), None)
    pools = context.flags.get("runner") == "pooling" or context.flags.get("convert") not in (None, "auto", "none")
    if own is None or (pools and own in _GENERATING):
        return None
    return next((base for other in endings if (base := name.replace(own, other)) in registry), None)


def supports(context: Context, names: Sequence[str], interface: str) -> bool:
    """Return whether the class for architectures has an interface, e.g. `SupportsPP`; unknown classes have none."""
    name = find_architecture(context, names, served=True)
    registry = context.release.table("architectures")
    row = registry.get(name, registry.get(_TRANSFORMERS)) if name is not None else None
    return row is not None and interface in row.get("interfaces", ())


def has_interface(context: Context, interface: str) -> bool | None:
    """Return whether the target's class has an interface in this release; None if it is not in the catalogue."""
    names = () if context.target is None else context.target.architectures
    if not names or find_architecture(context, names, served=True) is None:
        return None
    return supports(context, names, interface)


def is_text_only(context: Context) -> bool:
    """Return whether a multimodal target is served for text only: every kind of media has a limit of 0."""
    if "language_model_only" in context.on:
        return True
    limits = context.objects.get("limit_mm_per_prompt", {})
    counts = {kind: limit.get("count") if isinstance(limit, Mapping) else limit for kind, limit in limits.items()}
    name = context.target.architectures[0] if context.target and context.target.architectures else ""
    media = find_media(str((context.release.table("architectures").get(name) or {}).get("module")))
    return "enable_mm_embeds" not in context.on and all(counts.get(kind) == 0 for kind in media)


def _derive_length(context: Context, config: HfConfig) -> int | None:
    """Return the longest context in tokens that the config.json allows. None where it says none."""
    text = config.text
    length = config.context_length
    if length is None or abs(length) > _LONGEST_CONTEXT:
        return None
    factor = 1.0
    for scaling in _rope_parts(text):
        kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
        if kind in _UNSCALED or "gemma3" in text.model_type:
            continue
        if kind in _YARN and context.rules.holds("yarn-length-is-scaled"):
            continue
        if kind == "yarn" and isinstance(original := scaling.get("original_max_position_embeddings"), int):
            length = max(-_LONGEST_CONTEXT, min(original, _LONGEST_CONTEXT))
        if isinstance(given := scaling.get("factor"), int | float) and 0 < given < _LONGEST_CONTEXT:
            factor = given
    return int(length * factor)


def _rope_parts(config: HfConfig) -> Iterator[Mapping[str, Any]]:
    for key in _ROPE_KEYS:
        given = config.get(key)
        if isinstance(given, Mapping):
            nested = [part for part in given.values() if isinstance(part, Mapping)]
            yield from nested or [given]
            return


def _find_too_long(context: Context, config: HfConfig, asked: int, derived: int, role: str) -> Iterator[Ruling]:
    declared = config.text.get("model_max_length")
    if isinstance(declared, int) and asked <= declared:
        return
    if context.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true"):
        return
    yield from context.rules.ruling(f"{role}-too-long", asked=asked, derived=derived)


def _resolve_quantization(context: Context, config: HfConfig, asked: str | None, role: str) -> Step[str | None]:
    """Return the method that a model is loaded with, and yield why that is refused."""
    own = config.quantization
    method = asked.lower() if asked is not None and context.rules.holds("quantization-any-case") else asked
    chosen = method or own
    if chosen is None:
        return None
    if own == "mxfp4" and config.model_type == "gpt_oss":
        if (dtype := context.flags.get("dtype")) not in ("auto", "bfloat16"):
            yield from context.rules.ruling("target-needs-bfloat16-kernels", method=own, dtype=dtype)
        if context.rules.holds("gpt-oss-takes-its-own-method"):
            return own
    if own is not None and _takes_own_method(context, config):
        method, chosen = None, own
    if method is not None and own is not None and not reads_weights_of(method, own):
        yield from context.rules.ruling(f"{role}-quantization-differs", asked=asked, own=own)
        return own
    known = context.release.table("spec_fields")["quantization"]["choices"]
    if chosen not in known and _LOADED_AS.get(chosen) in known:
        chosen = _LOADED_AS[chosen]
    if chosen not in known and (plugin := find_plugin(chosen)):
        yield from context.rules.ruling("quantization-of-plugin", chosen=chosen, plugin=plugin, where=place_of(role))
        return chosen
    is_format = chosen.replace("_", "-").startswith(_REPLACING)
    if chosen not in known and is_format and own is None and _may_be_quantized(context, config, role):
        yield from context.rules.ruling(_MAY_BE_REPLACED, chosen=chosen)
        return chosen
    if chosen not in known:
        yield from context.rules.ruling(
            f"{role}-quantization-unknown", chosen=chosen, fix="Use one of " + ", ".join(sorted(known)) + "."
        )
        return chosen
    yield from _find_deprecated(context, chosen, role)
    if role == "target":
        yield from _find_float16_kernel(context, config, method)
        if context.flags.get("dtype") in ("float", "float32") and not runs_in_float32(chosen):
            yield from context.rules.ruling("quantized-in-float32", method=chosen)
    return chosen


def find_quantization(context: Context, asked: object, role: str) -> Iterator[Ruling]:
    """Yield why a requested quantization is rejected for any model."""
    if isinstance(asked, str):
        yield from _resolve_quantization(context, HfConfig({}), asked, role)


def _may_be_quantized(context: Context, config: HfConfig, role: str) -> bool:
    """Say whether nobody knows the target's weights: those of a copy, or of a name that is in no table."""
    is_known = context.target is not None and context.target.copy is None and not config.values
    unread = not config.values or config.weights == UNKNOWN_WEIGHTS
    return role == "target" and unread and not is_known and context.rules.holds(_MAY_BE_REPLACED)


def _takes_own_method(context: Context, config: HfConfig) -> bool:
    """Say whether vLLM replaces the method that is asked for by a checkpoint's own, one of ModelOpt or AutoRound."""
    if config.quantization == "auto-round":
        return context.rules.holds("auto-round-takes-its-own-method")
    is_known = any(part in _read_algorithm(config) for part in ("FP8", *_MODELOPT))
    is_own = is_known and str(config.quantization).startswith("modelopt")
    return is_own and context.rules.holds("modelopt-takes-its-own-method")


def _read_algorithm(config: HfConfig) -> str:
    inner = config.weights.get("quantization", config.weights)
    return str(inner.get("quant_algo") or "").upper() if isinstance(inner, Mapping) else ""


_MODELOPT: Mapping[str, str] = {"MXFP8": "modelopt_mxfp8", "FP4": "modelopt_fp4", "MIXED": "modelopt_mixed"}
"""Part of ModelOpt's algorithm -> the method that vLLM loads it with."""


def find_kernels(config: HfConfig, method: str) -> str:
    """Return the method whose kernels run a model's weights; a checkpoint of ModelOpt tells it by its algorithm."""
    found = (own for part, own in _MODELOPT.items() if method == "modelopt" and part in _read_algorithm(config))
    return next(found, method)


def _find_deprecated(context: Context, method: str, role: str) -> Iterator[Ruling]:
    allowed = context.flags.get("allow_deprecated_quantization") is True
    if is_deprecated(method, context.release.version) and not allowed:
        yield from context.rules.ruling(f"{role}-quantization-deprecated", method=method)


def _find_float16_kernel(context: Context, config: HfConfig, asked: str | None) -> Iterator[Ruling]:
    """Yield the refusal of a kernel for float16 that was asked for by name. Unasked, a better one is taken."""
    dtype = context.flags.get("dtype")
    if dtype in (None, "auto"):
        dtype = config.text.get("dtype") or config.text.get("torch_dtype")
    if asked in _PLAIN_KERNELS and dtype == "bfloat16":
        yield from context.rules.ruling(_PLAIN_KERNELS[asked], asked=asked)
