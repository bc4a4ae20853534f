"""Chooses the next measurements: candidates still in the race, loads around a crossover, disturbed turns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from statistics import fmean

from draftwise.core import ClosedLoop, Comparison, Condition, Load, OpenLoop, Run, RunPlan, Settled, TurnRecord, Verdict
from draftwise.core.comparison import ALL
from draftwise.core.grouping import group_by
from draftwise.deciding.bands import gather_load_points
from draftwise.deciding.comparison.cell import Cell, make_cells
from draftwise.deciding.comparison.comparisons import estimate_cells, estimate_ratios
from draftwise.deciding.conclusions import gather_evidence
from draftwise.deciding.disturbance import FIRST_TOKEN, find_lost_pairs, set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.deciding.token_unit import count_soundly
from draftwise.runs.turn_order import Turn
from draftwise.statistics import FEWEST_PROMPTS, next_load

Place = tuple[str, str]
"""Workload and condition label."""


def leave_out(turns: Iterable[Turn], candidates: Collection[str]) -> list[Turn]:
    """Return the turns without those of some candidates, and without baseline turns that only they need."""
    kept = []
    for block in list_blocks(turns):
        left = [turn for turn in block if turn.arm not in candidates]
        kept += left if len(left) == len(block) or len(left) > 1 else []
    return kept


def find_missing(blocks: Iterable[Sequence[Turn]], run: Run, *, returned: Collection[str] = ()) -> Iterator[list[Turn]]:
    """Yield the missing turns of each incomplete block.

    New answers of a candidate are not paired with old ones of the baseline. If the run continued without the candidate,
    both answer the block again, as another attempt.

    Args:
        blocks: planned blocks.
        run: the run so far.
        returned: candidates that an earlier session of the run went on without.
    """
    baseline, last = run.plan.arms[0].name, max(run.turns, key=lambda each: each.turn, default=None)
    attempts: dict[tuple[str, str, int, int], dict[int, set[str]]] = {}
    for turn in run.turns:
        attempts.setdefault(turn.block_key, {}).setdefault(turn.attempt, set()).add(turn.arm)
    for block in filter(None, blocks):
        known = attempts.get(block[0].block_key, {})
        paired = set(chain.from_iterable(arms for arms in known.values() if baseline in arms))
        if lost := {turn.arm for turn in block} - paired:
            attempt = max(known, default=0)
            if known and not (_is_under_way(block[0], last, run.plan) and lost.isdisjoint(returned)):
                attempt += 1
            wanted = (lost | {baseline}) - known.get(attempt, set())
            if missing := [replace(turn, attempt=attempt) for turn in block if turn.arm in wanted]:
                yield missing


def _is_under_way(turn: Turn, last: TurnRecord | None, plan: RunPlan) -> bool:
    """Return whether a turn is of the block, or of the repetition of one server after the other, that was cut off."""
    if last is None or plan.one_at_a_time:
        return last is not None and turn.repeat == last.repeat
    return turn.block_key == last.block_key


def list_blocks(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Yield turns block by block."""
    yield from (list(block) for _, block in groupby(turns, key=lambda each: each.block_key))


_MOST_NAMED = 6


def find_race(run: Run, place: Place, candidates: Collection[str]) -> dict[str, Mapping[Hashable, float]]:
    """Return each prompt's log ratio at a place, by candidate, for candidates with enough prompts for a race.

    Under a load, there is one ratio per paired block, because its requests share the machine's state.
    """
    here = count_soundly(set_aside_disturbed(_keep_place(run, place), get_thresholds(run))).run
    found: dict[str, Mapping[Hashable, float]] = {}
    for cell in make_cells(here):
        if cell.candidate in candidates:
            alone = cell.condition.concurrency == 1
            logs = estimate_ratios(cell).speedup.log_by_prompt if alone else _average_blocks(cell)
            if len(logs) >= FEWEST_PROMPTS:
                found[cell.candidate] = logs
    return found


def _average_blocks(cell: Cell) -> dict[Hashable, float]:
    logs: dict[Hashable, list[float]] = {}
    for each in cell.paired:
        ours, theirs = each.candidate.timing.tokens_per_s, each.baseline.timing.tokens_per_s
        if ours and theirs and each.candidate.error is None and each.baseline.error is None:
            logs.setdefault(each.block, []).append(math.log(ours / theirs))
    return {block: fmean(each) for block, each in logs.items()}


def _keep_place(run: Run, place: Place) -> Run:
    """Return the run as if it had this workload under this load only."""
    return replace(
        run,
        plan=replace(run.plan, workloads=tuple(each for each in run.plan.workloads if each.name == place[0])),
        turns=tuple(each for each in run.turns if (each.workload, each.condition) == place),
        answers=tuple(each for each in run.answers if (each.workload, each.condition) == place),
    )


