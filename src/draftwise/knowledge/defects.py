"""The ledger of known defects: faults of vLLM releases and plugins with speculation, each with its reports.

The rows are in `data/defects/*.json`, one per line. A row has the releases with the fault, the condition on a setup,
what happens, and how certain that is. `draftwise.plan.check.known_defects` decides the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from packaging.version import Version

from draftwise.core import Effect, Ruling, Severity, Stage
from draftwise.knowledge.rules import Probe
from draftwise.knowledge.stored import read_folder
from draftwise.knowledge.vllm import Release, parse_version, releases

_REPORTED = "~"
"""Mark of a release that only reports name."""
_SURE = frozenset({"wheel", "merged"})

State = Literal["present", "later"]
"""`later`: the release is later than the last reported one, and has no report."""


class Certainty(StrEnum):
    """The evidence for a row."""

    REPRODUCED = "reproduced"
    """Reproduced by this project."""
    WHEEL = "wheel"
    """The sources of the releases show the fault or its fix."""
    MERGED = "merged"
    """A merged pull request shows it; its date gives the release."""
    MANY = "many"
    """Several independent reports."""
    ONE = "one"
    """One report, or a pull request that is not merged."""


_WORDS: Mapping[Certainty, str] = {
    Certainty.REPRODUCED: "reproduced",
    Certainty.WHEEL: "read in the releases' sources",
    Certainty.MERGED: "the merged fix was read",
    Certainty.MANY: "several reports",
    Certainty.ONE: "one report",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One known defect."""

    code: str
    kind: Literal["correctness", "crash", "silent loss", "performance", "memory", "metrics"]
    component: str
    """Part of vLLM, or the plugin."""
    first: str
    """First release that has it; with `~`, the first one with a report."""
    last: str | None
    """Last release that has it; with `~`, the last one with a report; None if the newest known release has it."""
    methods: tuple[str, ...] = ()
    """Methods of `knowledge.methods`; empty for any."""
    when: str = "True"
    """Condition on the setup, over the names of `plan.check.known_defects.read_facts`."""
    requests: str = ""
    """Which requests or loads meet it, if not all: completes `only with ...`."""
    what: str
    """What the operator sees, as a sentence."""
    fix: str
    """What to do, as a sentence."""
    stage: Stage = Stage.REQUEST
    reports: tuple[str, ...] = ()
    """`owner/repository#number`; empty for a fault found in the sources."""
    fixes: tuple[str, ...] = ()
    """Likewise, for pull requests that fix it or try to."""
    certainty: Certainty
    told_by: Literal["check", "watch", "size"] = "check"
    """Verb that reports it: `watch` if only counters or logs show it, `size` for memory."""
    rules: tuple[str, ...] = ()
    """Rules for the same fault; if one of them applies, the row is not reported."""
    says: tuple[str, ...] = ()
    """Texts in a log or an error when it happens."""
    symptoms: tuple[str, ...] = ()
    """Diagnoses of `watch` that it can cause."""
    keep_from: tuple[str, ...] = ()
    """Requests that a proxy can keep from the speculative pool: fields of a body, `structured` or `tools`."""
    probe: Probe | None = None
    """Pattern that matches exactly the releases with the fault."""
    gpu: str = ""
    """GPU of the two examples, or `CPU`, if the condition needs it."""
    installed: tuple[str, ...] = ()
    """Packages that the servers of the two examples have."""
    hit: str = ""
    """A command line that meets the condition, for the row's last release."""
    miss: str = ""
    """A command line that differs in one thing and does not meet the condition."""

    @property
    def first_release(self) -> Version:
        """First release in which the fault was reported or read."""
        return parse_version(self.first.removeprefix(_REPORTED))

    @property
    def last_release(self) -> Version:
        """Last release that has it or has a report; an open row does not cover releases that users added."""
        if self.last is None:
            return next(release.version for release in reversed(releases()) if release.added is None)
        return parse_version(self.last.removeprefix(_REPORTED))

    @property
    def is_end_known(self) -> bool:
        """Whether the last release with it is known."""
        return self.last is not None and not self.last.startswith(_REPORTED)

    @property
    def fixed_in(self) -> str:
        """First release without it; empty if unknown."""
        if not self.is_end_known:
            return ""
        return next((str(each) for each in releases() if each.version > self.last_release), "")

    @property
    def span(self) -> str:
        """The releases, in words."""
        first, last = self.first.removeprefix(_REPORTED), str(self.last_release)
        reported = (
            "reported " if self.first.startswith(_REPORTED) or not (self.last is None or self.is_end_known) else ""
        )
        if self.last is None:
            return f"{reported}from {first} on, still in {last}"
        return f"{reported}{f'in {first}' if first == last else f'from {first} to {last}'}"

    @property
    def basis(self) -> str:
        """Certainty and reports, as a source."""
        said = ", ".join(self.reports) or f"vllm-project/vllm: {self.component}"
        return f"{said} ({_WORDS[self.certainty]})"

    def state_in(self, version: Version) -> State | None:
        """Return what is known for a release; None for one without the fault, or earlier than the first report."""
        if version < self.first_release:
            return None
        if version <= self.last_release:
            return "present"
        return None if self.is_end_known else "later"

    def holds(self, version: Version | None) -> bool:
        """Return whether a release certainly has it, or has a report; None means the newest known release."""
        return self.state_in(version or releases()[-1].version) == "present"

    def ruling(self, release: Release) -> Ruling:
        """Return the finding for a setup that meets the fault, for a release that has it or may still have it."""
        is_later = self.state_in(release.version) == "later"
        stops = not is_later and self._stops
        span = f"reported up to {self.last_release}; nobody has said it of {release}" if is_later else self.span
        only = f" Only with {self.requests}." if self.requests else ""
        is_new = self.fixed_in and self.fixed_in not in self.fix
        return Ruling(
            code=self.code,
            severity=Severity.INFO if is_later else Severity.ERROR if stops else self._severity,
            message=f"Known defect, {span}: {_lower(self.what)}{only}",
            fix=f"{self.fix} vLLM {self.fixed_in} no longer has it." if is_new else self.fix,
            source=self.basis,
            effect=Effect.FAILS_LATER if stops else Effect.DEFECT,
            stage=self.stage,
        )

    @property
    def _stops(self) -> bool:
        """Whether it is certain that no server starts."""
        sure = self.certainty in _SURE or self.certainty is Certainty.REPRODUCED
        return sure and self.kind == "crash" and self.stage is Stage.START_UP

    @property
    def _severity(self) -> Severity:
        """A single report of something that only some requests meet, or that costs speed alone, is a note."""
        slight = self.certainty is Certainty.ONE and (bool(self.requests) or self.kind == "performance")
        return Severity.INFO if slight or self.kind == "metrics" else Severity.WARNING


