"""`inspect`: lists a checkpoint's contents, and says whether a drafter fits its target, without loading either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from draftwise.checkpoints.config_values import get_int
from draftwise.checkpoints.identity import RecordedBase
from draftwise.checkpoints.inspect import Inspection, MtpModules, inspect_checkpoint
from draftwise.checkpoints.pair import Pair, inspect_pair
from draftwise.checkpoints.tokenizer_fit import TokenComparison
from draftwise.checkpoints.weight_quantization import Quantization
from draftwise.core import Finding, Ruling, Severity
from draftwise.core.documents import json_form
from draftwise.core.progress import Progress
from draftwise.verbs.sources import open_release, remarks_on
from draftwise.verbs.verb import Result, verb

__all__ = ["InspectRequest", "InspectResult", "InspectedCheckpoint", "InspectedPair", "Inspection", "Pair", "inspect"]


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """A checkpoint, alone or as the drafter of a target."""

    checkpoint: str | PathLike[str]
    """Directory of a target or a drafter, or a GGUF file."""
    _: KW_ONLY
    target: str | PathLike[str] | None = None
    """Checkpoint of the target to draft for."""
    vllm: str | None = None
    """Release whose rules apply; None for the newest."""
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """The tokenizer of a checkpoint."""

    source: str
    """File that it was read from."""
    num_tokens: int
    identity: str
    """SHA-256 over ids and tokens."""
    named: Mapping[str, tuple[int, ...]]
    """Ids of bos_token, eos_token and pad_token, by name; without those that the checkpoint does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCheckpoint:
    """One checkpoint."""

    directory: str
    method: str
    """Drafting method of a drafter."""
    format: str
    algorithm: str | None
    architecture: str
    parallel_drafting: bool
    mask_token_id: int | None
    layer_ids: tuple[int, ...] | None
    """Target layers that a head reads."""
    block_size: int | None
    n_predict: int | None
    num_heads: int | None
    dimensions: Mapping[str, Any]
    num_parameters: int
    num_bytes: int
    bytes_by_dtype: Mapping[str, int]
    bytes_by_role: Mapping[str, int]
    files: tuple[str, ...]
    quantization: Quantization | None
    mtp: MtpModules | None
    tokenizer: TokenizerFile | None
    recorded_base: RecordedBase | None
    findings: tuple[Ruling | Finding, ...] | None = field(default=None, metadata=json_form(omit_null=True))
    """Findings about it alone; those about a pair are the pair's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedPair:
    """A drafter and its target."""

    drafter: InspectedCheckpoint
    target: InspectedCheckpoint
    tokenizers: TokenComparison | None
    """Null if either has no readable tokenizer."""
    size_ratio: float | None
    """Parameters of the target over those of the drafter."""
    fits: bool
    findings: tuple[Ruling | Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResult(Result):
    """The contents of one checkpoint, or of two with their differences."""

    VERB: ClassVar[str] = "inspect"
    sides: tuple[Inspection, ...]
    """The checkpoint; with a target, the drafter and the target."""
    pair: Pair | None
    findings: tuple[Finding, ...]
    remarks: tuple[Finding, ...] = ()
    """Findings about the release."""

    @property
    def notices(self) -> tuple[Finding, ...]:
        """Findings about the release."""
        return self.remarks

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error."""
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))

    def to_wire(self) -> InspectedCheckpoint | InspectedPair:
        """Return the document."""
        if self.pair is None:
            return _describe(self.sides[0], self.findings)
        return InspectedPair(
            drafter=_describe(self.pair.drafter),
            target=_describe(self.pair.target),
            tokenizers=self.pair.tokenizers,
            size_ratio=self.pair.size_ratio,
            fits=self.pair.fits,
            findings=self.findings,
        )


@verb(InspectRequest)
def inspect(request: InspectRequest, _progress: Progress) -> InspectResult:
    """Show what a checkpoint contains: a target, or a drafter with its method and format.

    With a target, also check whether the two fit: token ids, hidden sizes, layer ids, vocabulary maps, missing and
    unexpected tensors, and the model that the drafter was trained for. Only config.json, tokenizer files and the
    headers of safetensors files are read.
    """
    version = None
    remarks: tuple[Finding, ...] = ()
    if request.vllm is not None:
        release = open_release(request.vllm, nearest=request.nearest)
        version, remarks = release.version, remarks_on(release)
    if request.target is None:
        one = inspect_checkpoint(Path(request.checkpoint), version=version)
        return InspectResult(sides=(one,), pair=None, findings=one.findings, remarks=remarks)
    pair = inspect_pair(Path(request.checkpoint), Path(request.target), version=version)
    return InspectResult(sides=(pair.drafter, pair.target), pair=pair, findings=pair.findings, remarks=remarks)


def _describe(side: Inspection, findings: tuple[Finding, ...] | None = None) -> InspectedCheckpoint:
    headers, drafter, vocabulary = side.headers, side.drafter, side.vocabulary
    dimensions = {name: getattr(side.dimensions, name) for name in type(side.dimensions).__slots__}
    return InspectedCheckpoint(
        directory=str(side.directory),
        method=drafter.method,
        format=drafter.layout,
        algorithm=drafter.algorithm,
        architecture=drafter.architecture,
        parallel_drafting=drafter.parallel,
        mask_token_id=drafter.mask_token_id,
        layer_ids=None if drafter.aux_layers is None else drafter.aux_layers.ids,
        block_size=get_int(drafter.config, "block_size"),
        n_predict=side.n_predict,
        num_heads=side.num_heads,
        dimensions=dimensions | {"draft_vocab_size": side.draft_vocab_size},
        num_parameters=side.num_parameters,
        num_bytes=headers.num_bytes,
        bytes_by_dtype=headers.bytes_by_dtype(),
        bytes_by_role=headers.bytes_by_role(side.dimensions.num_hidden_layers),
        files=headers.files,
        quantization=side.quantization,
        mtp=side.mtp,
        tokenizer=None
        if vocabulary is None
        else TokenizerFile(
            source=vocabulary.source,
            num_tokens=len(vocabulary.tokens),
            identity=vocabulary.identity,
            named=vocabulary.named,
        ),
        recorded_base=side.recorded_base,
        findings=findings,
    )
