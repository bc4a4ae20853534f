"""A Setup: the value that draftwise validates, launches, measures, deploys and rolls back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from draftwise.core.spec_config import SpecConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The hardware that decodes."""

    name: str
    kind: str
    """`cpu` or `cuda`."""
    count: int = 1
    """Number of GPUs, or of CPU cores."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A target on an engine, with or without speculation; an A/B compares two that differ only in `spec`."""

    target: str = ""
    """Directory of a checkpoint, or a name that the engine resolves; empty if unknown."""
    engine: str = "draftwise"
    """`draftwise` or `vllm`; empty if unknown."""
    engine_version: str = ""
    device: Device | None = None
    spec: SpecConfig | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags by their long name with underscores, e.g. `{"tensor_parallel_size": 2}`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the server reads, e.g. `{"VLLM_USE_V2_MODEL_RUNNER": "1"}`."""
    extra_args: tuple[str, ...] = ()
    """Words that belong to no flag of the release, as given; kept for the verb or engine that uses the setup."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
