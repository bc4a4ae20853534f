"""A run's findings on the deployed setup: the numbers to compare production with, as baseline.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar

from draftwise.core.counters import Counters
from draftwise.core.documents import Format, read_document, to_json
from draftwise.core.finding import UnreadableSource
from draftwise.core.load import Condition
from draftwise.core.rollback_rule import Rollback
from draftwise.core.window import Window

NO_PROBE = "Its answers to the probe, and how much they vary by chance: nobody asked it."
"""Entry of `Baseline.missing` if there is no probe."""

NO_LIMITS = "When to roll back: "
"""Start of the entry of `Baseline.missing` if there is no break-even; the reason follows."""

_FORMAT = Format(
    name="draftwise-baseline",
    version=1,
    noun="a baseline",
    foreign="not-a-baseline",
    other_version="not-a-baseline",
    damaged="not-a-baseline",
    written_by="the baseline.json that `draftwise deploy` wrote",
    again="Write it again from the run.",
    error=UnreadableSource,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Growth of the speculative server's counters in one cell of the run."""

    workload: str
    condition: Condition
    counters: Counters

    def __post_init__(self) -> None:
        counters, spec = self.counters, self.counters.spec
        counts = (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens, *spec.accepted_per_pos)
        known = (counters.generation_tokens, counters.prefix_queries, counters.prefix_hits)
        _need(all(count >= 0 for count in (*counts, *spec.drafted_per_pos)), "a count is at least 0")
        _need(all(count is None or count >= 0 for count in known), "a count is at least 0")
        _need(spec.num_accepted_tokens <= spec.num_draft_tokens, "more tokens were accepted than drafted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """How a server answered one prompt of the probe, at temperature 0, with nothing else running."""

    prompt_id: str
    num_tokens: int
    num_steps: int
    text_sha256: str

    def __post_init__(self) -> None:
        _need(0 < self.num_steps <= self.num_tokens, "a step gives one token at least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is known about a deployed setup. Values that were not measured are absent, and listed in `missing`."""

    JSON_FORMAT: ClassVar[Format] = _FORMAT
    setup_sha256: str
    """Hash of the setup.json in the same folder: the numbers hold for that setup only. Empty without one."""
    run: str = ""
    """Name of the run directory; empty if nothing was measured."""
    arm: str = ""
    """Deployed arm of the run."""
    plain_arm: str = ""
    """Arm of the run without speculation."""
    expected: Expected | None = None
    """Values of the cell whose break-even is nearest to the measured tokens per step."""
    curve_ms: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(streams, milliseconds per decoding step) for every number of streams in the run, by arm."""
    rollback: tuple[Rollback, ...] = ()
    """When to roll back."""
    probe: tuple[ProbeAnswer, ...] = ()
    """The deployed server's answers when it was known to be good: several repeats of each prompt."""
    probe_null: float | None = None
    """Share of the probe's prompts that take other steps by chance: 95 % quantile over repeats."""
    seen: Window | None = None
    """The deployed service while it was known to be good: a run does not know its prompts, adapters and times."""
    missing: tuple[str, ...] = ()
    """What is absent and why, one sentence each."""

    def __post_init__(self) -> None:
        _need(len(self.setup_sha256) in (0, 64), "setup_sha256 is a SHA-256 of 64 digits")
        for arm, points in self.curve_ms.items():
            streams = [count for count, _ in points]
            _need(streams == sorted(set(streams)), f"the curve of {arm} goes up in streams")
            _need(all(_is_positive(value) for point in points for value in point), f"the curve of {arm} is positive")
        _need(self.probe_null is None or 0 <= self.probe_null <= 1, "probe_null is a share")
        _need(self.seen is None or _is_positive(self.seen.duration_s), "what was seen lasted some time")

    @property
    def why_no_limits(self) -> str:
        """Why there is no break-even, as a clause; empty if that is not recorded."""
        entry = next((each for each in self.missing if each.startswith(NO_LIMITS)), "")
        return entry.removeprefix(NO_LIMITS).rstrip(".")

    def to_json(self) -> str:
        """Return the text of a baseline.json."""
        return json.dumps(to_json(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Baseline:
        """Return the baseline that `to_json` wrote.

        Raises:
            UnreadableSource: the text is something else, or of a later version.
        """
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        return read_document(cls, row, where)


def _need(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def _is_positive(value: float) -> bool:
    return isfinite(value) and value > 0
