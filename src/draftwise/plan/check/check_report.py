"""The result of a check: findings, and the speculative config as the server resolves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwise.core import CheckOutcome, Effect, Finding, Ruling, Setup, Severity
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.methods import Method, get_method

FailOn = Literal["error", "unknown", "warning", "never"]
"""What fails a gate, each including those before it; `unknown` is a setup that cannot be judged in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The speculative config as the server resolves it at start-up; fields are None if they cannot be known offline."""

    method: str
    num_speculative_tokens: int | None
    model: str | None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    draft_tensor_parallel_size: int | None = None
    draft_architectures: tuple[str, ...] | None = None
    target_architectures: tuple[str, ...] | None = None
    draft_max_model_len: int | None = None
    quantization: str | None = None
    parallel_drafting: bool = False
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    runner: str | None = None
    """`V1` or `V2`: the model runner on CUDA."""
    async_scheduling: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Every other key of the release, with its default if it was not given."""

    @property
    def facts(self) -> Method:
        """Facts about the method that hold in every release."""
        return get_method(self.method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One setup judged for one release."""

    version: str
    """Release whose rules judged it."""
    asked: str = ""
    """Requested version, if it is unknown and `version` is only the nearest; else empty."""
    setup: Setup
    findings: tuple[Finding, ...]
    resolved: Resolved | None
    """None if the config is rejected, or without speculation."""
    unchecked: Mapping[str, int] = field(default_factory=dict)
    """Number of rules not checked, by the missing input: `target`, `drafter`, `weights`, `gpu` or `server`."""
    defects: tuple[Defect, ...] = ()
    """Known defects whose condition the setup meets, including those that only a service's counters can show."""
    is_judged: bool = True
    """False if the server's behavior is unknown: its release, or a table of it, is unknown, or its text leaves
    something open."""

    @property
    def release(self) -> str:
        """The judging release and the requested one, in words; empty for a setup that was not read."""
        if not self.version:
            return ""
        return f"vLLM {self.asked}, judged as {self.version}" if self.asked else f"vLLM {self.version}"

    @property
    def outcome(self) -> CheckOutcome:
        """What happens to the setup: the source of every statement about it as a whole.

        An error of reading, such as a missing `--config` file, is also an error of the server. What every release
        rejects is rejected for an unknown release too.
        """
        of_reading = Effect.REJECTED if self.is_judged else Effect.UNKNOWN
        errors = [each for each in self.findings if each.severity is Severity.ERROR]
        effects = {each.effect if isinstance(each, Ruling) else of_reading for each in errors}
        if Effect.REJECTED in effects:
            return CheckOutcome.REJECTED
        if self.is_judged and effects - {Effect.UNKNOWN}:
            return CheckOutcome.FAILS_LATER
        if errors:
            return CheckOutcome.CANNOT_BE_JUDGED
        if not self.is_judged:
            return CheckOutcome.NOT_JUDGED
        told = (each for each in self.findings if isinstance(each, Ruling) and each.severity is not Severity.INFO)
        return CheckOutcome.NOT_JUDGED if any(each.effect is Effect.UNKNOWN for each in told) else CheckOutcome.ACCEPTED

    @property
    def accepted(self) -> bool | None:
        """Whether the server would create its configuration objects; start-up may still fail. None if unknown."""
        unknown = (CheckOutcome.NOT_JUDGED, CheckOutcome.CANNOT_BE_JUDGED)
        return None if self.outcome in unknown else self.outcome is not CheckOutcome.REJECTED

    def fails(self, fail_on: FailOn) -> bool:
        """Return whether the setup fails a gate; `error` includes setups that an error keeps from being judged."""
        is_fine = self.outcome is CheckOutcome.ACCEPTED
        return {
            "never": False,
            "error": not is_fine and self.outcome is not CheckOutcome.NOT_JUDGED,
            "unknown": not is_fine,
            "warning": not is_fine or any(each.severity is Severity.WARNING for each in self.findings),
        }[fail_on]
