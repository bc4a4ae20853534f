"""The ledger of known defects: faults of vLLM releases and plugins with speculation, each with its reports.

The rows lie in `data/defects/*.json`, one a line. A row says in which releases the fault was, under which condition on
a setup, what happens, and how sure that is. `draftwise.plan.check.known_defects` decides the conditions.
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
from draftwise.knowledge.vllm import Release, releases

_REPORTED = "~"
"""Mark of a release that only reports name."""
_SURE = frozenset({"wheel", "merged"})

State = Literal["present", "later"]
"""`later`: of a release after the last one that was reported, of which nobody has said anything."""


class Certainty(StrEnum):
    """What a row rests on."""

    REPRODUCED = "reproduced"
    """Somebody of this project made it happen."""
    WHEEL = "wheel"
    """The fault or its fix stands in the sources of the releases."""
    MERGED = "merged"
    """The merged pull request was read; the release follows from its date."""
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
    """First release that has it; with `~`, the first one that somebody reported."""
    last: str | None
    """Last release that has it; with `~`, the last one that somebody reported; None: the newest known one has it."""
    methods: tuple[str, ...] = ()
    """Methods of `knowledge.methods`; empty for any."""
    when: str = "True"
    """Condition on the setup, over the names of `plan.check.known_defects.read_facts`."""
    requests: str = ""
    """Which requests or loads meet it, where not all do: the end of `only with ...`."""
    what: str
    """What the operator sees, as a sentence."""
    fix: str
    """What to write today, as a sentence."""
    stage: Stage = Stage.REQUEST
    reports: tuple[str, ...] = ()
    """`owner/repository#number`; empty for a fault that was found in the sources."""
    fixes: tuple[str, ...] = ()
    """The same, of pull requests that mend it, or try to."""
    certainty: Certainty
    told_by: Literal["check", "watch", "size"] = "check"
    """Who tells it: `watch` for what only counters or logs show, `size` for memory."""
    rules: tuple[str, ...] = ()
    """Rules that tell the same fault: where one of them speaks, the row is silent."""
    says: tuple[str, ...] = ()
    """Texts that a log or an error has where it strikes."""
    symptoms: tuple[str, ...] = ()
    """Diagnoses of `watch` whose cause it can be."""
    keep_from: tuple[str, ...] = ()
    """Requests that a proxy can keep from the speculative pool: fields of a body, `structured` or `tools`."""
    probe: Probe | None = None
    """Pattern that is found in exactly the releases that have the fault."""
    gpu: str = ""
    """GPU of the two examples, or `CPU`, where the condition needs it."""
    installed: tuple[str, ...] = ()
    """Packages that the servers of the two examples have."""
    hit: str = ""
    """A command line that meets the condition, for the row's last release."""
    miss: str = ""
    """A command line that differs from it in one thing and does not."""

    @property
    def first_release(self) -> Version:
        """First release that the fault is reported or read in."""
        return Version(self.first.removeprefix(_REPORTED))

    @property
    def last_release(self) -> Version:
        """Last release that has it, or was reported to; an open row says nothing of releases that users added."""
        if self.last is None:
            return next(release.version for release in reversed(releases()) if release.added is None)
        return Version(self.last.removeprefix(_REPORTED))

    @property
    def is_end_known(self) -> bool:
        """Whether it is known which release is the last with it."""
        return self.last is not None and not self.last.startswith(_REPORTED)

    @property
    def fixed_in(self) -> str:
        """First release without it; empty where that is not known."""
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
        """Return what is known of a release; None for one without the fault, or from before anybody saw it."""
        if version < self.first_release:
            return None
        if version <= self.last_release:
            return "present"
        return None if self.is_end_known else "later"

    def holds(self, version: Version | None) -> bool:
        """Say whether a release surely has it, or was reported to; None stands for the newest one known."""
        return self.state_in(version or releases()[-1].version) == "present"

    def ruling(self, release: Release) -> Ruling:
        """Return the finding that a setup meets the fault in a release which has it, or may have it still."""
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
    """Yield the rows about a method that a release has or may have, whatever else they ask for."""
    for row in all_defects().values():
        if (not row.methods or method in row.methods) and row.state_in(version) is not None:
            yield row


def find_said(text: str) -> Iterator[Defect]:
    """Yield the rows of which a pasted text has something that they say."""
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
