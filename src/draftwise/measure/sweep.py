"""Runs a plan: prompts in spread order and candidates in a race, until the time is over or all prompts are done."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product

from draftwise.core import (
    BackendError,
    CellLook,
    Condition,
    Estimate,
    Finding,
    Omission,
    Progress,
    RunPlan,
    Settled,
    WarmPace,
)
from draftwise.core.progress import check_stop
from draftwise.deciding.thresholds import get_thresholds
from draftwise.measure.experiment import Experiment
from draftwise.measure.readiness import ROUNDS_AGAIN, STEPS_AGAIN, warm_up_again
from draftwise.measure.replan import (
    Place,
    describe_lead,
    find_lost,
    find_missing,
    find_race,
    find_settled,
    leave_out,
    list_blocks,
    next_conditions,
    plan_retakes,
)
from draftwise.measure.roster import Returns
from draftwise.measure.time_budget import TimeBudget
from draftwise.measure.time_estimate import TimeEstimate
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import Turn, blocks, join_stretches, plan_turns
from draftwise.statistics import FEWEST_PROMPTS, RACE_LOOKS, Leaver, LeaveReason, find_leavers, leads_surely

_MOST_ROUNDS = 6
"""Rounds of adding loads. Each halves the uncertainty of a crossover, until only noise is left."""
_RETAKEN = 0.25
"""Largest share of the turns to repeat."""
_LOOKS = (1 / 3, 2 / 3)
"""Shares of the plan after which settled cells may stop."""
_ANCHORS = 6
"""First prompts of a workload, repeated at the end. If they gain differently, a server has changed. The baseline's
second answers show how far rounding reaches."""
_ANCHORS_FROM = 0.9
"""Share of the time after which they are sent."""
_ANCHORS_OF = 20
"""Minimum number of prompts in a workload; with fewer, the repeats would cost too much time."""
_QUEUED = 64
"""Blocks of a lane to plan at a time: a log may have ten thousand."""
_SLOWER = 1.25
"""Blocks do not fit if they need more than this multiple of the remaining time, to allow for forecast errors."""
_WARMED = 4
"""Blocks of a lane after which a server that was unsteady in the warm-up counts as steady."""


@dataclass(slots=True)
class _Lane:
    """A workload under a load: what is measured there, in its order."""

    condition: Condition
    place: Place
    repeat: int = 1
    queue: deque[list[Turn]] = field(default_factory=deque)
    is_stale: bool = True
    """Whether the queue needs planning again."""
    blocks: int = 0
    """Number of measured blocks."""
    prompts: int = 0
    seconds: float = 0.0
    is_closed: bool = False
    """Whether the lane is finished."""
    has_time: bool = False
    """Whether the candidates that left it for lack of time are back."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Measures a plan, as far as its time allows.

    Each lane (a workload under a load) first gets the fewest blocks that allow a verdict. Then each load gets the same
    time, and at a load the workload with the fewest prompts is next. Candidates leave the race once their outcome is
    shown, or if time is short; the others get their time.

    Args:
        estimate: duration of turns; learns from each measured turn.
        budget: time budget.
        without: candidates left out.
        returned: candidates that an earlier session of the run went on without.
        fastest: minimum seconds per decoding step on warm-up prompts, and the tokens that it brought, by arm.
        returns: waits for servers that fail. None: a failure ends the run.
    """

    experiment: Experiment
    estimate: TimeEstimate
    budget: TimeBudget
    without: set[str] = field(default_factory=set)
    returned: Collection[str] = ()
    returns: Returns | None = None
    fastest: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    _number: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    """Turns that were measured."""
    _lanes: list[_Lane] = field(default_factory=list, init=False)
    _ahead: list[Turn] = field(default_factory=list, init=False)
    """Turns that are left where one server is up at a time."""
    _began: float = field(default=0.0, init=False)
    _looked: int = field(default=0, init=False)
    """Number of looks done."""
    _num_anchored: int = field(default=0, init=False)
    _warm_again: set[str] = field(default_factory=set, init=False)
    _word_due: float = field(default=math.inf, init=False)
    """Time of the next word on the result, on the clock of the event loop."""
    _settled: list[Settled] = field(default_factory=list, init=False)
    """Cells that were stopped early, in their order."""
    _reopened: bool = field(default=False, init=False)
    """Whether candidates that had left are measured again, as there is time."""
    _is_over: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Measure until the plan is complete or the time is over.

        Raises:
            BackendError: a server failed. Everything measured is on disk.
            StorageError: the disk is full. Everything measured is on disk.
            Stopped: `progress` asked to stop. Everything measured is on disk.
        """
        self._number, self._word_due = self._directory.next_number(), self.budget.first_word
        self._began = asyncio.get_running_loop().time()
        self._settled = list(self._directory.read_settled())
        if self._plan.one_at_a_time:
            await self._measure_stretches()
        else:
            self._lanes = list(self._open_lanes((*self._plan.conditions, *self._directory.read().added)))
            self._choose_lane()
            self._note_estimate()
            self._report_progress()
            await self._race()
            await self._ask_anchors()
            await self._warm_up_again(self.experiment.clients)
        self._lanes, self._ahead = [], []
        self._note_estimate()

    def expect_seconds(self) -> float:
        """Return the seconds that the remaining work takes, at most the time left."""
        missing = (self._missing(self._plan.conditions, repeat) for repeat in range(1, self._plan.repeats + 1))
        return min(self.estimate.sum(chain(*missing)), max(0.0, self._left_s()))

    def _open_lanes(self, conditions: Iterable[Condition]) -> Iterator[_Lane]:
        turns = self._directory.read().turns
        for condition, workload in product(conditions, self._plan.workloads):
            lane = _Lane(condition=condition, place=(workload.name, condition.label))
            mine = [turn for turn in turns if (turn.workload, turn.condition) == lane.place]
            lane.blocks = len({turn.block_key for turn in mine})
            lane.prompts = lane.blocks * max(1, round(len(workload.prompts) / self._count_blocks(lane)))
            lane.seconds = sum(turn.took_s or 0.0 for turn in mine)
            yield lane

    def _count_blocks(self, lane: _Lane) -> int:
        """Return the paired blocks of one repetition of a lane."""
        workload = next(each for each in self._plan.workloads if each.name == lane.place[0])
        return len(blocks(workload, lane.condition, self._plan.turn_s))

    async def _race(self) -> None:
        """Measure block by block."""
        while not self._is_over:
            lane = self._choose_lane()
            if lane is None:
                if not await self._find_more():
                    return
                continue
            expected_s, left_s = self.estimate.sum(lane.queue[0]), self._left_s()
            is_last = expected_s > left_s
            shorter = (each for each in lane.queue if _SLOWER * self.estimate.sum(each) <= left_s)
            block = next(shorter, None) if is_last else lane.queue[0]
            if block is not None:
                lane.queue.remove(block)
                await self._measure_block(lane, block)
                await self._look(lane)
            if is_last:
                self._end_lane(lane, expected_s)

    def _choose_lane(self) -> _Lane | None:
        """Return where the next block is taken; None where nothing is left to ask."""
        ready = [lane for lane in self._lanes if not lane.is_closed and self._fill(lane)]
        if not ready:
            return None
        if few := self._keep_what_fits([lane for lane in ready if lane.blocks < FEWEST_PROMPTS]):
            return min(few, key=lambda lane: lane.blocks)
        if not (ready := [lane for lane in ready if not lane.is_closed]):
            return None
        spent: dict[str, list[float]] = {}
        for lane in ready:
            spent.setdefault(lane.condition.label, []).append(lane.seconds)
        load = min(spent, key=lambda each: sum(spent[each]) / len(spent[each]))
        return min((lane for lane in ready if lane.condition.label == load), key=lambda lane: lane.prompts)

    def _keep_what_fits(self, few: Sequence[_Lane]) -> list[_Lane]:
        """Close lanes where a machine became so slow that they keep others from the fewest blocks that decide."""

        def need_s(lane: _Lane) -> float:
            return (FEWEST_PROMPTS - lane.blocks) * self.estimate.sum(lane.queue[0])

        kept = sorted(few, key=need_s)
        is_known = all(lane.blocks for lane in kept)
        while is_known and len(kept) > 1 and sum(map(need_s, kept)) > _SLOWER * self._left_s():
            lane = kept.pop()
            self._end_lane(lane, need_s(lane), "the fewest blocks that can decide take")
        return kept

    def _fill(self, lane: _Lane) -> bool:
        """Plan the next blocks of a lane; return whether there are any: a prompt comes back only after all others."""
        while lane.is_stale or not lane.queue:
            missing = self._missing([lane.condition], lane.repeat, lane.place[0], most=_QUEUED)
            lane.queue, lane.is_stale = deque(list_blocks(missing)), False
            if not lane.queue:
                if lane.repeat == 1 and not lane.has_time and self._bring_back(lane):
                    continue
                if lane.repeat >= self._plan.repeats:
                    lane.is_closed = True
                    return False
                lane.repeat += 1
        return True

    def _end_lane(self, lane: _Lane, expected_s: float, what: str = "a block there takes") -> None:
        """Close a lane whose next blocks would not end in time, and say so where that is not the usual end."""
        lane.is_closed = True
        if lane.blocks < FEWEST_PROMPTS:
            reason = f"{what} {expected_s:.0f} s, but only {max(0.0, self._left_s()):.0f} s are left"
            what = f"more than {lane.blocks} paired blocks of {lane.place[0]} at {lane.place[1]}"
            self._leave_out(Omission(what=what, reason=reason))

    async def _measure_block(self, lane: _Lane, block: Sequence[Turn]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        self._progress.status(f"measuring {lane.place[0]} at {lane.place[1]}")
        is_whole = await self._take(block)
        lane.seconds += clock() - began
        if not is_whole:
            lane.is_stale = True
            return
        lane.blocks += 1
        lane.prompts += len(block[0].prompts)
        if self.experiment.cold and min(each.blocks for each in self._lanes) >= _WARMED:
            self.experiment.cold.clear()

    async def _look(self, lane: _Lane) -> None:
        """Look at what there is, as far as a look is due."""
        progress = self._find_progress()
        if self._plan.adaptive and lane.repeat == 1 and lane.blocks in RACE_LOOKS:
            self._race_there(lane)
        if self._looked < len(_LOOKS) and progress >= _LOOKS[self._looked]:
            while self._looked < len(_LOOKS) and progress >= _LOOKS[self._looked]:
                self._looked += 1
            await self._retake()
            if self._plan.adaptive:
                self._settle(progress)
                self._add_loads()
            if not self.budget.is_bounded:
                self._report_lead()
        if progress >= _ANCHORS_FROM:
            await self._ask_anchors()
            await self._retake()
        if asyncio.get_running_loop().time() > self._word_due:
            self._report_lead()
        self._report_progress()

    def _find_progress(self) -> float:
        """Return the share of the plan that is done: of its time, or of all that it asks."""
        asked = sum(lane.prompts for lane in self._lanes)
        sizes = {each.name: len(each.prompts) for each in self._plan.workloads}
        whole = self._plan.repeats * sum(sizes[lane.place[0]] for lane in self._lanes)
        spent = asyncio.get_running_loop().time() - self._began
        planned = self.budget.turns_end - self._began
        return max(asked / whole, spent / planned if planned > 0 else 1.0)

    def _race_there(self, lane: _Lane) -> None:
        """Let candidates leave the race on a workload under a load."""
        candidates = [name for name in self._list_candidates() if self._is_open(*lane.place, name)]
        if self._reopened or sum(len(self._list_open(each)) for each in self._lanes) < 2:
            return
        margin = get_thresholds(self._directory.read()).margin
        logs = find_race(self._directory.read(), lane.place, candidates)
        if not logs:
            return
        family = len(self._lanes) * len(self._list_candidates())
        ready = [each for each in self._lanes if not each.is_closed and self._fill(each)]
        block_s = sum(self.estimate.sum(each.queue[0]) for each in ready)
        blocks_left = self._left_s() / block_s if block_s and not lane.has_time else math.inf
        leavers = find_leavers(logs, margin=margin, blocks_left=blocks_left, family=family)
        for leaver in leavers:
            self._stop(lane, leaver.candidate, str(leaver.reason))
            self._progress.notice(Finding.info("left-race", _describe_leaver(leaver, lane.place)))
        left = logs.keys() - {each.candidate for each in leavers}
        if (
            self.budget.is_bounded
            and len(left) == 1
            and leads_surely(logs[next(iter(left))], margin=margin, family=family)
        ):
            self._stop(lane, next(iter(left)), "settled")

    def _settle(self, progress: float) -> None:
        """Stop the cells whose verdict stands, where others need the time."""
        open_ = {lane.place: self._list_open(lane) for lane in self._lanes}
        alone = {place for place, names in open_.items() if len(names) == 1}
        if not alone or (self.budget.is_bounded and sum(map(len, open_.values())) < 2):
            return

        def is_alone(workload: str, condition: str, candidate: str) -> bool:
            return (workload, condition) in alone and self._is_open(workload, condition, candidate)

        for comparison, pairs, _ in find_settled(self._directory.read(), is_alone):
            workload, condition, candidate = comparison.key
            planned = max(pairs + 1, round(pairs / progress))
            self._directory.add(
                CellLook(workload=workload, condition=condition, candidate=candidate, pairs=pairs, planned=planned)
            )
        for comparison, _, is_settled in find_settled(self._directory.read(), is_alone):
            if is_settled:
                lane = next(each for each in self._lanes if each.place == comparison.key[:2])
                self._stop(lane, comparison.candidate, "settled")

    def _stop(self, lane: _Lane, candidate: str, reason: str) -> None:
        place = {"workload": lane.place[0], "condition": lane.place[1], "candidate": candidate}
        self._add_settled(Settled(**place, passes=lane.repeat - 1, blocks=lane.blocks, reason=reason))
        lane.is_stale = True

    def _add_settled(self, cell: Settled) -> None:
        self._directory.add(cell)
        self._settled.append(cell)

    async def _find_more(self) -> bool:
        """Return whether there is more to measure, when all lanes are through."""
        if await self._retake():
            return True
        if self._plan.adaptive and self._add_loads():
            return True
        if self._reopened or not self.budget.is_bounded or not self._settled:
            return False
        # Whatever time is left makes sure of what leads, and shows servers that were slow for a while.
        self._reopened = True
        for lane in self._lanes:
            lane.is_closed, lane.is_stale, lane.repeat = False, True, 1
        return True

    def _add_loads(self) -> bool:
        """Add loads around each crossover, where there is time; return whether any was added."""
        run = self._directory.read()
        if len(run.added) >= _MOST_ROUNDS or not (found := next_conditions(run)):
            return False
        lanes = list(self._open_lanes(found))
        missing = (self._missing([lane.condition], 1, lane.place[0], most=FEWEST_PROMPTS) for lane in lanes)
        if self._left_s() < self.estimate.sum(chain(*missing)):
            loads = ", ".join(condition.label for condition in found)
            reason = f"only {max(0.0, self._left_s()):.0f} s are left"
            self._leave_out(Omission(what=f"the loads {loads}, to search for a crossover", reason=reason))
            return False
        self._add(found)
        self._lanes += lanes
        return True

    def _add(self, found: Mapping[Condition, Container[tuple[str, str]]]) -> None:
        """Record which loads are added, and that cells away from their crossover are not measured there."""
        for condition, near in found.items():
            self._directory.add(condition)
            for workload, arm in product(self._plan.workloads, self._plan.arms[1:]):
                if (workload.name, arm.name) not in near and arm.name not in self.without:
                    place = {"workload": workload.name, "condition": condition.label, "candidate": arm.name}
                    self._add_settled(Settled(**place, passes=0, blocks=0))

    def _is_late(self, block: Sequence[Turn]) -> bool:
        """Return whether there may be no time to warm the servers up again after the next block."""
        if not self._lanes:
            return False
        ahead = [block, *(lane.queue[0] for lane in self._lanes if lane.queue and not lane.is_closed)]
        needed_s = ROUNDS_AGAIN * sum(map(self._expect_round, self.fastest)) + 2 * max(map(self.estimate.sum, ahead))
        progress = self._find_progress()
        return progress >= _ANCHORS_FROM or (progress >= _LOOKS[-1] and self._left_s() < needed_s)

    def _expect_round(self, arm: str) -> float:
        return _SLOWER * STEPS_AGAIN * self.fastest[arm][0] * self.estimate.find_slowdown(arm)

    async def _warm_up_again(self, arms: Iterable[str], ahead: Sequence[Turn] = ()) -> None:
        """Answer warm-up prompts again: what slowed a server down before its first turns shows in nothing else.

        A limit may recover while others are asked, so an arm is asked directly after a turn of its own. Each gets the
        same share of the time that the turns ahead leave: a comparison needs both.
        """
        present = self.fastest.keys() & self.experiment.clients.keys() - self.without - self._warm_again
        for arm in [arm for arm in arms if arm in present and self._done]:
            round_s = sum(map(self._expect_round, present))
            left_s = self._left_s() - self.estimate.sum(ahead)
            if rounds := int(max(0.0, min(ROUNDS_AGAIN, left_s / round_s if round_s else math.inf))):
                self._warm_again.add(arm)
                present.remove(arm)
                with suppress(BackendError):
                    early = self.fastest[arm]
                    late_s = await warm_up_again(self.experiment.clients[arm], self._plan, rounds, early)
                    for seconds, is_late in ((early[0], False), (late_s, True)):
                        if seconds:
                            self._directory.add(WarmPace(arm=arm, seconds=seconds, is_late=is_late))

    async def _ask_anchors(self) -> None:
        """Ask the first prompts again, in the last tenth of the time, or when no block fits any more."""
        if not self.budget.is_bounded:
            return
        lanes = [
            lane
            for lane in self._lanes
            if lane.condition.concurrency == 1 and lane.repeat == 1 and lane.prompts >= _ANCHORS_OF
        ]
        while lanes and self._num_anchored < _ANCHORS:
            self._num_anchored += 1
            for lane in lanes:
                again = self._missing([lane.condition], 2, lane.place[0], most=1) if self._plan.repeats > 1 else []
                if again and self.estimate.sum(again) <= self._left_s():
                    await self._take(again)

    def _list_candidates(self) -> list[str]:
        return [arm.name for arm in self._plan.arms[1:] if arm.name not in self.without]

    def _list_open(self, lane: _Lane) -> list[str]:
        return [] if lane.is_closed else [name for name in self._list_candidates() if self._is_open(*lane.place, name)]

    def _is_open(self, workload: str, condition: str, candidate: str) -> bool:
        return (workload, condition, candidate) not in {each.key for each in self._list_settled()}

    def _list_settled(self) -> Sequence[Settled]:
        """Return the cells that are not measured any more."""
        back = {lane.place for lane in self._lanes if lane.has_time}
        left = [each for each in self._settled if each.reason != LeaveReason.NO_TIME or each.key[:2] not in back]
        if not self._reopened:
            return left
        return [each for each in left if each.reason != "settled" and not self._leads(each)]

    def _bring_back(self, lane: _Lane) -> bool:
        """Let those that left a lane for lack of time answer the prompts that they have not had, which tell more than
        others again; return whether there are any."""
        lane.has_time = lane.is_stale = True
        left = dict.fromkeys(each.candidate for each in self._settled if each.key[:2] == lane.place)
        missing = {turn.arm for turn in self._missing([lane.condition], lane.repeat, lane.place[0])}
        if back := [name for name in left if name in missing]:
            text = f"{', '.join(back)} on {lane.place[0]} at {lane.place[1]}: measured on, as there is time."
            self._progress.notice(Finding.info("left-race", text))
        return bool(back)

    def _leads(self, cell: Settled) -> bool:
        """Return whether a cell was the last that left its lane: then it was ahead of all others there."""
        lane = [each for each in self._settled if each.key[:2] == cell.key[:2]]
        others = {each.candidate for each in lane} >= set(self._list_candidates())
        return others and lane[-1].key == cell.key and bool(cell.blocks)

    async def _measure_stretches(self) -> None:
        """Measure repetition by repetition, each arm's part of it in one stretch: one server is up at a time."""
        conditions = (*self._plan.conditions, *self._directory.read().added)
        for repeat in range(1, self._plan.repeats + 1):
            missing = self._missing(conditions, repeat)
            if not missing:
                continue
            later = [
                turn for each in range(repeat + 1, self._plan.repeats + 1) for turn in self._missing(conditions, each)
            ]
            self._ahead = [*missing, *later]
            self._note_estimate()
            # The server that was warmed up last is up still: it begins.
            arms = [arm.name for arm in reversed(self._plan.arms)]
            turns = join_stretches(missing, arms, repeat)
            if (expected_s := self.estimate.sum(turns)) > self._left_s():
                kept = self._shorten(turns)
                reason = f"it would take {expected_s:.0f} s, but only {max(0.0, self._left_s()):.0f} s are left"
                share = 1 - len(kept) / len(turns)
                self._leave_out(Omission(what=f"{share:.0%} of repetition {repeat}", reason=reason))
                turns = kept
            if not turns:
                return
            self._progress.status(f"measuring repetition {repeat}")
            self._report_progress(turns)
            await self._take(turns)
            self.experiment.cold.clear()
            self._ahead = later
            if repeat < self._plan.repeats:
                self._report_lead()
        await self._retake()

    def _shorten(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return as much of a repetition as fits, the same part of each arm's stretch."""
        blocks = list(dict.fromkeys(turn.block_key for turn in turns))
        while blocks:
            blocks = blocks[: int(0.9 * len(blocks))]
            kept = [turn for turn in turns if turn.block_key in set(blocks)]
            if self.estimate.sum(kept) <= self._left_s():
                return kept
        return []

    def _missing(
        self, conditions: Sequence[Condition], repeat: int, workload: str | None = None, *, most: int | None = None
    ) -> list[Turn]:
        """Return the turns of a repetition that are missing, without the candidates that were left out.

        Args:
            workload: which; None for all.
            most: blocks, after which no more are looked for.
        """
        run = self._directory.read()
        planned = self._plan_repetition(conditions, repeat, workload)
        left = (leave_out(block, self.without) for block in list_blocks(planned))
        askable = ([turn for turn in block if self._may_ask(turn)] for block in left)
        return list(chain(*islice(find_missing(askable, run, returned=self.returned), most)))

    def _may_ask(self, turn: Turn) -> bool:
        return self.experiment.has(turn) or self.experiment.may_ask(turn)

    def _plan_repetition(
        self, conditions: Sequence[Condition], repeat: int, workload: str | None = None
    ) -> Iterator[Turn]:
        run = self._directory.read()
        settled = self._list_settled()
        turns = plan_turns(self._plan, conditions, repeat, added=run.added, settled=settled)
        return (turn for turn in turns if workload in (None, turn.workload))

    async def _take(self, block: Sequence[Turn]) -> bool:
        """Measure a paired block, and learn how long its turns take; return whether no server broke."""
        clock, is_late = asyncio.get_running_loop().time, self._is_late(block)
        for place, turn in enumerate(block, 1):
            check_stop(self._progress)
            await self.experiment.clients[turn.arm].backend.wake()
            began = clock()
            expected_s = self.estimate.expect_first(turn)
            number, self._number = self._number, self._number + 1
            try:
                is_taken = await self.experiment.take(replace(turn, number=number), expected_s=expected_s)
            except BackendError as error:
                if self.returns is None:
                    raise
                await self.returns.wait(self.experiment.clients[turn.arm], error, "a turn")
                return False
            if is_taken:
                self.estimate.learn(turn, clock() - began)
                self._done += 1
                await self._warm_up_again([turn.arm] if is_late else [], ahead=block[place:])
        await self._warm_up_again(self.experiment.clients if is_late else [])
        return True

    async def _retake(self) -> bool:
        """Take disturbed turns again, up to a limit; return whether there were any.

        Where one server is up at a time, once at the end: that takes one more start of each arm.
        """
        is_once, run = self._plan.one_at_a_time, self._directory.read()
        lost = find_lost(run, [condition.label for condition in run.conditions], self._list_settled())
        if not lost:
            return False
        wanted = {each.key for each in lost}
        repeats = sorted({key[2] for key in wanted})
        # Cells that left the race take part where too few of their turns are left.
        settled = [replace(each, passes=repeats[-1]) if each.blocks else each for each in self._list_settled()]
        plans = (plan_turns(self._plan, run.conditions, each, added=run.added, settled=settled) for each in repeats)
        turns = [turn for turn in chain(*plans) if turn.block_key in wanted and turn.arm not in self.without]
        blocks = plan_retakes(lost, turns, most=math.ceil(_RETAKEN * len(run.turns)))
        while blocks and self.estimate.sum(chain(*blocks)) > self._left_s():
            blocks.pop()
        if not blocks:
            return False
        count = sum(map(len, blocks))
        self._progress.status(f"repeating {count} disturbed turns")
        if is_once:
            number = self._plan.repeats + 1
            blocks = [join_stretches(chain(*blocks), [arm.name for arm in reversed(self._plan.arms)], number)]
        for block in blocks:
            if is_once or self.estimate.sum(block) <= self._left_s():
                await self._take(block)
        return True

    def _report_lead(self) -> None:
        """Say what the result is so far."""
        clock = asyncio.get_running_loop().time
        began = clock()
        lead = describe_lead(self._directory.read())
        self.budget.look_s = clock() - began
        self._word_due = clock() + self.budget.patience_s * (1 if lead is None else _WORDS_APART)
        if lead is not None:
            left_s = self._note_estimate()
            text = f"{lead} The verdict follows at the end, in {left_s / 60:.1f} min." if left_s else lead
            self._progress.notice(Finding.info("result-so-far", text))

    def _leave_out(self, omission: Omission) -> None:
        """Record and say what is not measured for lack of time, once."""
        if omission in self._directory.read().omissions:
            return
        self._directory.add(omission)
        self._progress.notice(Finding.info("left-out", f"Left out: {omission.what}: {omission.reason}."))

    def _left_s(self) -> float:
        return self.budget.turns_end - asyncio.get_running_loop().time()

    def _note_estimate(self) -> float:
        """Write down how many seconds the turns ahead are going to take, and return them."""
        at_s = asyncio.get_running_loop().time() - self.budget.began
        ahead, _, left_s = self._look_ahead()
        if ahead or self._done:
            self._directory.add(Estimate(at_s=at_s, done=self._done, ahead=ahead, left_s=left_s))
        return left_s

    def _look_ahead(self) -> tuple[int, int, float]:
        """Return about how many turns and requests are ahead, and their seconds: as long as there is time, or all that
        is left."""
        if ahead := self._ahead:
            seconds = min(self.estimate.sum(ahead), max(0.0, self._left_s()))
            return len(ahead), sum(len(turn.prompts) for turn in ahead), seconds
        lanes = [lane for lane in self._lanes if not lane.is_closed and self._fill(lane)]
        block_s = sum(sum(map(self.estimate.sum, lane.queue)) / len(lane.queue) for lane in lanes)
        if not lanes or not block_s:
            return 0, 0, 0.0
        missing = max(self._plan.repeats * self._count_blocks(lane) - lane.blocks for lane in lanes)
        rounds = max(1.0, min(float(missing), self._left_s() / block_s))
        turns = sum(len(lane.queue[0]) for lane in lanes)
        requests = sum(len(turn.prompts) for lane in lanes for turn in lane.queue[0])
        return round(rounds * turns), round(rounds * requests), rounds * block_s

    def _report_progress(self, turns: Sequence[Turn] | None = None) -> None:
        """Report how much there is to do: these turns, or what is ahead."""
        if turns is None:
            _, requests, left_s = self._look_ahead()
        else:
            requests, left_s = sum(len(turn.prompts) for turn in turns), self.estimate.sum(turns)
        self._progress.plan(self.experiment.num_answers + requests, left_s)
        self._progress.step(self.experiment.num_answers)

    @property
    def _progress(self) -> Progress:
        return self.experiment.progress

    @property
    def _plan(self) -> RunPlan:
        return self.experiment.plan

    @property
    def _directory(self) -> RunDirectory:
        return self.experiment.directory


_WORDS_APART = 5
"""Times the patience between two words on the result."""


def _describe_leaver(leaver: Leaver, place: Place) -> str:
    """Return why a candidate is not measured any more, in a sentence."""
    where = f"{leaver.candidate} on {place[0]} at {place[1]}"
    so_far = f"{where}: left out after {leaver.count} prompts at {leaver.ratio:.2f}x"
    if leaver.reason is LeaveReason.NO_GAIN:
        return f"{so_far}: its interval leaves no room for a gain of practical size."
    if leaver.reason is LeaveReason.BEHIND:
        return f"{so_far}: {leaver.best} is {leaver.lead:.2f}x as fast on the same prompts."
    if leaver.reason is LeaveReason.PAYS:
        return f"{so_far}: it pays with certainty, but {leaver.best} is ahead so far."
    return f"{so_far}: time is short, and {leaver.best} was ahead ({leaver.lead:.2f}x). This is not a verdict."
