"""What the engine runs with: resolved once from arguments, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from draftwise.core import Finding, InvalidSetup, Severity

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine settings, with vLLM's names.

    Attributes:
        dtype: `auto` (the checkpoint's), `bfloat16`, `float16`, `float32` or `float64`.
        device: `auto`, `cpu` or `cuda`.
        max_model_len: longest prompt plus output, in tokens; None is the model's own.
        max_num_seqs: sequences decoded together at most.
        max_num_batched_tokens: tokens computed in one step at most (longer prefills are chunked).
        kv_cache_memory_bytes: size of the page pool; None: enough for max_num_seqs sequences of max_model_len,
            at most a fixed share of the free memory.
        num_gpu_blocks_override: pages of the pool, whatever the memory says (vLLM's name, on any device).
        block_size: tokens a page.
        seed: seed of the random streams of requests that bring none.
        hidden_states_folder: where the method extract_hidden_states writes (vLLM names it in --kv-transfer-config,
            as shared_storage_path).
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    seed: int = 0
    hidden_states_folder: str = "hidden_states"

    @classmethod
    def from_settings(cls, **settings: Any) -> EngineConfig:
        """Return the config for keyword settings.

        Raises:
            InvalidSetup: a name is unknown (the nearest known one is suggested) or a number is not positive.
        """
        known = [each.name for each in fields(cls)]
        findings = [
            Finding(
                code="unknown-setting",
                severity=Severity.ERROR,
                where=name,
                message="is not an engine setting.",
                fix=f"Did you mean {near[0]}?" if (near := get_close_matches(name, known, 1)) else f"Known: {known}.",
            )
            for name in settings
            if name not in known
        ]
        counts = (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_memory_bytes",
            "num_gpu_blocks_override",
            "block_size",
        )
        findings += [
            Finding(code="not-positive", severity=Severity.ERROR, where=name, message=f"must be positive, got {value}.")
            for name, value in settings.items()
            if name in counts and value is not None and value < 1
        ]
        if findings:
            raise InvalidSetup(findings)
        return cls(**settings)
