"""Inspects checkpoints without loading them: config.json, tokenizer files and the headers of safetensors files."""

from draftwise.plan.checkpoint.headers import Headers, Tensor, read_headers
from draftwise.plan.checkpoint.inspection import Inspection
from draftwise.plan.checkpoint.pair import (
    Pair,
    find_mtp_findings,
    find_pair_findings,
    inspect_checkpoint,
    inspect_pair,
)
from draftwise.plan.checkpoint.tokenizer_fit import Comparison

__all__ = [
    "Comparison",
    "Headers",
    "Inspection",
    "Pair",
    "Tensor",
    "find_mtp_findings",
    "find_pair_findings",
    "inspect_checkpoint",
    "inspect_pair",
    "read_headers",
]
