"""What lies on disk, looked at without loading it: config.json, tokenizer files and headers of safetensors files."""

from draftwise.checkpoints.headers import Headers, Tensor, read_headers
from draftwise.checkpoints.inspect import Inspection
from draftwise.checkpoints.pair import (
    Pair,
    find_mtp_findings,
    find_pair_findings,
    inspect_checkpoint,
    inspect_pair,
)
from draftwise.checkpoints.tokenizer_fit import Comparison

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
