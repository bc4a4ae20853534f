"""Sizes the KV cache as vLLM would, from the device's memory and its other uses."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.engine_config import EngineConfig
from draftwise.knowledge.memory_overheads import get_embedded_overheads
from draftwise.knowledge.messages import refusal

_FREE_CPU_SHARE = 0.8
"""Default share of free memory for the page pool on a CPU."""
_LIBRARIES_BYTES = get_embedded_overheads().libraries
_HIGHEST_SHARE = 0.98
"""Largest share to advise: the driver reserves some memory."""
_LOGITS_BYTES = 2 + 4 + 4
"""Bytes per logit: the model's own, in float32, and as a probability."""


class LoadedModel(Protocol):
    """The properties of a loaded target that determine memory."""

    shape: ModelShape

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and activations."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""


def num_pages(
    config: EngineConfig,
    model: LoadedModel,
    *,
    extra_bytes_per_token: int = 0,
    activation_bytes: int = 0,
    graph_bytes: int = 0,
) -> int:
    """Return the number of pages for a resolved config. Call it after all weights are loaded.

    Args:
        config: config with max_model_len resolved.
        extra_bytes_per_token: bytes per token that a proposer stores in addition to the target's keys and values.
        activation_bytes: work space of the largest step, from `activation_bytes` or a measured peak. CUDA only.
        graph_bytes: memory reserved for CUDA graphs (`CapturePlan.num_bytes`). CUDA only.

    Raises:
        InvalidSetup: the pool cannot hold a single sequence of max_model_len.
    """
    page_bytes, per_sequence = _page_bytes(config, model, extra_bytes_per_token), _pages_per_sequence(config)
    if config.num_gpu_blocks_override is not None:
        pages, memory = config.num_gpu_blocks_override, None
    elif config.kv_cache_memory_bytes is not None:
        pages, memory = config.kv_cache_memory_bytes // page_bytes, None
    elif model.device.type == "cuda":
        memory = read_device_memory(model.device, config.gpu_memory_utilization, activation_bytes, graph_bytes)
        pages = memory.pool_bytes // page_bytes - 1  # one more page is scratch
    else:
        pages, memory = int(_free_cpu_bytes() * _FREE_CPU_SHARE) // page_bytes, None
        pages = min(per_sequence * config.num_slots, pages)
    if pages < per_sequence:
        raise _too_small(config, pages=max(pages, 0), page_bytes=page_bytes, per_sequence=per_sequence, memory=memory)
    return pages


def graph_budget(
    config: EngineConfig, model: LoadedModel, *, extra_bytes_per_token: int = 0, activation_bytes: int = 0
) -> int | None:
    """Return the bytes that CUDA graphs may take (`plan_capture`); None: no limit, as on a CPU.

    Graphs take precedence over pages, but the pool must hold one sequence of max_model_len, or its configured size.
    """
    if model.device.type != "cuda":
        return None
    pages = _pages_per_sequence(config) + 2  # the scratch page, and one that rounding may take
    pool = max(config.num_gpu_blocks_override or 0, pages) * _page_bytes(config, model, extra_bytes_per_token)
    pool = max(config.kv_cache_memory_bytes or 0, pool)
    memory = read_device_memory(model.device, config.gpu_memory_utilization, activation_bytes, 0)
    return max(memory.pool_bytes - pool, 0)


def _page_bytes(config: EngineConfig, model: LoadedModel, extra_bytes_per_token: int) -> int:
    bytes_per_value = kv_bytes_per_value(config.kv_cache_dtype, model.dtype)
    return config.block_size * (model.shape.kv_bytes_per_token(bytes_per_value) + extra_bytes_per_token)


