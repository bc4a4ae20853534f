"""One checkpoint looked at without loading it: what it is, what it holds, and whether that is complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwise.checkpoints.base_model import RecordedBase, find_recorded_base
from draftwise.checkpoints.completeness import find_tensor_findings
from draftwise.checkpoints.dimensions import Dimensions, get_int
from draftwise.checkpoints.expected import TargetSizes
from draftwise.checkpoints.headers import Headers, read_headers
from draftwise.checkpoints.model_config import ModelConfig, find_model_config
from draftwise.checkpoints.mtp_modules import MtpModules, find_mtp_modules
from draftwise.checkpoints.quantization import Quantization, count_parameters, find_quantization
from draftwise.checkpoints.recognize import Drafter, recognize
from draftwise.checkpoints.ruling import rule_on
from draftwise.checkpoints.text_files import read_json
from draftwise.checkpoints.vocabulary import Vocabulary, read_vocabulary
from draftwise.core import Finding, InvalidSetup

__all__ = ["Inspection", "describe_lost", "inspect_directory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a checkpoint directory holds."""

    directory: Path
    config: Mapping[str, Any]
    """config.json as it stands."""
    drafter: Drafter
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
        """Tokens that its modules were trained to guess, None for a drafter that has no such number."""
        stated = get_int(self.drafter.config, "n_predict", "num_lookahead_tokens")
        return stated if stated is not None or self.mtp is None else self.mtp.stated

    @property
    def num_heads(self) -> int | None:
        """Heads of a medusa drafter, stages of an mlp_speculator; None for others."""
        keys = {"medusa": ("num_heads", "medusa_num_heads"), "mlp_speculator": ("n_predict",)}
        return get_int(self.drafter.config, *keys.get(self.drafter.method, ()))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, without tokens and tensors."""
        headers, drafter = self.headers, self.drafter
        return {
            "directory": str(self.directory),
            "method": drafter.method,
            "format": drafter.layout,
            "algorithm": drafter.algorithm,
            "architecture": drafter.architecture,
            "parallel_drafting": drafter.parallel,
            "mask_token_id": drafter.mask_token_id,
            "layer_ids": drafter.taps,
            "block_size": get_int(drafter.config, "block_size"),
            "n_predict": self.n_predict,
            "num_heads": self.num_heads,
            "dimensions": asdict(self.dimensions) | {"draft_vocab_size": self.draft_vocab_size},
            "num_parameters": self.num_parameters,
            "num_bytes": headers.num_bytes,
            "bytes_by_dtype": headers.bytes_by_dtype(),
            "bytes_by_role": headers.bytes_by_role(self.dimensions.num_hidden_layers),
            "files": headers.files,
            "quantization": None if self.quantization is None else asdict(self.quantization),
            "mtp": None if self.mtp is None else asdict(self.mtp),
            "tokenizer": None if self.vocabulary is None else {
                "source": self.vocabulary.source,
                "num_tokens": len(self.vocabulary.tokens),
                "identity": self.vocabulary.identity,
                "named": self.vocabulary.named,
            },
            "recorded_base": None if self.recorded_base is None else asdict(self.recorded_base),
        }  # fmt: skip


def inspect_directory(directory: str | Path, *, target: TargetSizes | None = None) -> Inspection:
    """Return what a checkpoint directory holds.

    Args:
        directory: with config.json and safetensors files.
        target: what the tensors of a head depend on besides its own config; None: not known.

    Raises:
        InvalidSetup: config.json or the weights are missing or damaged: with every fault of both.
    """
    directory = Path(directory)
    model, headers, faults = _read(directory)
    if model is None or headers is None:
        raise InvalidSetup(faults)
    drafter = recognize(model.config, headers.tensors)
    fields = drafter.config if drafter.layout == "speculators" else model.text_config
    quantization = find_quantization(_with_modelopt(model.config, directory))
    mtp = find_mtp_modules(model.config, headers) if drafter.method in ("draft_model", "mtp") else None
    vocabulary, base, more = _read_around(directory, model.config)
    about_tensors = find_tensor_findings(drafter, headers, target, is_quantized=quantization is not None)
    return Inspection(
        directory=directory,
        config=model.config,
        drafter=drafter,
        dimensions=Dimensions.from_config(fields),
        draft_vocab_size=get_int(drafter.config, "draft_vocab_size", "truncated_vocab_size"),
        headers=headers,
        num_parameters=count_parameters(headers.tensors.values(), quantization),
        quantization=quantization,
        mtp=mtp,
        vocabulary=vocabulary,
        recorded_base=base,
        findings=(*headers.findings, *more, *about_tensors, *_find_mtp_faults(directory, drafter, mtp)),
    )


def _read(directory: Path) -> tuple[ModelConfig | None, Headers | None, list[Finding]]:
    model: ModelConfig | None = None
    headers: Headers | None = None
    faults: list[Finding] = []
    try:
        headers = read_headers(directory)
    except InvalidSetup as error:
        faults += error.findings
    if directory.is_dir():
        try:
            model = find_model_config(str(directory))
        except InvalidSetup as error:
            faults += error.findings
    return model, headers, faults


def _read_around(
    directory: Path, config: Mapping[str, Any]
) -> tuple[Vocabulary | None, RecordedBase | None, list[Finding]]:
    """Return what lies beside the weights; a damaged file there is a finding, and the rest is still looked at."""
    vocabulary: Vocabulary | None = None
    base: RecordedBase | None = None
    faults: list[Finding] = []
    try:
        vocabulary = read_vocabulary(directory)
    except InvalidSetup as error:
        faults += error.findings
    try:
        base = find_recorded_base(directory, config)
    except InvalidSetup as error:
        faults += error.findings
    return vocabulary, base, faults


def _with_modelopt(config: Mapping[str, Any], directory: Path) -> Mapping[str, Any]:
    """Return the config with what ModelOpt writes beside it, where it names no quantization of its own."""
    file = directory / "hf_quant_config.json"
    if config.get("quantization_config") or not file.is_file():
        return config
    try:
        return {**config, "quantization_config": {"quant_method": "modelopt", **read_json(file)}}
    except InvalidSetup:
        return config


def _find_mtp_faults(directory: Path, drafter: Drafter, mtp: MtpModules | None) -> Iterator[Finding]:
    if mtp is None or drafter.method != "draft_model":
        return
    if mtp.lost or mtp.incomplete:
        yield rule_on(
            "mtp-modules-lost", describe_lost(mtp), where=str(directory),
            fix="Take the original checkpoint for method mtp, or copy its MTP tensors into this one; other methods "
            "are not affected.",
        )  # fmt: skip
    elif mtp.stated is None:
        yield rule_on(
            "mtp-modules-unstated",
            f"it holds MTP modules ({len(mtp.present)}), and config.json has no {mtp.key}.",
            where=str(directory),
            fix=f"If your release does not find them, add {mtp.key}: {len(mtp.present)} to config.json.",
        )


def describe_lost(mtp: MtpModules) -> str:
    """Return which modules for multi-token prediction are missing."""
    if mtp.lost:
        there = f"only {len(mtp.present)} of these modules" if mtp.present else "no tensor of such a module"
        return f"config.json says {mtp.key}: {mtp.stated}, and the weight files hold {there}."
    return f"its MTP modules are incomplete; missing: {', '.join(mtp.incomplete[:4])}."
