"""Which token stands for those that are not known yet, in drafters that draft several in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.checkpoints.dimensions import get_int, get_mapping

__all__ = ["MASK_KEYS", "find_mask_token"]

MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Where a plain config.json keeps the id, in vLLM's order (v1/spec_decode/llm_base_proposer.py)."""


def find_mask_token(config: Mapping[str, Any]) -> int | None:
    """Return the id that a plain config.json names, None if it names none."""
    own = get_int(get_mapping(config, "dflash_config"), "mask_token_id")
    return get_int(config, *MASK_KEYS) if own is None else own
