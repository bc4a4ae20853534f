"""What a run measures next: what fits in its time, loads around a crossover, disturbed turns once more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import log

from draftwise.core import (
    ClosedLoop,
    Comparison,
    Condition,
    Load,
    Omission,
    OpenLoop,
    Run,
    RunPlan,
    Settled,
    TurnRecord,
    Verdict,
)
from draftwise.core.comparison import ALL
from draftwise.core.grouping import group_by
from draftwise.deciding.bands import gather_load_points
from draftwise.deciding.comparison.comparisons import estimate_cells
from draftwise.deciding.conclusions import gather_evidence
from draftwise.deciding.disturbance import find_lost_pairs, set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.measure.time_estimate import TimeEstimate, name_repetitions
from draftwise.runs.turn_order import Turn
from draftwise.statistics import FEWEST_PROMPTS, next_load

__all__ = [
    "FIRST_ANALYSIS",
    "FittedRepetition",
    "LostBlock",
    "Place",
    "describe_first_verdict",
    "describe_lead",
    "find_lost",
    "find_promising",
    "find_settled",
    "fit_repetition",
    "interleave",
    "leave_out",
    "list_missing",
    "next_conditions",
    "plan_retakes",
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
class FittedRepetition:
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
) -> FittedRepetition:
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
        return FittedRepetition(blocks=(), last=last, omissions=(_omit(what, needed[repeat], left_s),))
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
    return FittedRepetition(blocks=blocks, last=last, omissions=tuple(omissions), without=frozenset(without))


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


_MOST_NAMED = 6
FIRST_ANALYSIS = 2
"""Repetitions before the first interim analysis: one says nothing about the drift between repetitions."""


def find_settled(run: Run, conditions: Sequence[Condition], repeat: int) -> Iterator[Settled]:
    """Yield the cells whose verdict is settled after so many repetitions."""
    labels = {condition.label for condition in conditions}
    known = {each.key for each in run.settled}
    for each in gather_evidence(run).comparisons:
        workload, label, candidate = each.key
        if each.settled and workload != ALL and label in labels and each.key not in known:
            yield Settled(workload=workload, condition=label, candidate=candidate, passes=repeat)


def describe_lead(run: Run) -> str | None:
    """Return in a sentence which candidate leads under each load on each workload, and what that is worth so far; None
    where nothing that was measured counts yet."""
    best: dict[tuple[str, str], Comparison] = {}
    for each in gather_evidence(run).comparisons:
        place = (each.workload, each.condition.label)
        if each.workload != ALL and (place not in best or _rank(each) > _rank(best[place])):
            best[place] = each
    if not best:
        return None
    parts = list(map(_describe, best.values()))
    more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return f"So far: {'; '.join(parts[:_MOST_NAMED])}{more}."


def describe_first_verdict(run: Run, place: tuple[str, str]) -> str | None:
    """Return in a sentence which candidate is adopted already on a workload under a load; None where none is."""
    workloads = tuple(each for each in run.plan.workloads if each.name == place[0])
    here = replace(
        run,
        plan=replace(run.plan, workloads=workloads),
        turns=tuple(each for each in run.turns if (each.workload, each.condition) == place),
        answers=tuple(each for each in run.answers if (each.workload, each.condition) == place),
    )
    best = max(gather_evidence(here).comparisons, key=_rank, default=None)
    if best is None or best.verdict is not Verdict.ADOPT:
        return None
    return f"First verdict: {_describe(best)} on {best.num_prompts} prompts. The rest of the time makes it surer."


def _rank(comparison: Comparison) -> tuple[bool, float]:
    return comparison.verdict is Verdict.ADOPT, comparison.deciding.value


def _describe(each: Comparison) -> str:
    place = f"{each.workload} {each.condition.label}"
    return f"{place}: {each.candidate} {each.deciding.value:.2f}x ({each.deciding.span}), {each.verdict}"


def next_conditions(run: Run) -> dict[Condition, set[tuple[str, str]]]:
    """Return the loads to measure next, each with the workloads and candidates whose crossover lies near it.

    Empty when every crossover is known well enough. Nothing is added beyond the planned loads, nor where only one was
    planned.
    """
    known = {condition.label for condition in run.conditions}
    found: dict[Condition, set[tuple[str, str]]] = {}
    thresholds = get_thresholds(run)
    points_by_sweep = gather_load_points(estimate_cells(set_aside_disturbed(run, thresholds), thresholds))
    for (workload, candidate, temperature, axis), points in points_by_sweep.items():
        planned = _planned(run, axis, temperature)
        if len(planned) > 1:
            load = next_load(points, integer=axis == "concurrency", least=min(planned), most=max(planned))
            if load is not None:
                condition = Condition(load=_load_at(run, axis, load), temperature=temperature)
                if condition.label not in known:
                    names = [each.name for each in run.plan.workloads] if workload == ALL else [workload]
                    found.setdefault(condition, set()).update((name, candidate) for name in names)
    return found


def _planned(run: Run, axis: str, temperature: float) -> set[float]:
    places = (each.place for each in run.plan.conditions if each.temperature == temperature)
    return {place[1] for place in places if place is not None and place[0] == axis}


def _load_at(run: Run, axis: str, value: float) -> Load:
    if axis == "concurrency":
        return ClosedLoop(concurrency=round(value))
    steady = next(each.load for each in run.plan.conditions if each.place and isinstance(each.load, OpenLoop))
    return OpenLoop.steady(float(f"{value:.3g}"), steady.arrivals)


_MOST_ATTEMPTS = 3
"""At a pair, the first one included: what disturbs each of them is there to stay."""

BlockKey = tuple[str, str, int, int]
"""Workload, label of the condition, repetition and block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBlock:
    """A block of which some candidates have no undisturbed pair."""

    key: BlockKey
    arms: frozenset[str]
    """That are to answer it again, the baseline among them."""
    attempt: int


