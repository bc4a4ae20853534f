"""How many pages the KV cache gets."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from draftwise.core import InvalidSetup
from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM

__all__ = ["num_pages"]

_FREE_SHARE = 0.8
"""Part of the free memory that the page pool may take when its size is not given."""


def num_pages(config: EngineConfig, model: CausalLM, *, extra_bytes_per_token: int = 0) -> int:
    """Return the number of pages of the pool for a resolved config.

    `extra_bytes_per_token` is what a proposer keeps in each page beside the target's keys and values.

    Raises:
        InvalidSetup: the pool cannot hold a single sequence of max_model_len.
    """
    assert config.max_model_len is not None
    size = config.block_size
    page_bytes = size * (model.shape.kv_bytes_per_token(model.dtype.itemsize) + extra_bytes_per_token)
    pages_per_sequence = -(-config.max_model_len // size)
    if config.num_gpu_blocks_override is not None:
        pages = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is None:
        affordable = int(_free_bytes(model.device) * _FREE_SHARE) // page_bytes
        pages = min(pages_per_sequence * config.max_num_seqs, affordable)
    else:
        pages = config.kv_cache_memory_bytes // page_bytes
    if pages < pages_per_sequence:
        raise InvalidSetup.because(
            "kv-cache-too-small",
            f"{pages * page_bytes} bytes hold {pages * size} tokens, less than one sequence of {config.max_model_len}.",
            where="kv_cache_memory_bytes",
            fix=f"Give at least {pages_per_sequence * page_bytes} bytes, or lower max_model_len to {pages * size}.",
        )
    return pages


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
