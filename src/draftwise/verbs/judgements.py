"""Renders judged setups, which `check` and `verify` return, in every printed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from draftwise.core import CheckOutcome, Effect, Finding, Ruling, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.plan.check.check_report import FailOn, Report, Resolved
from draftwise.verbs.verb import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FailOn", "Judgement", "Judgements", "Resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One setup judged for one release."""

    vllm: str
    """Release whose rules judged the setup; empty if unknown."""
    asked: str
    """Requested release; differs from `vllm` if that is only the nearest known one."""
    where: str
    """File and line of the setup; empty for a command line."""
    target: str
    speculative_config: SpecConfig | None
    args: Mapping[str, Any]
    """Engine flags by their long name with underscores."""
    outcome: CheckOutcome
    """What happens to the setup, as far as draftwise can judge; sets the headline and the exit code."""
    accepted: bool | None
    """Whether the server would accept the configuration, which may still fail later; null if it is not judged."""
    unchecked: Mapping[str, int]
    """Number of rules not checked, by the missing input: `target`, `drafter`, `weights`, `gpu` or `server`."""
    resolved: Resolved | None
    """The speculative config as the server resolves it; null if it is rejected, or the setup does not speculate."""
    findings: tuple[Ruling | Finding, ...]
    report: Report = field(metadata=HIDDEN)
    verdict: str = field(metadata=HIDDEN)
    """The judgement in a word or two."""

    @classmethod
    def of(cls, report: Report, *, where: str = "", verdict: str = "") -> Judgement:
        """Return the judgement of a report; its verdict, unless given, is what the release makes of the setup."""
        setup = report.setup
        return cls(
            vllm=report.version,
            asked=report.asked or report.version,
            where=where,
            target=setup.target,
            speculative_config=setup.spec,
            args=setup.args,
            outcome=report.outcome,
            accepted=report.accepted,
            unchecked=report.unchecked,
            resolved=report.resolved,
            findings=report.findings,
            report=report,
            verdict=verdict or _verdict(report),
        )


def _verdict(report: Report) -> str:
    if report.outcome is CheckOutcome.FAILS_LATER:
        return f"{CheckOutcome.ACCEPTED}, {report.outcome}"
    changes = any(isinstance(each, Ruling) and each.effect is Effect.CHANGED for each in report.findings)
    return f"{report.outcome}, with changes" if report.outcome is CheckOutcome.ACCEPTED and changes else report.outcome


class Judgements(Result):
    """Base of results that are a list of judgements."""

    __slots__ = ()
    JSON_OF: ClassVar[str] = "judgements"
    judgements: tuple[Judgement, ...]
    fail_on: FailOn

    @property
    def exit_code(self) -> int:
        """1 if a setup fails by `fail_on`."""
        return int(any(each.report.fails(self.fail_on) for each in self.judgements))

    def to_sarif(self) -> dict[str, Any]:
        """Return a SARIF 2.1.0 log."""
        from draftwise.plan.annotations import to_sarif

        return to_sarif(self._reports, places=self._places)

    def to_github(self) -> str:
        """Return workflow commands of GitHub Actions, one per line."""
        from draftwise.plan.annotations import to_github

        return "".join(f"{line}\n" for line in to_github(self._reports, places=self._places))

    def to_gitlab(self) -> list[dict[str, Any]]:
        """Return GitLab's code quality report."""
        from draftwise.plan.annotations import to_gitlab

        return to_gitlab(self._reports, places=self._places)

    @property
    def _reports(self) -> Sequence[Report]:
        return [each.report for each in self.judgements]

    @property
    def _places(self) -> Sequence[str]:
        return [each.where for each in self.judgements]
