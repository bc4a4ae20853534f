"""The context of a run's numbers in addition to its plan: hardware, software, model and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from draftwise.core.documents import json_form

_KNOWN = json_form(omit_empty=True)
"""Metadata of a field that is omitted if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenValue:
    """A value that is a JSON object on disk; what has no field of its own is kept in `others`."""

    JSON_OTHERS: ClassVar[str] = "others"
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(_OpenValue):
    """The machine that serves."""

    told: str | None = field(default=None, metadata=json_form(key="as told", omit_empty=True))
    """The operator's description, for hardware that draftwise cannot see."""
    cpu: str | None = field(default=None, metadata=_KNOWN)
    cores: int | None = field(default=None, metadata=_KNOWN)
    """Cores that the process may use."""
    memory_gib: float | None = field(default=None, metadata=_KNOWN)
    gpus: tuple[str, ...] = field(default=(), metadata=_KNOWN)
    """Name, memory and driver of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software(_OpenValue):
    """Versions of the load generator and, for the embedded engine, of its libraries."""

    os: str | None = field(default=None, metadata=_KNOWN)
    python: str | None = field(default=None, metadata=_KNOWN)
    draftwise: str | None = field(default=None, metadata=_KNOWN)
    torch: str | None = field(default=None, metadata=_KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel(_OpenValue):
    """The model that is measured."""

    name: str | None = field(default=None, metadata=_KNOWN)
    config_sha256: str | None = field(default=None, metadata=_KNOWN)
    architecture: str | None = field(default=None, metadata=_KNOWN)
    dtype: str | None = field(default=None, metadata=_KNOWN)
    """Precision of the weights; `auto` if unknown."""
    parameters: int | None = field(default=None, metadata=_KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """How a server was started, what it reports about itself, and how the start went."""

    command: str | None = None
    url: str | None = None
    model: str | None = None
    """Model name in requests."""
    max_model_len: int | None = None
    version: Mapping[str, Any] = field(default_factory=dict)
    """What it reports about itself after every start: `version`, `device`, `dtype`, `speculative_config` and more."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """Values that differ from start to start: seconds of each start-up phase, memory, KV tokens."""
    hardware: str | None = None
    """This server's machine, if the operator or the server names it."""
    metric_names: str | None = None
    """Engine whose names its /metrics uses (`vLLM`, `SGLang` ...); None if its counters cannot be read."""

    @property
    def release(self) -> str | None:
        """Version that its engine reports."""
        release = self.version.get("version")
        return None if release is None else str(release)

    @property
    def speculative_config(self) -> Mapping[str, Any] | None:
        """Config that its engine reports; empty for plain decoding, None if not reported."""
        return self.version["speculative_config"] or {} if "speculative_config" in self.version else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How draftwise starts servers."""

    vllm: str = "vllm"
    """Command that starts vLLM, up to `serve`."""
    gpus: tuple[str, ...] | None = None
    """GPUs for the servers, as CUDA_VISIBLE_DEVICES names them; None for all."""
    switch: str | None = None
    """Command that replaces the running server with that of the arm `{arm}`; None if draftwise starts the servers."""
    leave: str | None = None
    """Arm whose server runs after the measurement; None for the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The circumstances of a run, as detected or as noted by the operator."""

    started: str = ""
    """Date and time, UTC."""
    hardware: Hardware = field(default_factory=Hardware)
    software: Software = field(default_factory=Software)
    model: TargetModel = field(default_factory=TargetModel)
    servers: Mapping[str, ServerRecord] = field(default_factory=dict)
    """Server records by arm."""
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    """Thresholds that the operator chose."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The operator's notes on facts that draftwise cannot see: `hardware`, `precision`, `model`, `hardware.ARM`,
    `command.ARM`."""
    launch: LaunchOptions = field(default_factory=LaunchOptions)

    def server(self, arm: str) -> ServerRecord:
        """Return the record of an arm's server; an empty one if nothing is known."""
        return self.servers.get(arm, _UNKNOWN_SERVER)

    @property
    def model_name(self) -> str | None:
        """The model: from the notes or the disk, else the one that all servers name."""
        named = {server.model for server in self.servers.values()}
        return self.model.name or (named.pop() if len(named) == 1 else None)

    @staticmethod
    def from_earlier(row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row in today's form: earlier runs have the operator's options in `wish`."""
        known = {key: value for key, value in row.items() if value is not None}
        if (options := known.pop("wish", None)) is None:
            return known
        launch = {name: options[name] for name in ("vllm", "gpus", "switch", "leave") if name in options}
        return known | {"notes": options.get("notes") or {}, "launch": launch}


_UNKNOWN_SERVER = ServerRecord()
