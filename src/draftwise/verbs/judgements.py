"""Judged setups: what `check` and `verify` return, in every form that it is printed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from draftwise.core import Effect, Finding, Ruling, Severity, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.plan.check.check_report import Report, Resolved
from draftwise.verbs.verb import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FailOn", "Judgement", "Judgements", "Resolved"]

FailOn = Literal["error", "warning", "never"]
_LEVELS = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One setup judged for one release."""

    vllm: str
    """Release by whose rules the setup was judged; empty if nobody can say."""
    asked: str
    """Release that was meant; the same, unless `vllm` is only the nearest one known."""
    where: str
    """File and line of the setup; empty for a command line."""
    target: str
    speculative_config: SpecConfig | None
    args: Mapping[str, Any]
    """Engine flags by their long name with underscores."""
    accepted: bool | None
    """Whether the server would accept the configuration; null if nobody can say."""
    resolved: Resolved | None
    """The speculative config as the server would hold it; null if it is rejected, or does not speculate."""
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
            accepted=report.accepted,
            resolved=report.resolved,
            findings=report.findings,
            report=report,
            verdict=verdict or _verdict(report),
        )


def _verdict(report: Report) -> str:
    if report.accepted is None:
        return "cannot be judged"
    if not report.accepted:
        return "rejected"
    effects = {finding.effect for finding in report.findings if isinstance(finding, Ruling)}
    has_errors = any(finding.severity is Severity.ERROR for finding in report.findings)
    if has_errors or Effect.FAILS_LATER in effects:
        return "accepted, fails later"
    return "accepted, with changes" if Effect.CHANGED in effects else "accepted"


class Judgements(Result):
    """Base of results that are a list of judgements."""

    __slots__ = ()
    judgements: tuple[Judgement, ...]
    fail_on: FailOn

    @property
    def exit_code(self) -> int:
        """1 if a finding has the severity of `fail_on`, or a higher one."""
        levels = _LEVELS[self.fail_on]
        return int(any(finding.severity in levels for each in self.judgements for finding in each.findings))

    def to_wire(self) -> tuple[Judgement, ...]:
        """Return the judgements, which are the document."""
        return self.judgements

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
