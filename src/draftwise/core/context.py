"""What the numbers of a run depend on beside its plan: hardware, software, model and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

__all__ = ["Hardware", "LaunchOptions", "RunContext", "ServerRecord", "Software", "TargetModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A value that is a JSON object on disk; what has no field of its own is kept in `others`."""

    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Return the value of a JSON object.

        Raises:
            TypeError: it is none.
        """
        _check_object(row, cls.__name__)
        keys = cls._keys()
        known = {name: _freeze(row[key]) for name, key in keys.items() if key in row}
        return cls(**known, others={key: value for key, value in row.items() if key not in keys.values()})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; what is not known is left out."""
        named = {key: _thaw(getattr(self, name)) for name, key in self._keys().items()}
        return {key: value for key, value in (named | dict(self.others)).items() if value not in (None, [], {})}

    @classmethod
    def _keys(cls) -> dict[str, str]:
        """Return the JSON key of each field."""
        return {each.name: each.metadata.get("key", each.name) for each in fields(cls) if each.name != "others"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(_Described):
    """The machine that serves."""

    told: str | None = field(default=None, metadata={"key": "as told"})
    """In the operator's words, where it cannot be seen from here."""
    cpu: str | None = None
    cores: int | None = None
    """That may be used."""
    memory_gib: float | None = None
    gpus: tuple[str, ...] = ()
    """Name, memory and driver of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software(_Described):
    """Versions of what measures and, for the embedded engine, of what computes."""

    os: str | None = None
    python: str | None = None
    draftwise: str | None = None
    torch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel(_Described):
    """The model that is measured."""

    name: str | None = None
    config_sha256: str | None = None
    architecture: str | None = None
    dtype: str | None = None
    """Precision of the weights; `auto` where nothing better is known."""
    parameters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """How a server was started, what it says about itself, and how that start went."""

    command: str | None = None
    url: str | None = None
    model: str | None = None
    """The name that requests give."""
    max_model_len: int | None = None
    version: Mapping[str, Any] = field(default_factory=dict)
    """What it says it is, the same after every start: `version`, `device`, `dtype`, `speculative_config` and more."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """Seconds of the phases of its start, memory, KV tokens: differs from start to start."""
    hardware: str | None = None
    """Of its machine, where the operator or the server tells it for this server alone."""
    metric_names: str | None = None
    """Engine whose names its /metrics uses (`vLLM`, `SGLang` ...); None where its counters cannot be read."""

    @property
    def release(self) -> str | None:
        """The version that its engine names."""
        release = self.version.get("version")
        return None if release is None else str(release)

    @property
    def speculative_config(self) -> Mapping[str, Any] | None:
        """As its engine says it took it, empty for none; None where it does not say."""
        return self.version["speculative_config"] or {} if "speculative_config" in self.version else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How servers are started that draftwise starts itself."""

    vllm: str = "vllm"
    """Command that starts vLLM, up to `serve`."""
    gpus: tuple[str, ...] | None = None
    """GPUs for the servers, as CUDA_VISIBLE_DEVICES names them; None for all that there are."""
    switch: str | None = None
    """Command that replaces one running server by another arm's, `{arm}` in it; None where draftwise starts them."""
    leave: str | None = None
    """Arm whose server is up after the run; None for the baseline's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What was found out, or told by the operator, about the circumstances of a run."""

    started: str = ""
    """Date and time, UTC."""
    hardware: Hardware = field(default_factory=Hardware)
    software: Software = field(default_factory=Software)
    model: TargetModel = field(default_factory=TargetModel)
    servers: Mapping[str, ServerRecord] = field(default_factory=dict)
    """By arm."""
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    """Those that the operator chose."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the operator told that cannot be seen from here: `hardware`, `precision`, `model`, `hardware.ARM`,
    `command.ARM`."""
    launch: LaunchOptions = field(default_factory=LaunchOptions)

    def server(self, arm: str) -> ServerRecord:
        """Return what is known of an arm's server; an empty record where nothing is."""
        return self.servers.get(arm, _UNKNOWN_SERVER)

    @property
    def model_name(self) -> str | None:
        """The model: as told or found on disk, else the one that all servers name."""
        named = {server.model for server in self.servers.values()}
        return self.model.name or (named.pop() if len(named) == 1 else None)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> RunContext:
        """Return the context that `to_dict` wrote, in this release or an earlier one.

        Raises:
            TypeError: it is something else.
        """
        _check_object(row, "context")
        # Earlier runs keep the operator's options together, as `wish`.
        options = row.get("wish") or {**row.get("launch", {}), "notes": row.get("notes", {})}
        return cls(
            started=str(row.get("started", "")),
            hardware=Hardware.from_dict(row.get("hardware") or {}),
            software=Software.from_dict(row.get("software") or {}),
            model=TargetModel.from_dict(row.get("model") or {}),
            servers={name: ServerRecord(**server) for name, server in (row.get("servers") or {}).items()},
            thresholds=row.get("thresholds", {}),
            notes=dict(options.get("notes") or {}),
            launch=LaunchOptions(
                vllm=options.get("vllm", "vllm"),
                gpus=_freeze(options.get("gpus")),
                switch=options.get("switch"),
                leave=options.get("leave"),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the context as JSON values."""
        return {
            "started": self.started,
            "hardware": self.hardware.to_dict(),
            "software": self.software.to_dict(),
            "model": self.model.to_dict(),
            "thresholds": self.thresholds,
            "notes": dict(self.notes),
            "launch": {each.name: _thaw(getattr(self.launch, each.name)) for each in fields(LaunchOptions)},
            "servers": {
                name: {each.name: _thaw(getattr(server, each.name)) for each in fields(ServerRecord)}
                for name, server in self.servers.items()
            },
        }


_UNKNOWN_SERVER = ServerRecord()


def _check_object(row: object, name: str) -> None:
    if not isinstance(row, Mapping):
        raise TypeError(f"{name} is {row!r}")


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
