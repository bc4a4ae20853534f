"""Holds the reason for a comparison's verdict; `reporting.reasons` says it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonCode(StrEnum):
    """What a verdict rests on: stable names, for scripts."""

    FEW_PROMPTS = "few-prompts"
    """Too few prompts carry any verdict: `count` of `fewest`."""
    DISTURBED = "disturbed"
    """Too many pairs of turns were disturbed: `count` of `of`, the first because `why`; a share `left` must be left."""
    UNSETTLED = "unsettled"
    """A finding makes the numbers wrong either way: its `message` and `code`."""
    SLOW_SERVER = "slow-server"
    """The losing `arm` is slow in what drafting has no part in: `step` and `first` times as long, seen for `seen_s`
    seconds of the `wanted_s` that would tell."""
    PACE_CHANGED = "pace-changed"
    """A decoding step of `arm` took `ratio` times as long after a `share` of the paired blocks (None: at the end, of a
    drift), or in `spells`, which the other arm's did not."""
    ANCHORS_MOVED = "anchors-moved"
    """Prompts that were asked again gained `ratio` times as much."""
    UNSEEN = "unseen"
    """A kind of prompt of up to a `share` of the traffic may not have been drawn, so that the interval has to clear
    `bar`."""
    NO_GAIN = "no-gain"
    """No gain beyond `margin` is left (0.5 %, one-sided): `ratio`; `slower`: not even equality is in its interval."""
    BEHIND = "behind"
    """`better` is `ratio` times as fast, prompt by prompt, over `count` of them."""
    MEASURES_DISAGREE = "measures-disagree"
    """Deciding measures disagree: those in `better` against those in `worse`."""
    MAY_BE_CHANCE = "may-be-chance"
    """Not significant among all comparisons of the run: `p`."""
    NOT_TRUSTED = "not-trusted"
    """A finding, `code`, blocks what was found: `gains` or not, in requests within the SLO (`promise`) or speed."""
    GAIN = "gain"
    """The whole interval lies above no change (`promise`) or 1 + `margin`."""
    LOSS = "loss"
    """The whole interval lies below no change (`promise`), or 1 - `margin`."""
    GAIN_WITH_DAMAGE = "gain-with-damage"
    """A gain on the whole (`promise`: in requests within the SLO) with the damage in `detail`."""
    MIXED_WORKLOAD = "mixed-workload"
    """Half of the requests are faster (`half`: ratio of P50 of the time per token), and a `share` of them slower than
    1.1 times the baseline's P90."""
    SLOW_TAIL = "slow-tail"
    """A `share` of the requests is slower than 1.1 times the baseline's P90 of the time per token."""
    LATE_FIRST_TOKEN = "late-first-token"
    """The first token comes `ratio` times as late."""
    LATE_FIRST_TOKENS_TAIL = "late-first-tokens-tail"
    """P99 of the time to the first token is `ratio` times the baseline's."""
    ANSWERS_NOT_FASTER = "answers-not-faster"
    """The server puts out more, and the time per token of a request does not fall with it."""
    EQUAL = "equal"
    """Equal within `margin`."""
    OPEN = "open"
    """The interval does not clear 1 + `margin`. `detectable`, where it is known: the gain that would have been found;
    `prompts` more and `repetitions` instead of `done` would settle it; `can_repeat`: further repetitions count. `left`:
    who was ahead when it left the race because the time was short, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a comparison has its verdict."""

    code: ReasonCode
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the code's own words name."""
    losers: str = ""
    """Which prompts lose, in words; empty where nothing tells them apart."""
    detail: Reason | None = None
    num_prompts: int | None = None
    """Prompts that it rests on; None where the numbers are in doubt."""
