"""Acceptance on your own traffic, from `draftwise replay`, by method, k, temperature and group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar

from draftwise.core.comparison import Interval
from draftwise.core.counters import SpecStats
from draftwise.core.documents import Format, json_form
from draftwise.core.finding import Finding
from draftwise.core.setup import SpecConfig

_ROUNDING = 1e-6
"""Relative; sums of chances of sampled drafts are kept with this many digits."""


class Exactness(StrEnum):
    """How the replay's counts relate to those of serving the same answers."""

    EXACT = "exact"
    LOWER_BOUND = "lower bound"
    """The log lacks part of what the drafter would have read, e.g. the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTarget:
    """The model that wrote the answers."""

    name: str
    tokenizer_sha256: str | None = None
    """Hash of its tokenizer.json; None if the log held token ids and no tokenizer was available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLog:
    """What was replayed of a log, and what was skipped and why."""

    rows: int
    used: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of rows by the code of the finding that names the reason."""
    order: str = "file"
    """`time`, or `file` if the rows have no times."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of requests by group; empty without grouping."""
    tokens_out: int
    """Tokens of all replayed answers, first tokens included."""
    prompt_tokens: tuple[int, int, int] | None = None
    """Tokens of a prompt: 10th, 50th and 90th percentile over the replayed requests."""

    def __post_init__(self) -> None:
        _require(0 <= self.used <= self.rows, f"log: used is {self.used} of {self.rows} rows")
        _require(min((*self.skipped.values(), *self.groups.values(), 0)) >= 0, "log: a number of rows is negative")
        _require(self.used + sum(self.skipped.values()) == self.rows, "log: used and skipped do not add up to rows")
        _require(self.tokens_out >= self.used, f"log: tokens_out is {self.tokens_out} for {self.used} answers")
        _require(self.order in ("time", "file"), f"log: order is {self.order!r}, not time or file")


def _tidy(count: float) -> float:
    """Return a whole count as an integer, a sum of chances with the digits that mean something."""
    return int(count) if float(count).is_integer() else float(f"{count:.9g}")


