"""A schedule of draft lengths as each engine reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftwise.core import SpecConfig
from draftwise.plan.schedule.ranges import Range, make_schedule_keys

__all__ = ["FORMATS", "emit"]


def emit(form: str, spec: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return a schedule in an engine's form.

    Args:
        form: one of FORMATS.
        spec: the config whose draft length the schedule sets.
        ranges: of batch sizes, in order, without gaps.
    """
    return FORMATS[form](spec, ranges)


def _emit_vllm(spec: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return the JSON of `--speculative-config`, of vLLM and of draftwise's own engine."""
    return json.dumps({**spec.to_dict(), **make_schedule_keys(ranges)})


def _emit_sglang(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return the file for `--speculative-adaptive-config`: candidate steps by the batch size from which they hold.

    A range without drafting keeps one step: SGLang's adaptive tiers always draft.
    """
    tiers: Mapping[str, Any] = {str(first): {"candidate_steps": [max(1, k)]} for first, _, k in ranges}
    return json.dumps(tiers, indent=1)


def _emit_up_to(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return TensorRT-LLM's `draft_len_schedule` where a key is the largest batch size that its length holds for."""
    return json.dumps({last: k for _, last, k in ranges})


def _emit_from(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return TensorRT-LLM's `draft_len_schedule` where a key is the batch size from which its length holds."""
    return json.dumps({first: k for first, _, k in ranges})


FORMATS: Mapping[str, Callable[[SpecConfig, Sequence[Range]], str]] = {
    "vllm": _emit_vllm,
    "sglang": _emit_sglang,
    "trtllm-up-to": _emit_up_to,
    "trtllm-from": _emit_from,
}
"""TensorRT-LLM has read the same key in two ways: the operator says which of them its release has."""
