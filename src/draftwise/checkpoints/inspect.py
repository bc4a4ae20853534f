"""Inspects one checkpoint without loading it: kind, contents, and whether it is complete.

Saving a model with transformers drops its multi-token prediction modules for most families, and so does much
quantizing, but config.json still lists them; vLLM then fails only when it loads the drafter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import Version

from draftwise.checkpoints.config_json import find_model_config
from draftwise.checkpoints.config_values import Dimensions, TargetSizes, get_int, get_mapping
from draftwise.checkpoints.expected_tensors import ExpectedTensors, Shapes, expect_tensors
from draftwise.checkpoints.gguf_files import is_gguf, list_tensors, read_gguf
from draftwise.checkpoints.headers import MTP, MTP_COUNTS, Headers, Tensor, layer_of, read_headers, role_of
from draftwise.checkpoints.identity import RecordedBase, find_recorded_base
from draftwise.checkpoints.recognize import RecognizedDrafter, recognize
from draftwise.checkpoints.text_files import quote, quote_some, read_json
from draftwise.checkpoints.vocabulary import Vocabulary, read_gguf_vocabulary, read_vocabulary
from draftwise.checkpoints.weight_quantization import Quantization, count_parameters, find_quantization
from draftwise.core import Finding, InvalidSetup, Ruling
from draftwise.knowledge.rules import Rulebook

_NESTED = ("text_config", "mtp_config", "llm_config")
_NUMBER = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.(?:layers\.)?(\d+)\.")
_JOINS = re.compile(r"\.eh_proj\.")
_LAYOUTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model.layers.{layer}.", ("enorm", "hnorm", "eh_proj")),
    ("model.mtp_layers.{module}.", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
    ("mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")),
)
"""What joins state and token in the modules of DeepSeek and GLM, MiMo, and Qwen3-Next and Qwen3.5, by their prefix; the
rest of a module is a usual decoder layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpModules:
    """A checkpoint's multi-token prediction modules, as stated and as stored."""

    stated: int | None
    """Number in config.json (vLLM's n_predict); None if not stated."""
    key: str
    """Field of that number; the usual one if not stated."""
    present: tuple[int, ...]
    """Numbers of modules with tensors, from 0."""
    incomplete: tuple[str, ...]
    """Missing tensors of modules that are present."""
    num_bytes: int

    @property
    def lost(self) -> int:
        """Number of modules in config.json that the files lack."""
        return max(0, (self.stated or 0) - len(self.present))


def find_mtp_modules(config: Mapping[str, Any], headers: Headers) -> MtpModules | None:
    """Return the modules; None if the checkpoint neither states nor holds any."""
    key, stated = _find_stated(config)
    layers = get_int(config, "num_hidden_layers") or get_int(get_mapping(config, "text_config"), "num_hidden_layers")
    if not stated and not any(_JOINS.search(name) for name in headers.tensors):
        layers = None  # a layer too many is no module yet
    tensors = {name: tensor for name, tensor in headers.tensors.items() if role_of(name, layers) == MTP}
    if not stated and not tensors:
        return None
    present = {_module_of(name, layers) for name in tensors}
    return MtpModules(
        stated=stated,
        key=key,
        present=tuple(sorted(present)),
        incomplete=tuple(_find_incomplete(headers, layers, present)),
        num_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
    )


def _find_stated(config: Mapping[str, Any]) -> tuple[str, int | None]:
    for place in (config, *(get_mapping(config, name) for name in _NESTED)):
        for key in MTP_COUNTS:
            if (count := get_int(place, key)) is not None:
                return key, count
    return MTP_COUNTS[0], None


def _module_of(name: str, layers: int | None) -> int:
    layer = layer_of(name)
    if layers is not None and layer is not None and layer >= layers:
        return layer - layers
    match = _NUMBER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else 0


def _find_incomplete(headers: Headers, layers: int | None, present: set[int]) -> list[str]:
    """Return what modules that are there lack at their entry; layouts that are not known are not looked into."""
    names = headers.tensors
    lacking: dict[str, None] = {}
    for module in sorted(present):
        for pattern, entries in _LAYOUTS:
            prefix = pattern.format(layer=-1 if layers is None else layers + module, module=module)
            own = [f"{prefix}{entry}" for entry in entries]
            absent = [part for part in own if not any(name.startswith(part + ".") for name in names)]
            if len(absent) < len(own):
                lacking |= dict.fromkeys(absent)
    return list(lacking)


_QUANTIZED_PART = re.compile(
    r"\.(?:qweight|qzeros|scales|g_idx|weight_packed|weight_scale(?:_\w+)?|weight_shape|weight_zero_point|weight_g_idx"
    r"|input_scale|input_global_scale|weight_global_scale|k_scale|v_scale|weight\.[\w.]+)$"
)
"""Endings of tensors that replace or accompany `.weight` in a quantized layer."""
_PACKED_TYPES = frozenset({"U8", "I8", "I32", "F4", "F6_E2M3", "F6_E3M2"})
_FLEXIBLE = "mask_hidden"
"""Read flat, whatever its shape."""


