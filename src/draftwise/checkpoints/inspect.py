"""One checkpoint looked at without loading it: what it is, what it holds, and whether that is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import Version

from draftwise.checkpoints.base_model import RecordedBase, find_recorded_base
from draftwise.checkpoints.completeness import find_tensor_findings
from draftwise.checkpoints.dimensions import Dimensions, get_int
from draftwise.checkpoints.expected import TargetSizes
from draftwise.checkpoints.gguf import is_gguf, read_gguf
from draftwise.checkpoints.gguf_config import list_tensors
from draftwise.checkpoints.headers import Headers, read_headers
from draftwise.checkpoints.model_config import find_model_config
from draftwise.checkpoints.mtp_modules import MtpModules, find_mtp_modules
from draftwise.checkpoints.quantization import Quantization, count_parameters, find_quantization
from draftwise.checkpoints.recognize import RecognizedDrafter, recognize
from draftwise.checkpoints.text_files import read_json
from draftwise.checkpoints.vocabulary import Vocabulary, read_gguf_vocabulary, read_vocabulary
from draftwise.core import Finding, InvalidSetup, Ruling
from draftwise.knowledge.rules import Rulebook

__all__ = ["Inspection", "describe_lost", "inspect_checkpoint"]

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a checkpoint directory holds."""

    directory: Path
    config: Mapping[str, Any]
    """config.json as it stands."""
    drafter: RecognizedDrafter
    dimensions: Dimensions
    """Of the language model."""
    draft_vocab_size: int | None
    """Tokens that it can name, for a drafter with a vocabulary of its own."""
    headers: Headers
    num_parameters: int
    quantization: Quantization | None
    mtp: MtpModules | None
    """None where config and tensors say nothing of multi-token prediction."""
    vocabulary: Vocabulary | None
    recorded_base: RecordedBase | None
    findings: tuple[Finding, ...]
    """About this checkpoint alone."""

    @property
    def sizes(self) -> TargetSizes | None:
        """What a head for this model depends on, None where config.json does not say."""
        of = self.dimensions
        if not (of.hidden_size and of.vocab_size and of.num_hidden_layers):
            return None
        return TargetSizes(hidden_size=of.hidden_size, vocab_size=of.vocab_size, num_layers=of.num_hidden_layers)

    @property
    def n_predict(self) -> int | None:
        """Tokens that its modules were trained to draft, None for a drafter that has no such number."""
        stated = get_int(self.drafter.config, "n_predict", "num_lookahead_tokens")
        return stated if stated is not None or self.mtp is None else self.mtp.stated

    @property
    def num_heads(self) -> int | None:
        """Heads of a medusa drafter, stages of an mlp_speculator; None for others."""
        if self.drafter.traits.network != "heads":
            return None
        return get_int(self.drafter.config, "num_heads", "medusa_num_heads", "n_predict")


def inspect_checkpoint(
    directory: str | Path, *, target: TargetSizes | None = None, version: Version | None = None
) -> Inspection:
    """Return what a checkpoint directory holds: config.json, tokenizer files and safetensors headers only.

    Args:
        directory: of a target or a drafter; or a GGUF file.
        target: what the tensors of a head depend on besides its own config; None: not known.
        version: release of vLLM whose rules count; None: the newest.

    Raises:
        InvalidSetup: config.json or the weights are missing or damaged: with every fault of both.
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
    """Return what ModelOpt writes beside a config that names no quantization of its own, as field of a config."""
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
    """Return which modules for multi-token prediction are missing."""
    if mtp.lost:
        there = f"only {len(mtp.present)} of these modules" if mtp.present else "no tensor of such a module"
        return f"The checkpoint's config.json says {mtp.key}: {mtp.stated}, and the weight files hold {there}."
    return f"The checkpoint's MTP modules are incomplete; missing: {', '.join(mtp.incomplete[:4])}."