@cache
def all_defects() -> Mapping[str, Defect]:
    """Return every row by its code.

    Raises:
        ValueError: two rows have the same code.
    """
    rows = [_read(row) for content in read_folder("defects").values() for row in content]
    found = {row.code: row for row in rows}
    if len(found) < len(rows):
        raise ValueError("a defect is written twice")
    return found


def find_open(version: Version, method: str | None) -> Iterator[Defect]:
    """Yield the rows about a method that a release has or may have, regardless of their other conditions."""
    for row in all_defects().values():
        if (not row.methods or method in row.methods) and row.state_in(version) is not None:
            yield row


def find_said(text: str) -> Iterator[Defect]:
    """Yield the rows whose texts occur in a pasted text."""
    squeezed = " ".join(text.split()).lower()
    return (row for row in all_defects().values() if any(said.lower() in squeezed for said in row.says))


def _lower(sentence: str) -> str:
    """Return a sentence as it follows a colon. Names and abbreviations keep their capitals."""
    first = sentence.split(maxsplit=1)[0]
    return (
        sentence if (first.isupper() and len(first) > 1) or not first.istitle() else sentence[0].lower() + sentence[1:]
    )


def _read(row: Mapping[str, Any]) -> Defect:
    parts: dict[str, Any] = {"certainty": Certainty(row["certainty"])}
    if "stage" in row:
        parts["stage"] = Stage(row["stage"])
    if "probe" in row:
        parts["probe"] = Probe(**row["probe"])
    return Defect(**{**row, **parts})