def find_tensor_findings(
    rules: Rulebook, drafter: RecognizedDrafter, headers: Headers, target: TargetSizes | None, *, is_quantized: bool
) -> Iterator[Ruling]:
    """Yield tensors that are missing, unknown or of another shape.

    Args:
        target: see `expect_tensors`.
        is_quantized: whether its weights are quantized: packed ones have other shapes.
    """
    where = str(headers.directory)
    expected = expect_tensors(drafter, target)
    if expected is None:
        if drafter.is_head:
            name = quote(drafter.architecture or drafter.method)
            yield from rules.ruling("tensors-unchecked", drafter=name, where=where)
        return
    found = {expected.rename(name): tensor for name, tensor in headers.tensors.items()}
    if drafter.is_head and drafter.traits.weights != "target" and _all_prefixed(found, expected):
        yield from rules.ruling("tensors-prefixed", name=quote(min(found)), where=where)
        return
    stems = {_stem(name) for name in found} if is_quantized else set[str]()
    yield from _find_missing(rules, expected, found, stems, where)
    yield from _find_misshapen(rules, expected, found, where, is_quantized=is_quantized)
    if expected.refuses_unknown:
        yield from _find_unknown(rules, drafter, expected, found, where, is_quantized=is_quantized)


def _all_prefixed(found: Mapping[str, Tensor], expected: ExpectedTensors) -> bool:
    known = expected.required.keys() | expected.optional.keys()
    return not known & found.keys() and any(name.removeprefix("model.") in known for name in found)


def _stem(name: str) -> str:
    """Return the name that a layer's weight would have if it were not quantized."""
    return _QUANTIZED_PART.sub(".weight", name)


def _find_missing(
    rules: Rulebook, expected: ExpectedTensors, found: Mapping[str, Tensor], stems: set[str], where: str
) -> Iterator[Ruling]:
    missing = sorted(name for name in expected.required if name not in found and name not in stems)
    silent = [name for name in missing if expected.silent.match(name)]
    loud = [name for name in missing if not expected.silent.match(name)]
    if silent:
        yield from rules.ruling("tensors-missing", num=len(silent), names=quote_some(silent), where=where)
    if loud:
        yield from rules.ruling("tensors-missing-refused", num=len(loud), names=quote_some(loud), where=where)


def _find_misshapen(
    rules: Rulebook, expected: ExpectedTensors, found: Mapping[str, Tensor], where: str, *, is_quantized: bool
) -> Iterator[Ruling]:
    shapes: Shapes = {**expected.required, **expected.optional}
    wrong = [
        f"{name} is {list(found[name].shape)}, not {list(shape)}"
        for name, shape in sorted(shapes.items())
        if name in found and not _fits(found[name], name, shape, may_be_packed=is_quantized)
    ]
    if wrong:
        yield from rules.ruling("tensor-shapes", num=len(wrong), names=quote_some(wrong), where=where)


def _fits(tensor: Tensor, name: str, shape: tuple[int, ...], *, may_be_packed: bool) -> bool:
    if name == _FLEXIBLE:
        return tensor.num_elements == math.prod(shape)
    is_packed = may_be_packed and name.endswith(".weight") and tensor.dtype in _PACKED_TYPES
    return tensor.shape == shape or is_packed


def _find_unknown(
    rules: Rulebook,
    drafter: RecognizedDrafter,
    expected: ExpectedTensors,
    found: Mapping[str, Tensor],
    where: str,
    *,
    is_quantized: bool,
) -> Iterator[Ruling]:
    known = expected.required.keys() | expected.optional.keys()
    unknown = [
        name
        for name in sorted(found)
        if name not in known
        and not expected.ignored.fullmatch(name)
        and not (is_quantized and (_stem(name) in known or _QUANTIZED_PART.search(name)))
    ]
    if not drafter.is_head and len(unknown) > len(known):
        return  # another family under a familiar name: nothing that a list of names would explain
    biases = [name for name in unknown if name.endswith(".bias")]
    for code in ("biases-dropped", "biases-refused") if biases else ():
        yield from rules.ruling(
            code, architecture=quote(drafter.architecture), num=len(biases), names=quote_some(biases), where=where
        )
    unknown = [name for name in unknown if name not in biases]
    if unknown:
        yield from rules.ruling(
            "tensors-unknown",
            architecture=quote(drafter.architecture),
            num=len(unknown),
            names=quote_some(unknown),
            where=where,
        )