def _pages_per_sequence(config: EngineConfig) -> int:
    assert config.max_model_len is not None, "resolved"
    return -(-config.max_model_len // config.block_size)


def kv_bytes_per_value(kv_cache_dtype: str, dtype: torch.dtype) -> int:
    """Return the bytes of one element of the KV cache."""
    return dtype.itemsize if kv_cache_dtype == "auto" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one GPU in bytes, after loading weights and before allocating the pool."""

    total: int
    share: float
    """Share of `total` that the engine may use."""
    free: int
    """Free memory according to the driver; other processes reduce it."""
    weights: int
    """Bytes of the target's and drafter's tensors."""
    activations: int
    graphs: int

    @property
    def pool_bytes(self) -> int:
        """Bytes for pages: the share minus everything else, limited by free memory."""
        return max(min(self._planned, self.free) - _LIBRARIES_BYTES - self.activations - self.graphs, 0)

    @property
    def _planned(self) -> int:
        return int(self.total * self.share) - self.weights

    def share_for(self, pool_bytes: int) -> float | None:
        """Return the smallest share, in steps of 0.01, that leaves `pool_bytes` for pages; None if no share does."""
        needed = pool_bytes + _LIBRARIES_BYTES + self.activations + self.graphs
        share = math.ceil(100 * (needed + self.weights) / self.total) / 100
        return share if needed <= self.free and share <= _HIGHEST_SHARE else None

    def __str__(self) -> str:
        items = {
            "weights": self.weights,
            "work space": self.activations,
            "CUDA graphs": self.graphs,
            "libraries": _LIBRARIES_BYTES,
        }
        parts = ", ".join(f"{name} {_gib(number)}" for name, number in items.items() if number)
        text = f"{self.share:.0%} of {_gib(self.total)}, less {parts}"
        if self.free < self._planned:
            text += f"; only {_gib(self.free)} are free"
        return text


def read_device_memory(device: torch.device, share: float, activations: int, graphs: int) -> DeviceMemory:
    """Read the memory of a CUDA device from the driver and torch's allocator."""
    torch.cuda.empty_cache()  # what loading left behind in the allocator is no weight
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        total=total,
        share=share,
        free=free,
        weights=torch.cuda.memory_allocated(device),
        activations=activations,
        graphs=graphs,
    )


def activation_bytes(
    shape: ModelShape,
    *,
    rows: int,
    logits_rows: int,
    bytes_per_value: int,
    num_aux_layers: int = 0,
    mlp_values: int | None = None,
) -> int:
    """Return an upper bound on the largest step's allocations, without weights and pages.

    At its peak, a layer holds the residual (also in float32, in the norm), the normed rows, and either the two halves
    of the MLP with their product, or queries, keys, values and the attention output (attention reads pages in place).
    Logits come after the layers, and only the larger of the two counts.

    Args:
        rows: maximum tokens per step (max_num_batched_tokens).
        logits_rows: rows whose logits are computed together: max_num_seqs x (k + 1).
        num_aux_layers: number of layers whose hidden states a proposer reads.
        mlp_values: values per token in the MLP. None: three times the intermediate size.
    """
    hidden = shape.hidden_size
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = (mlp_values or 3 * shape.intermediate_size) * bytes_per_value
    attention = 2 * (heads + kv_heads) * bytes_per_value
    row = hidden * (2 * bytes_per_value + 4 + num_aux_layers * bytes_per_value) + max(mlp, attention)
    logits = logits_rows * (shape.vocab_size * _LOGITS_BYTES + hidden * (1 + num_aux_layers) * bytes_per_value)
    return max(rows * row, logits)


def _too_small(
    config: EngineConfig, *, pages: int, page_bytes: int, per_sequence: int, memory: DeviceMemory | None
) -> InvalidSetup:
    """Return the error of a pool that cannot hold the longest sequence."""
    message = (
        f"{pages * page_bytes} bytes hold {pages * config.block_size} tokens, "
        f"less than one sequence of {config.max_model_len}."
    )
    needed = per_sequence * page_bytes
    if memory is None:
        blocks = config.num_gpu_blocks_override is not None
        least = f"{per_sequence} blocks" if blocks else f"{needed} bytes"
        where = "num_gpu_blocks_override" if blocks else "kv_cache_memory_bytes"
        fix = f"Give at least {least}, or lower max_model_len to {pages * config.block_size}."
        return InvalidSetup.because("kv-cache-too-small", message, where=where, fix=fix)
    share = memory.share_for(needed + 2 * page_bytes)  # the scratch page, and one that rounding may take
    ways = [f"raise gpu_memory_utilization to {share:.2f}"] if share and share > memory.share else []
    ways += [f"lower max_model_len to {pages * config.block_size}"] if pages else []
    ways += ["lower max_num_batched_tokens or max_num_seqs", "use kv_cache_dtype or quantization fp8"]
    return refusal(
        "kv-cache-too-small",
        message=message,
        pool_bytes=_gib(memory.pool_bytes),
        memory=memory,
        needed=_gib(needed),
        ways="; ".join(ways),
    )


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"


def _free_cpu_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