def find_settled(run: Run, is_open: Callable[[str, str, str], bool]) -> list[tuple[Comparison, int, bool]]:
    """Return the open cells, each with its number of pairs and whether its verdict is settled.

    Args:
        is_open: returns whether a workload, load and candidate are still being measured.
    """
    evidence = gather_evidence(run)
    return [
        (each, numbers.done, each.settled)
        for each, numbers in zip(evidence.comparisons, evidence.estimates, strict=True)
        if each.workload != ALL and is_open(*each.key)
    ]


def describe_lead(run: Run) -> str | None:
    """Describe in one sentence the leading candidate of each workload and load, and its ratio so far; None if no
    measurement counts yet."""
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


def _rank(comparison: Comparison) -> tuple[bool, float]:
    return comparison.verdict is Verdict.ADOPT, comparison.deciding.value


def _describe(each: Comparison) -> str:
    place = f"{each.workload} {each.condition.label}"
    return f"{place}: {each.candidate} {each.deciding.value:.2f}x ({each.deciding.span}, {each.num_prompts} prompts)"


def next_conditions(run: Run) -> dict[Condition, set[tuple[str, str]]]:
    """Return the loads to measure next, each with the workloads and candidates whose crossover is near.

    Empty once every crossover is known well enough. Adds no load outside the planned range, and no load if only one was
    planned.
    """
    known = {condition.label for condition in run.conditions}
    found: dict[Condition, set[tuple[str, str]]] = {}
    thresholds = get_thresholds(run)
    points_by_sweep = gather_load_points(
        estimate_cells(count_soundly(set_aside_disturbed(run, thresholds)).run, thresholds)
    )
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
"""Attempts at a pair, including the first. A disturbance of all of them is permanent."""

BlockKey = tuple[str, str, int, int]
"""Workload, condition label, repetition and block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBlock:
    """A block in which some candidates have no undisturbed pair."""

    key: BlockKey
    arms: frozenset[str]
    """Arms to measure again, including the baseline."""
    attempt: int


def find_lost(run: Run, labels: Sequence[str], ended: Iterable[Settled]) -> list[LostBlock]:
    """Return the blocks to repeat, those with the fewest attempts first.

    Leaves out candidates whose verdict is settled, as long as enough turns for it are left. One that may remember its
    answers is asked again for its pace: the second answer is no reading, but its steps tell whether the prompts are
    slow by themselves. Its first token does not, since a prefix cache may have helped. An interrupted attempt is not
    completed, because turns of two sessions are not a pair.

    Args:
        run: the run on disk, with every attempt.
        labels: labels of the conditions to search.
        ended: cells that are not measured any more.
    """
    counted = set_aside_disturbed(run, get_thresholds(run))
    left = Counter((turn.workload, turn.condition, turn.arm) for turn in counted.turns)
    settled = {each.key for each in ended if left[each.key] >= FEWEST_PROMPTS}
    again: dict[BlockKey, set[str]] = {}
    for pair in find_lost_pairs(counted):
        workload, label, *_ = pair.block
        is_needed = label in labels and (workload, label, pair.candidate) not in settled
        is_needed &= pair.candidate not in run.plan.remembering or not pair.reason.startswith(FIRST_TOKEN)
        if is_needed and pair.attempts < _MOST_ATTEMPTS:
            again.setdefault(pair.block, {run.plan.arms[0].name}).add(pair.candidate)
    attempts = dict.fromkeys(again, 0)
    for turn in run.turns:
        if turn.block_key in again:
            attempts[turn.block_key] = max(attempts[turn.block_key], turn.attempt)
    found = (LostBlock(key=key, arms=frozenset(arms), attempt=attempts[key] + 1) for key, arms in again.items())
    return sorted(found, key=lambda each: each.attempt)


def plan_retakes(lost: Iterable[LostBlock], turns: Iterable[Turn], *, most: int) -> list[list[Turn]]:
    """Return the turns to repeat, block by block, each in the planned order of its arms.

    Args:
        lost: from `find_lost`.
        turns: turns of the repetitions that hold these blocks.
        most: number of turns after which no further block begins.
    """
    planned = group_by(lambda turn: turn.block_key, turns)
    found: list[list[Turn]] = []
    for block in lost:
        mine = [replace(turn, attempt=block.attempt) for turn in planned.get(block.key, ()) if turn.arm in block.arms]
        if len(mine) > 1 and sum(map(len, found)) < most:
            found.append(mine)
    return found