_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The contents of a checkpoint directory."""

    directory: Path
    config: Mapping[str, Any]
    """config.json, unchanged."""
    drafter: RecognizedDrafter
    dimensions: Dimensions
    """The language model's dimensions."""
    draft_vocab_size: int | None
    """Number of tokens that it can draft, for a drafter with its own vocabulary."""
    headers: Headers
    num_parameters: int
    quantization: Quantization | None
    mtp: MtpModules | None
    """None without multi-token prediction in config and tensors."""
    vocabulary: Vocabulary | None
    recorded_base: RecordedBase | None
    findings: tuple[Finding, ...]
    """Findings about this checkpoint only."""

    @property
    def sizes(self) -> TargetSizes | None:
        """Sizes that a head for this model depends on; None if config.json lacks one."""
        return TargetSizes.from_dimensions(self.dimensions)

    @property
    def n_predict(self) -> int | None:
        """Number of tokens that its modules were trained to draft; None without such a number."""
        stated = get_int(self.drafter.config, "n_predict", "num_lookahead_tokens")
        return stated if stated is not None or self.mtp is None else self.mtp.stated

    @property
    def num_heads(self) -> int | None:
        """Number of heads of a medusa drafter, or of stages of an mlp_speculator; None for others."""
        if self.drafter.traits.network != "heads":
            return None
        return get_int(self.drafter.config, "num_heads", "medusa_num_heads", "n_predict")


def inspect_checkpoint(
    directory: str | Path, *, target: TargetSizes | None = None, version: Version | None = None
) -> Inspection:
    """Return the contents of a checkpoint directory, from config.json, tokenizer files and safetensors headers only.

    Args:
        directory: directory of a target or a drafter, or a GGUF file.
        target: sizes of the target that a head's tensors depend on; None if unknown.
        version: release of vLLM whose rules apply; None for the newest.

    Raises:
        InvalidSetup: config.json or the weights are missing or damaged; the error lists all faults.
    """
    directory, rules = Path(directory), Rulebook(version)
    faults: list[Finding] = []
    gguf = read_gguf(directory) if is_gguf(directory) else None
    headers = _try(faults, lambda: read_headers(directory) if gguf is None else list_tensors(gguf))
    model = _try(faults, lambda: find_model_config(str(directory)) if gguf or directory.is_dir() else None)
    if model is None or headers is None:
        raise InvalidSetup(faults)
    config, text_config = model.config, model.text_config
    # What lies around the weights may be damaged, and the rest is still looked at.
    vocabulary = _try(faults, lambda: read_vocabulary(directory) if gguf is None else read_gguf_vocabulary(gguf))
    base = _try(faults, lambda: find_recorded_base(directory, config))
    modelopt = _try(faults, lambda: _read_modelopt(directory, config))
    drafter = recognize(config, headers.tensors)
    is_target_or_modules = not drafter.is_head or drafter.traits.weights == "target"
    mtp = find_mtp_modules(config, headers) if is_target_or_modules else None
    quantization = find_quantization(modelopt or config)
    about_tensors = find_tensor_findings(rules, drafter, headers, target, is_quantized=quantization is not None)
    return Inspection(
        directory=directory,
        config=config,
        drafter=drafter,
        dimensions=Dimensions.from_config(text_config if drafter.layout == "plain" else drafter.config),
        draft_vocab_size=get_int(drafter.config, "draft_vocab_size", "truncated_vocab_size"),
        headers=headers,
        num_parameters=count_parameters(headers.tensors.values(), quantization),
        quantization=quantization,
        mtp=mtp,
        vocabulary=vocabulary,
        recorded_base=base,
        findings=(*headers.findings, *faults, *about_tensors, *_find_mtp_faults(rules, directory, drafter, mtp)),
    )


def _try(faults: list[Finding], read: Callable[[], _Read]) -> _Read | None:
    """Return what a reader returns; where it cannot read, None, and its findings join the faults."""
    try:
        return read()
    except InvalidSetup as error:
        faults += error.findings
        return None


def _read_modelopt(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return ModelOpt's own file as a config field, for a config that names no quantization."""
    file = directory / "hf_quant_config.json"
    if config.get("quantization_config") or not file.is_file():
        return None
    return {"quantization_config": {"quant_method": "modelopt", **read_json(file)}}


def _find_mtp_faults(
    rules: Rulebook, directory: Path, drafter: RecognizedDrafter, mtp: MtpModules | None
) -> Iterator[Ruling]:
    if mtp is None or drafter.is_head:
        return
    if mtp.lost or mtp.incomplete:
        yield from rules.ruling("mtp-modules-lost", message=describe_lost(mtp), where=directory)
    elif mtp.stated is None:
        yield from rules.ruling("mtp-modules-unstated", num=len(mtp.present), key=mtp.key, where=directory)


def describe_lost(mtp: MtpModules) -> str:
    """Return which multi-token prediction modules are missing, in words."""
    if mtp.lost:
        there = f"only {len(mtp.present)} of these modules" if mtp.present else "no tensor of such a module"
        return f"The checkpoint's config.json says {mtp.key}: {mtp.stated}, and the weight files hold {there}."
    return f"The checkpoint's MTP modules are incomplete; missing: {', '.join(mtp.incomplete[:4])}."