def find_lost(run: Run, labels: Sequence[str]) -> list[LostBlock]:
    """Return the blocks to take again, those with the fewest attempts first.

    A candidate that could remember its answers is not asked again: the block is lost for it. Candidates whose verdict
    is settled need it no more. An attempt that was cut off is not gone on with: turns of two sessions are no pair.

    Args:
        run: as it is on disk, with every attempt.
        labels: of the conditions to look at.
    """
    settled = {each.key for each in run.settled}
    again: dict[BlockKey, set[str]] = {}
    for pair in find_lost_pairs(set_aside_disturbed(run, get_thresholds(run))):
        workload, label, *_ = pair.block
        is_needed = label in labels and (workload, label, pair.candidate) not in settled
        if is_needed and pair.candidate not in run.plan.remembering and pair.attempts < _MOST_ATTEMPTS:
            again.setdefault(pair.block, {run.plan.arms[0].name}).add(pair.candidate)
    attempts = dict.fromkeys(again, 0)
    for turn in run.turns:
        if turn.block_key in again:
            attempts[turn.block_key] = max(attempts[turn.block_key], turn.attempt)
    found = (LostBlock(key=key, arms=frozenset(arms), attempt=attempts[key] + 1) for key, arms in again.items())
    return sorted(found, key=lambda each: each.attempt)


def plan_retakes(lost: Iterable[LostBlock], turns: Iterable[Turn], *, most: int) -> list[list[Turn]]:
    """Return the turns that are taken again, block by block, each in the order in which its arms were planned.

    Args:
        lost: from `find_lost`.
        turns: of the repetitions that the blocks are part of.
        most: turns from which no other block is begun.
    """
    planned = group_by(lambda turn: turn.block_key, turns)
    found: list[list[Turn]] = []
    for block in lost:
        mine = [replace(turn, attempt=block.attempt) for turn in planned.get(block.key, ()) if turn.arm in block.arms]
        if len(mine) > 1 and sum(map(len, found)) < most:
            found.append(mine)
    return found
