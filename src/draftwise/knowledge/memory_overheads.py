"""Memory that vLLM takes in addition to weights and KV cache, as measured constants, and default batch sizes by GPU.

What each release counts is in the rules (`data/rules/size.json`); the measured constants are in `data/memory.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import Release

Runner = Literal["V1", "V2"]
"""vLLM's model runner."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Bytes that do not depend on the model's shape."""

    context: int
    """CUDA context of a process."""
    non_torch: int
    """Kernels and library state that the profile run loads."""
    workspace: int
    """cuBLAS workspace, kept from the first matrix product on."""
    graph_per_layer: float
    """One captured graph, per layer of target and drafter."""
    graph_estimate_per_layer: float
    """Likewise, as vLLM's V1 runner estimates it in advance: about a third below the actual size."""
    request_state: int
    """State per request slot in the V2 runner's sampler, without the penalty tables."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOverheads:
    """Bytes that the embedded engine sets aside on a GPU."""

    graph_per_kernel: int
    """One captured kernel, without the tensors of its graph."""
    libraries: int
    """Memory of the driver, cuBLAS and loaded kernels after start-up, without torch's own tensors."""
    source: str


def get_overheads(gpu: Gpu, runner: Runner) -> Overheads:
    """Return the measured constants for a GPU, or those of another generation if its own were not measured."""
    data = read_data("memory")
    workspace = data["workspace_mib"]
    return Overheads(
        context=data["context_mib"] * _MIB,
        non_torch=data["non_torch_mib"][runner] * _MIB,
        workspace=workspace.get(gpu.architecture, workspace["other"]) * _MIB,
        graph_per_layer=data["graph_mib_per_layer"] * _MIB,
        graph_estimate_per_layer=data["graph_estimate_mib_per_layer"] * _MIB,
        request_state=data["request_state_kib"] * 1024,
        source=data["source"],
    )


def get_embedded_overheads() -> EmbeddedOverheads:
    """Return the measured constants of the embedded engine."""
    row = read_data("memory")["embedded"]
    return EmbeddedOverheads(
        graph_per_kernel=row["graph_kib_per_kernel"] * 1024, libraries=row["libraries_mib"] * _MIB, source=row["source"]
    )


def get_batch_defaults(gpu: Gpu, release: Release) -> dict[str, int]:
    """Return the defaults of `max_num_batched_tokens` and `max_num_seqs` in `vllm serve`, which depend on the GPU."""
    tiers = release.table("batch_defaults")
    for name in sorted((name for name in tiers if name.startswith("gpu>=")), key=_least_gib, reverse=True):
        excepted = any(word in gpu.name.lower() for word in tiers[name].get("not_named", ()))
        if gpu.memory_gib >= _least_gib(name) and not excepted:
            return _for_server(tiers[name])
    return _for_server(tiers["gpu"])


def list_tiers(release: Release) -> Mapping[str, Gpu]:
    """Return an example GPU for each default batch size of a release, by a description of the GPUs that get it."""
    least = sorted(map(_least_gib, (name for name in release.table("batch_defaults") if name.startswith("gpu>="))))
    excepted = release.table("batch_defaults")[f"gpu>={least[0]}"].get("not_named", ())
    others = f" (and {' and '.join(name.upper() for name in excepted)})" if excepted else ""
    tiers = {f"GPUs below {least[0]} GiB{others}": least[0] - 1} | {f"GPUs from {gib} GiB": gib for gib in least}
    return {words: Gpu(name=words, architecture="other", memory_bytes=gib << 30) for words, gib in tiers.items()}


def _least_gib(tier: str) -> int:
    return int(tier.removeprefix("gpu>="))


def _for_server(tier: Mapping[str, Any]) -> dict[str, int]:
    return {key: int(tier[key]["server"]) for key in ("max_num_batched_tokens", "max_num_seqs")}