_COUNT = json_form(to_wire=_tidy)
_COUNTS = json_form(to_wire=lambda counts: [*map(_tidy, counts)])
_RATIO = json_form(
    wire=tuple[float, float, float],
    to_wire=lambda ratio: (ratio.value, ratio.low, ratio.high),
    from_wire=lambda row: Interval(value=row[0], low=row[1], high=row[2]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAtK:
    """Totals over the decode steps of all requests, with up to k draft tokens in each.

    If drafts are sampled, counts are sums of probabilities and not whole numbers.
    """

    steps: float = field(metadata=_COUNT)
    """Target passes after prefill, which emits the first token of an answer."""
    emitted: float = field(metadata=_COUNT)
    """Tokens that they emitted: all except first tokens."""
    drafts: float = field(metadata=_COUNT)
    """Steps with a draft to verify; a lookup without a match makes none."""
    drafted: float = field(metadata=_COUNT)
    accepted: float = field(metadata=_COUNT)
    accepted_per_pos: tuple[float, ...] = field(default=(), metadata=_COUNTS)
    """Number of drafts with at least i + 1 accepted tokens: k values."""
    drafted_per_pos: tuple[float, ...] = field(default=(), metadata=_COUNTS)
    """Number of drafts with at least i + 1 tokens: k values."""
    tokens_per_step: Interval = field(metadata=_RATIO)
    """`emitted / steps` with its 95 % interval over requests."""
    per_request: tuple[float, float, float]
    """Tokens per step of a request: 10th, 50th and 90th percentile over requests, unweighted."""
    typical: float | None = None
    """Geometric mean of tokens per step over requests; None if requests are not known individually."""

    def __post_init__(self) -> None:
        counts = (self.steps, self.emitted, self.drafts, self.drafted, self.accepted)
        per_pos = (*self.accepted_per_pos, *self.drafted_per_pos)
        _require(all(math.isfinite(each) and each >= 0 for each in (*counts, *per_pos)), "a count is negative")
        _require(_at_most(self.steps, self.emitted), f"{self.steps} steps emit {self.emitted} tokens")
        _require(_at_most(self.drafts, self.steps), f"{self.drafts} drafts in {self.steps} steps")
        _require(_at_most(self.accepted, self.drafted), f"{self.accepted} of {self.drafted} drafted tokens accepted")
        _require(_falls(self.accepted_per_pos) and _falls(self.drafted_per_pos), "a later position has more tokens")
        low, value, high = self.tokens_per_step.low, self.tokens_per_step.value, self.tokens_per_step.high
        _require(_at_most(low, value) and _at_most(value, high), f"tokens_per_step {value} is outside {low}-{high}")
        _require(list(self.per_request) == sorted(self.per_request), "per_request does not rise")

    @property
    def stats(self) -> SpecStats:
        """The counts in the form of the engine and of /metrics; rounded if drafts are sampled."""
        return SpecStats(
            num_drafts=round(self.drafts),
            num_draft_tokens=round(self.drafted),
            num_accepted_tokens=round(self.accepted),
            accepted_per_pos=tuple(map(round, self.accepted_per_pos)),
            drafted_per_pos=tuple(map(round, self.drafted_per_pos)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance of one candidate's drafts on the requests of one temperature and one group."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("method", "model", "draft_sample_method", "kmax")
    candidate: SpecConfig
    """The candidate; `num_speculative_tokens` is the largest replayed k."""
    temperature: float
    """Sampling temperature of the answers."""
    group: str | None = None
    """Group of requests; None for all of this temperature."""
    exactness: Exactness = field(metadata=json_form(key="kind"))
    requests: int
    by_k: Mapping[int, AcceptanceAtK]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_k", dict(sorted(self.by_k.items())))
        _require(math.isfinite(self.temperature) and self.temperature >= 0, f"temperature is {self.temperature}")
        _require(self.requests >= 1, f"an entry is of {self.requests} requests")
        _require(bool(self.by_k), "an entry has no k")
        for k, found in self.by_k.items():
            _require(1 <= k <= self.kmax, f"an entry has k {k}, and its largest is {self.kmax}")
            _require(len(found.accepted_per_pos) <= k, f"k {k} has {len(found.accepted_per_pos)} positions")
            _require(_at_most(found.emitted, (k + 1) * found.steps), f"k {k} emits more than {k + 1} tokens a step")

    @property
    def method(self) -> str:
        """Method as vLLM spells it."""
        return self.candidate.method or ""

    @property
    def model(self) -> str | None:
        """Its drafter."""
        return self.candidate.model

    @property
    def draft_sample_method(self) -> str:
        """How its drafts are sampled."""
        return str(self.candidate.options.get("draft_sample_method", "greedy"))

    @property
    def kmax(self) -> int:
        """Largest k that was replayed."""
        return self.candidate.num_speculative_tokens or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The result of a replay: the acceptance of every candidate on one log."""

    JSON_FORMAT: ClassVar[Format] = Format(
        name="draftwise-profile",
        version=1,
        noun="the profile of a replay",
        foreign="not-a-profile",
        other_version="profile-version",
        damaged="damaged-profile",
        written_by="the folder or the profile.json that `draftwise replay` wrote",
        again="Replay the log again.",
    )
    target: ReplayedTarget
    log: ReplayedLog
    entries: tuple[Acceptance, ...]
    findings: tuple[Finding, ...] = ()

    def find(
        self, candidate: SpecConfig, *, temperature: float | None = None, group: str | None = None
    ) -> Acceptance | None:
        """Return a candidate's entry for any k; None without one, or if several temperatures match."""
        found = [
            entry
            for entry in self.entries
            if _without_k(entry.candidate) == _without_k(candidate)
            and entry.group == group
            and temperature in (None, entry.temperature)
        ]
        return found[0] if len(found) == 1 else None


def _without_k(candidate: SpecConfig) -> dict[str, Any]:
    return {key: value for key, value in candidate.to_dict().items() if key != "num_speculative_tokens"}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _at_most(small: float, large: float) -> bool:
    return small <= large + _ROUNDING * max(1.0, large)


def _falls(values: Sequence[float]) -> bool:
    return all(_at_most(later, earlier) for earlier, later in pairwise(values))
