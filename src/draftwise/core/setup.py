"""A Setup: the value that draftwise validates, launches, measures, deploys and rolls back."""

from __future__ import annotations

import copyreg
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from draftwise.core.finding import InvalidSetup, cause_of


def _freeze(given: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(given)


copyreg.pickle(MappingProxyType, lambda frozen: (_freeze, (dict(frozen),)))  # so that values can go to other processes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """One speculative config, in vLLM's spelling.

    `options` keeps every other key as given, for the engine that runs it.
    """

    method: str | None = None
    num_speculative_tokens: int | None = None
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @property
    def has_synthetic_acceptance(self) -> bool:
        """Whether acceptance is synthetic (vLLM's term): drafts are accepted at random, so the text means nothing."""
        return self.options.get("rejection_sample_method") == "synthetic"

    @classmethod
    def keep(cls, given: Mapping[str, Any]) -> SpecConfig:
        """Return the config for any JSON object; a value of the wrong type stays in `options`, unjudged."""
        rest = dict(given)
        kinds = {"method": str, "model": str, "num_speculative_tokens": int}
        typed = {key: rest.pop(key) for key, kind in kinds.items() if type(rest.get(key)) is kind}
        return cls(**typed, options=rest)

    @classmethod
    def parse(cls, given: str | Mapping[str, Any]) -> SpecConfig:
        """Return the config for a JSON object, given as text or as a mapping.

        Raises:
            InvalidSetup: the text is not a JSON object, or a known key has the wrong type.
        """
        where = "--speculative-config"
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                told = cause_of(error)
                if isinstance(error, json.JSONDecodeError):
                    told = f"{error.msg} at character {error.pos + 1}"
                raise InvalidSetup.because(
                    "not-json",
                    f"The speculative config is not valid JSON ({told}).",
                    where=where,
                    fix="""Example: '{"method": "ngram", "num_speculative_tokens": 5}'.""",
                ) from None
        if not isinstance(given, Mapping):
            raise InvalidSetup.because(
                "not-an-object",
                f"The speculative config must be a JSON object, got {type(given).__name__}.",
                where=where,
                fix="""Example: '{"method": "ngram", "num_speculative_tokens": 5}'.""",
            )
        rest = dict(given)
        method, model = rest.pop("method", None), rest.pop("model", None)
        k = rest.pop("num_speculative_tokens", None)
        for key, value, kind in (("method", method, str), ("model", model, str), ("num_speculative_tokens", k, int)):
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise InvalidSetup.because("wrong-type", f"{key} must be {kind.__name__}, got {value!r}.", where=where)
        return cls(method=method, num_speculative_tokens=k, model=model, options=rest)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, unset keys left out."""
        named = {"method": self.method, "model": self.model, "num_speculative_tokens": self.num_speculative_tokens}
        return {key: value for key, value in named.items() if value is not None} | dict(self.options)

    to_wire = to_dict
    from_wire = keep

    def to_json(self) -> str:
        """Return the one-line JSON for a command line."""
        return json.dumps(self.to_dict())

    @property
    def label(self) -> str:
        """Short name for tables: method, whether one pass drafts all tokens, and k."""
        parallel = " parallel" if self.options.get("parallel_drafting") else ""
        k = f" k={self.num_speculative_tokens}" if self.num_speculative_tokens is not None else ""
        return f"{self.method or self.model or 'unnamed'}{parallel}{k}"


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
