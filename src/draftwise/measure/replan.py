"""What of a run still fits in its time: decided before each repetition, going by the turns that were measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import log

from draftwise.core import Omission, Run, RunPlan, TurnRecord
from draftwise.core.comparison import ALL
from draftwise.deciding.conclusions import gather_evidence
from draftwise.measure.time_estimate import TimeEstimate, name_repetitions
from draftwise.runs.schedule import Turn
from draftwise.statistics import FEWEST_PROMPTS

__all__ = [
    "Fitted",
    "Place",
    "find_promising",
    "fit_repetition",
    "interleave",
    "leave_out",
    "list_missing",
    "put_first",
    "rank_candidates",
]

Place = tuple[str, str]
"""Workload and label of the condition."""
_FEWEST_REPEATS = 2
"""Repetitions that are measured of something, if only of a part."""
_SPARE_PROMPTS = 2
"""Beyond those that an early verdict needs: what a disturbance may cost."""
_LEAST_SHARE = 0.5
"""Of the prompts, below which the least promising candidates go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is measured next."""

    blocks: Sequence[Sequence[Turn]]
    last: int
    """Repetition up to which all that is planned fits, as it looks now; below the next one: nothing does."""
    omissions: tuple[Omission, ...] = ()
    without: frozenset[str] = frozenset()
    """Candidates that are left out from now on."""


def interleave(turns: Iterable[Turn]) -> list[list[Turn]]:
    """Return the turns as paired blocks, those of all workloads and loads mixed evenly.

    Whenever the time ends a repetition, all of them have had the same share of their prompts.
    """
    groups: dict[tuple[object, ...], list[list[Turn]]] = {}
    for block in _list_blocks(turns):
        first, arms = block[0], frozenset(turn.arm for turn in block)
        groups.setdefault((first.workload, first.condition, arms), []).append(block)
    placed = [((place + 0.5) / len(group), block) for group in groups.values() for place, block in enumerate(group)]
    return [block for _, block in sorted(placed, key=lambda each: each[0])]


def find_promising(blocks: Iterable[Sequence[Turn]], estimate: TimeEstimate, baseline: str) -> Place | None:
    """Return where a candidate is expected to gain most, going by what was seen before the first turn."""
    gains: dict[Place, float] = {}
    for block in blocks:
        seconds = {turn.arm: estimate.expect(turn) for turn in block}
        plain_s = seconds.pop(baseline, 0.0)
        if fastest_s := min(seconds.values(), default=0.0):
            gains[block[0].place] = max(gains.get(block[0].place, 0.0), plain_s / fastest_s)
    return max(gains, key=lambda each: gains[each], default=None)


def put_first(blocks: Sequence[Sequence[Turn]], place: Place) -> list[Sequence[Turn]]:
    """Return the blocks with those of a place first, as many as an early verdict needs."""
    first: list[Sequence[Turn]] = []
    others: list[Sequence[Turn]] = []
    for block in blocks:
        is_needed = sum(len(each[0].prompts) for each in first) < FEWEST_PROMPTS + _SPARE_PROMPTS
        (first if is_needed and block[0].place == place else others).append(block)
    return [*first, *others]


def leave_out(turns: Iterable[Turn], candidates: Collection[str]) -> list[Turn]:
    """Return the turns without candidates, and without what they would have been compared with."""
    kept = []
    for block in _list_blocks(turns):
        left = [turn for turn in block if turn.arm not in candidates]
        kept += left if len(left) == len(block) or len(left) > 1 else []
    return kept


def list_missing(turns: Iterable[Turn], run: Run, *, returned: Collection[str] = ()) -> list[Turn]:
    """Return what is missing of the turns of a repetition.

    What a candidate answers now is not paired with what the baseline answered long ago: where the run went on without
    the candidate, both answer the block, as another attempt.

    Args:
        turns: as planned, block by block.
        run: what is measured.
        returned: candidates that it was measured without before it was continued.
    """
    baseline, last = run.plan.arms[0].name, max(run.turns, key=lambda each: each.turn, default=None)
    attempts: dict[tuple[str, str, int, int], dict[int, set[str]]] = {}
    for turn in run.turns:
        attempts.setdefault(turn.block_key, {}).setdefault(turn.attempt, set()).add(turn.arm)
    missing: list[Turn] = []
    for block in _list_blocks(turns):
        known = attempts.get(block[0].block_key, {})
        paired = set(chain.from_iterable(arms for arms in known.values() if baseline in arms))
        if lost := {turn.arm for turn in block} - paired:
            attempt = max(known, default=0)
            if known and not (_is_under_way(block[0], last, run.plan) and lost.isdisjoint(returned)):
                attempt += 1
            wanted = (lost | {baseline}) - known.get(attempt, set())
            missing += [replace(turn, attempt=attempt) for turn in block if turn.arm in wanted]
    return missing


def _is_under_way(turn: Turn, last: TurnRecord | None, plan: RunPlan) -> bool:
    """Return whether a turn is of the block, or of the repetition of one server after the other, that was cut off."""
    if last is None or plan.one_at_a_time:
        return last is not None and turn.repeat == last.repeat
    return turn.block_key == last.block_key


def _list_blocks(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    yield from (list(block) for _, block in groupby(turns, key=lambda each: each.block_key))


def fit_repetition(
    ahead: Mapping[int, Sequence[Turn]], estimate: TimeEstimate, left_s: float, ranking: Sequence[tuple[str, str]]
) -> Fitted:
    """Return what fits of the next repetition.

    Later repetitions go first, down to the second one, then prompts, down to half of them, then the least promising
    candidates, then more prompts.

    Args:
        ahead: what is missing of the next repetition and those after it.
        estimate: of the turns.
        left_s: time for all of them.
        ranking: candidates that may be left out, the least promising one first, each with what that rests on.
    """
    repeat, last = min(ahead), max(ahead)
    needed = {number: estimate.sum(turns) for number, turns in ahead.items()}
    while last > max(repeat - 1, _FEWEST_REPEATS) and sum(needed[n] for n in range(repeat, last + 1)) > left_s:
        last -= 1
    if last < repeat:
        what = name_repetitions(repeat, max(ahead))
        return Fitted(blocks=(), last=last, omissions=(_omit(what, needed[repeat], left_s),))
    turns, without, omissions = list(ahead[repeat]), set[str](), list[Omission]()
    later_s = sum(needed[number] for number in range(repeat + 1, last + 1))

    def share() -> float:
        """Return the share of each repetition that fits."""
        first_s = estimate.sum(turns)
        whole = first_s + later_s * (first_s / needed[repeat] if needed[repeat] else 1.0)
        return min(1.0, max(0.0, left_s) / whole) if whole else 1.0

    for candidate, evidence in ranking:
        if share() >= _LEAST_SHARE:
            break
        without.add(candidate)
        turns = leave_out(turns, without)
        reason = f"{evidence}, and the time is short"
        omissions.append(Omission(what=f"candidate {candidate}", reason=reason, candidate=candidate))
    blocks = interleave(turns)
    if (part := share()) < 1:
        kept = max(1, int(part * len(blocks)))
        what = f"{1 - kept / len(blocks):.0%} of the prompts of repetition {repeat}"
        omissions.append(_omit(what, needed[repeat] + later_s, left_s, last - repeat + 1))
        blocks = blocks[:kept]
    return Fitted(blocks=blocks, last=last, omissions=tuple(omissions), without=frozenset(without))


def _omit(what: str, needed_s: float, left_s: float, repetitions: int = 1) -> Omission:
    subject = "a repetition takes" if repetitions == 1 else f"{repetitions} repetitions take"
    return Omission(what=what, reason=f"{subject} {needed_s:.0f} s, and {max(0.0, left_s):.0f} s are left")


def rank_candidates(run: Run) -> list[tuple[str, str]]:
    """Return the candidates that cannot become the best choice, the least promising one first, with the evidence.

    Those whose interval ends below the beginning of the best one's, or below the smallest change worth making, in
    every workload and under every load in which they were measured.
    """
    evidence = gather_evidence(run)
    worst: dict[str, tuple[float, str]] = {}
    for place in {(each.workload, each.condition.label) for each in evidence.comparisons if each.workload != ALL}:
        here = [each for each in evidence.comparisons if (each.workload, each.condition.label) == place]
        best = max(here, key=lambda each: each.deciding.low)
        for each in here:
            bar = max(best.deciding.low, 1 + evidence.thresholds.margin)
            ahead = log(each.deciding.high / bar)
            if each.candidate not in worst or ahead > worst[each.candidate][0]:
                against = f"{best.candidate}'s {best.deciding.span}" if bar == best.deciding.low else f"{bar:.2f}x"
                text = f"its speed-up of {each.deciding.span} on {place[0]} at {place[1]} lies below {against}"
                worst[each.candidate] = (ahead, text)
    hopeless = [(ahead, name, text) for name, (ahead, text) in worst.items() if ahead < 0]
    return [(name, text) for _, name, text in sorted(hopeless)]
