"""The reason for a comparison's verdict; `reporting.reasons` puts it into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonCode(StrEnum):
    """Reasons for verdicts: stable names, for scripts."""

    FEW_PROMPTS = "few-prompts"
    """Too few prompts for any verdict: `count` of `fewest`."""
    DISTURBED = "disturbed"
    """Too many pairs of turns were disturbed: `count` of `of`, the first by `why`; a share `left` must stay."""
    UNSETTLED = "unsettled"
    """A finding makes the numbers wrong either way: its `message` and `code`."""
    SLOW_SERVER = "slow-server"
    """The losing `arm` is slow where drafting plays no part: `step` and `first` times as long, seen for `seen_s` of the
    `wanted_s` seconds needed."""
    PACE_CHANGED = "pace-changed"
    """A decoding step of `arm`, and not of the other arm, took `ratio` times as long after a `share` of the paired
    blocks (None: at the end of a drift), or in `spells`."""
    ANCHORS_MOVED = "anchors-moved"
    """Prompts that were sent again gained `ratio` times as much."""
    UNSEEN = "unseen"
    """A kind of prompt with up to a `share` of the traffic may not be drawn, so the interval must clear `bar`."""
    NO_GAIN = "no-gain"
    """No gain beyond `margin` is possible (0.5 %, one-sided): `ratio`; `slower`: its interval excludes even 1."""
    BEHIND = "behind"
    """`better` is `ratio` times as fast, prompt by prompt, over `count` of them."""
    MEASURES_DISAGREE = "measures-disagree"
    """Deciding measures disagree: those in `better` against those in `worse`."""
    MAY_BE_CHANCE = "may-be-chance"
    """Not significant among all comparisons of the run: `p`."""
    NOT_TRUSTED = "not-trusted"
    """The finding `code` blocks the result: `gains` or not, in requests within the SLO (`promise`) or in speed."""
    GAIN = "gain"
    """The whole interval lies above no change (`promise`) or 1 + `margin`."""
    LOSS = "loss"
    """The whole interval lies below no change (`promise`), or 1 - `margin`."""
    GAIN_WITH_DAMAGE = "gain-with-damage"
    """A gain overall (`promise`: in requests within the SLO), with the damage in `detail`."""
    MIXED_WORKLOAD = "mixed-workload"
    """Half of the requests are faster (`half`: ratio of P50 of the time per token), but a `share` is slower than 1.1
    times the baseline's P90."""
    SLOW_TAIL = "slow-tail"
    """A `share` of the requests is slower than 1.1 times the baseline's P90 of the time per token."""
    LATE_FIRST_TOKEN = "late-first-token"
    """The first token takes `ratio` times as long."""
    LATE_FIRST_TOKENS_TAIL = "late-first-tokens-tail"
    """P99 of the time to the first token is `ratio` times the baseline's."""
    ANSWERS_NOT_FASTER = "answers-not-faster"
    """The server's throughput rises, but the time per token of a request does not fall; or it falls (`slower`), and
    requests take no longer."""
    EQUAL = "equal"
    """Equal within `margin`."""
    OPEN = "open"
    """The interval does not clear 1 + `margin`. `detectable`: smallest gain that would have been found, if known. To
    settle it, `prompts` more or `repetitions` instead of `done`; `can_repeat`: further repetitions count. `left`: who
    was ahead when it left the race for lack of time, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The reason for a comparison's verdict."""

    code: ReasonCode
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values for the names in the code's description."""
    losers: str = ""
    """Which prompts lose, in words; empty if nothing sets them apart."""
    detail: Reason | None = None
    num_prompts: int | None = None
    """Prompts behind it; None if the numbers are in doubt."""
