"""The order of turns, in which arms alternate, and the blocks in which a workload is sent under a load.

Blocks take the prompts of a workload in the order in which they were drawn. A recording is replayed in windows of time,
in the order in which their first prompts were drawn.

Arms that could remember answers have separate blocks: no prompt is in two of them, and none returns in a later
repetition. The prompts of a workload are distributed over the conditions. Each condition first gets its minimum number
of blocks, starting with the smallest blocks, so a short workload is measured under as many conditions as possible. The
rest goes, block by block, to the condition with the fewest prompts. Conditions that a sweep adds later get the unused
prompts of cells that stopped early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from draftwise.core import Condition, OpenLoop, Prompt, Replay, Run, RunPlan, Settled, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A block of prompts that one arm answers under one condition while the other servers are idle."""

    number: int
    arm: str
    workload: str
    repeat: int
    prompts: tuple[Prompt, ...]
    condition: Condition = field(default_factory=Condition)
    block: int = 0
    copies: tuple[int, ...] = ()
    """Earlier occurrences of each prompt in this turn; empty without any."""
    attempt: int = 0
    """How often turns of its block were taken before and disturbed."""
    background: tuple[Prompt, ...] | None = None
    """Prompts that only keep up the load, each sent once; None for those of `prompts`, repeatedly."""

    @property
    def key(self) -> tuple[str, str, str, int, int, int]:
        """Identifies the turn across sessions."""
        return (self.arm, self.workload, self.condition.label, self.repeat, self.block, self.attempt)

    @property
    def place(self) -> tuple[str, str]:
        """Workload and label of the condition."""
        return self.workload, self.condition.label

    @property
    def stretch(self) -> tuple[int, int]:
        """Repetition and attempt; with one server at a time, an arm takes all turns of a stretch without a restart."""
        return 0 if self.attempt else self.repeat, self.attempt

    @property
    def block_key(self) -> tuple[str, str, int, int]:
        """Workload, label of the condition, repetition and block: shared with the turns paired with it."""
        return self.workload, self.condition.label, self.repeat, self.block


def arm_order(arms: Sequence[str], block: int, repeat: int) -> list[str]:
    """Return the arms in their order for a block.

    The start rotates with block and repeat, so that over as many repeats or blocks as there are arms, each arm has
    each position once. Every other round of blocks runs backwards, so that no arm always follows the same one.
    """
    start = (block + repeat) % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if block // len(arms) % 2 else order


def join_stretches(turns: Iterable[Turn], arms: Sequence[str], number: int) -> list[Turn]:
    """Return turns arm by arm, each arm once, alternately forwards and backwards (A B, B A ...).

    Args:
        number: number of the repetition, from 1; turns retaken after the last one count as another repetition.
    """
    order = {arm: place if number % 2 else -place for place, arm in enumerate(arms)}
    return sorted(turns, key=lambda turn: order[turn.arm])


def plan_turns(
    plan: RunPlan,
    conditions: Sequence[Condition],
    repeat: int,
    *,
    added: Sequence[Condition] = (),
    settled: Sequence[Settled] = (),
    number: int = 0,
) -> Iterator[Turn]:
    """Yield the turns of one repetition of all workloads under the conditions.

    Candidates that could remember answers have separate blocks (`Block`). Every arm sends each prompt of these only
    once.

    Args:
        conditions: conditions of the plan or of `added`.
        repeat: number of the repetition, from 1.
        added: all conditions added to the plan so far, in order.
        settled: cells that were stopped early; later repetitions leave them out, and the baseline too if no
            candidate is left.
        number: number of the first turn.
    """
    baseline = plan.arms[0].name
    for condition in conditions:
        for workload in plan.workloads:
            for block, candidates, once in _find_parts(plan, workload, condition, repeat, added, settled):
                prompts, background = split_once(block, condition) if once else (block.prompts, None)
                for arm in arm_order([baseline, *candidates], block.number, repeat):
                    yield Turn(
                        number=number,
                        arm=arm,
                        workload=workload.name,
                        condition=condition,
                        repeat=repeat,
                        block=block.number,
                        prompts=prompts,
                        copies=() if once else block.copies,
                        background=background,
                    )
                    number += 1


def _find_parts(
    plan: RunPlan,
    workload: Workload,
    condition: Condition,
    repeat: int,
    added: Sequence[Condition],
    settled: Sequence[Settled],
) -> Iterator[tuple[Block, Sequence[str], bool]]:
    """Yield the blocks of a repetition, each with the candidates that take part and whether it asks no prompt twice.

    A block that is the same for those that could remember and those that could not (one prompt for a single stream)
    is answered by all of them, so that the baseline answers it once.
    """
    ended = {each.key for each in settled if each.passes < repeat}
    left = [arm.name for arm in plan.arms[1:] if (workload.name, condition.label, arm.name) not in ended]
    forgetting = [name for name in left if name not in plan.asked_once]
    new: dict[int, Block] = {}
    if len(forgetting) < len(left):
        dealt = share_out(plan, workload, added, settled).get((condition.label, repeat), ())
        new = {block.number: block for block in dealt}
    for block in blocks(workload, condition, plan.turn_s) if forgetting else ():
        once = new.pop(block.number, None) is not None
        yield block, left if once else forgetting, once
    for block in new.values():
        yield block, [name for name in left if name in plan.asked_once], True


def list_planned(run: Run) -> dict[tuple[str, str, str], dict[int, set[int]]]:
    """Return, by (arm, workload, condition), the numbers of its blocks in each repetition."""
    planned: dict[tuple[str, str, str], dict[int, set[int]]] = {}
    for repeat in range(1, run.plan.repeats + 1):
        for turn in plan_turns(run.plan, run.conditions, repeat, added=run.added, settled=run.settled):
            cell = planned.setdefault((turn.arm, turn.workload, turn.condition.label), {})
            cell.setdefault(repeat, set()).add(turn.block)
    return planned


_BLOCK_PER_STREAM = 4
"""Requests per stream of a turn: enough for each stream to meet the others at all stages of their answers."""
_FEWEST_BLOCKS = 2
"""Blocks of a condition: a single one hides what its requests have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a workload that each arm answers in one turn."""

    number: int
    prompts: tuple[Prompt, ...]
    copies: tuple[int, ...]
    """Earlier occurrences of each prompt in this block."""


Shares = Mapping[tuple[str, int], tuple[Block, ...]]
"""Blocks by label of the condition and repetition; left out without blocks."""


def blocks(workload: Workload, condition: Condition, turn_s: float) -> list[Block]:
    """Return the parts of a workload under a condition.

    A block has one prompt for a single stream, else as many as keep up the load for a while; a workload that is too
    short for that is repeated. For a recording, blocks are windows as long as a turn.
    """
    if isinstance(condition.load, Replay):
        windows = _list_windows(workload, condition.load, turn_s)
        return [Block(number=at, prompts=each, copies=(0,) * len(each)) for at, each in enumerate(windows)]
    size = _count_requests(workload, condition, turn_s)
    rounds = math.ceil(size / len(workload.prompts))
    requests = [(prompt, copy) for copy in range(rounds) for prompt in workload.prompts]
    wanted = max(len(workload.prompts), size)
    return [
        Block(number=number, prompts=tuple(prompt for prompt, _ in part), copies=tuple(copy for _, copy in part))
        for number, part in enumerate(_parts(requests[:wanted], size))
    ]


_FEWEST_WINDOWS = 4
"""Turns that a recording has to be longer than, to be cut into windows."""


def _list_windows(workload: Workload, load: Replay, turn_s: float) -> list[tuple[Prompt, ...]]:
    """Return a recording as windows, each with its prompts in order of arrival.

    Requests of one window share what the server is doing; windows are what is drawn. One that is cut off, at the end of
    what was kept of a recording, has too few requests for its rate and is left out where others are there.
    """
    prompts = sorted(workload.prompts, key=lambda each: each.arrival_s or 0.0)
    times = [each.arrival_s or 0.0 for each in prompts]
    length_s = turn_s * load.speed
    if not prompts or times[-1] - times[0] < _FEWEST_WINDOWS * length_s:
        return [tuple(prompts)]
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    windows: dict[tuple[int, int], list[Prompt]] = {}
    for prompt, time in zip(prompts, times, strict=True):
        stretch = 0 if prompt.origin is None else prompt.origin.stretch
        begin = begins.setdefault(stretch, time)
        ends[stretch] = time
        windows.setdefault((stretch, int((time - begin) / length_s)), []).append(prompt)
    whole = {
        place: window
        for place, window in windows.items()
        if place[1] == 0 or begins[place[0]] + (place[1] + 1) * length_s <= ends[place[0]]
    }
    drawn = {prompt.id: at for at, prompt in enumerate(workload.prompts)}
    return [tuple(each) for each in sorted(whole.values(), key=lambda each: min(drawn[prompt.id] for prompt in each))]


def _parts(requests: list[tuple[Prompt, int]], size: int) -> Iterator[Sequence[tuple[Prompt, int]]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _count_requests(workload: Workload, condition: Condition, turn_s: float) -> int:
    """Return the requests of a whole block; of a recording those of its largest window."""
    if condition.concurrency is not None:
        return 1 if condition.concurrency == 1 else _BLOCK_PER_STREAM * condition.concurrency
    if isinstance(condition.load, OpenLoop):
        return _arrivals_within(condition.load, turn_s)
    if isinstance(condition.load, Replay):
        return max((len(each) for each in _list_windows(workload, condition.load, turn_s)), default=0)
    return len(workload.prompts)


def _arrivals_within(load: OpenLoop, turn_s: float) -> int:
    """Return the expected arrivals of a turn: of all phases, the endless one taking `turn_s`."""
    expected = sum(
        (phase.start_per_s + phase.end_per_s) / 2 * (turn_s if phase.duration_s is None else phase.duration_s)
        for phase in load.phases
    )
    return max(1, round(expected))


def split_once(block: Block, condition: Condition) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return the prompts of a block to measure, and those that only keep up the load, if none may be sent twice.

    A quarter of the block keeps up the load after the measured ones. In a closed loop, a quarter, one per stream, also
    precedes them (the first of those returned). A single stream and a recording need none.
    """
    prompts = block.prompts
    if condition.concurrency == 1 or isinstance(condition.load, Replay):
        return prompts, ()
    quarter = len(prompts) // 4
    begin, end = (0 if condition.concurrency is None else quarter), len(prompts) - quarter
    return prompts[begin:end], prompts[:begin] + prompts[end:]


def count_needed(workload: Workload, condition: Condition, turn_s: float) -> int:
    """Return how many separate prompts a condition needs if none may be sent twice."""
    size = _count_requests(workload, condition, turn_s)
    return size if isinstance(condition.load, Replay) else _FEWEST_BLOCKS * size


def share_out(
    plan: RunPlan, workload: Workload, added: Sequence[Condition] = (), settled: Sequence[Settled] = ()
) -> Shares:
    """Return the blocks of arms that could remember answers.

    Args:
        added: conditions that were added to the plan, in order.
        settled: cells that were stopped early.
    """
    used = _ids_of_earlier(plan, workload)
    shares: dict[tuple[str, int], tuple[Block, ...]] = {}
    for group in (plan.conditions, *((condition,) for condition in added)):
        for condition, dealt in _deal(plan, workload, group, used).items():
            if dealt:
                # With one server up at a time a repetition is one paired block: each gets prompts of its own.
                rounds = min(plan.repeats, len(dealt)) if plan.one_at_a_time else 1
                for number in range(rounds):
                    shares[condition.label, number + 1] = tuple(dealt[number::rounds])
                used |= {
                    prompt.id
                    for block in dealt[: _count_begun(plan, workload, condition, settled)]
                    for prompt in block.prompts
                }
    return shares


def _ids_of_earlier(plan: RunPlan, workload: Workload) -> set[str]:
    """Return the ids of prompts that an earlier workload of the plan asks, too.

    A workload that repeats a prompt itself asks it as often: that is its traffic.
    """
    earlier = plan.workloads[: plan.workloads.index(workload)]
    known = {prompt.content for each in earlier for prompt in each.prompts}
    return {prompt.id for prompt in workload.prompts if prompt.content in known}


def _count_begun(plan: RunPlan, workload: Workload, condition: Condition, settled: Sequence[Settled]) -> int | None:
    """Return how many of its blocks the arms that could remember answers take part in; None for all."""
    ended = {each.key: 0 if each.passes == 0 and each.blocks is None else each.blocks for each in settled}
    begun = [ended.get((workload.name, condition.label, arm)) for arm in plan.asked_once]
    return None if None in begun else max((each for each in begun if each is not None), default=0)


def _deal(
    plan: RunPlan, workload: Workload, conditions: Sequence[Condition], used: Collection[str]
) -> dict[Condition, list[Block]]:
    """Return the blocks of each condition; no prompt is in two of them, and no used one in any."""
    free = [prompt for prompt in workload.prompts if prompt.id not in used]
    dealt = {}
    for condition, count in _count_blocks(plan, workload, conditions, len(free)).items():
        size = _count_requests(workload, condition, plan.turn_s)
        others = blocks(workload, condition, plan.turn_s)
        if isinstance(condition.load, Replay):
            left = {prompt.id for prompt in free}
            parts = [each.prompts for each in others if left.issuperset(_ids(each.prompts))][:count]
        else:
            parts = [tuple(free[start : start + size]) for start in range(0, count * size, size)]
        taken = {prompt.id for part in parts for prompt in part}
        free = [prompt for prompt in free if prompt.id not in taken]
        dealt[condition] = _number(parts, others)
    return dealt


def _number(parts: Sequence[tuple[Prompt, ...]], others: Sequence[Block]) -> list[Block]:
    """Return parts of a workload as blocks, numbered after those of the other arms, or as the one that is the same."""
    known = {_ids(block.prompts): block.number for block in others}
    return [
        Block(number=known.get(_ids(part), len(others) + place), prompts=part, copies=(0,) * len(part))
        for place, part in enumerate(parts)
    ]


def _ids(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    return tuple(prompt.id for prompt in prompts)


def _count_blocks(
    plan: RunPlan, workload: Workload, conditions: Sequence[Condition], free: int
) -> dict[Condition, int]:
    """Return how many blocks each condition gets of the free prompts; conditions that get none are left out."""
    sizes = {each: _count_requests(workload, each, plan.turn_s) for each in conditions}
    counts: dict[Condition, int] = {}
    for condition in sorted(conditions, key=lambda each: sizes[each]):
        if (needed := count_needed(workload, condition, plan.turn_s)) <= free:
            counts[condition] = needed // sizes[condition]
            free -= needed
    while fitting := [each for each in counts if sizes[each] <= free]:
        # Of two that have had equally many, the one with larger blocks: there may be room for small ones later.
        poorest = min(fitting, key=lambda each: (counts[each] * sizes[each], -sizes[each]))
        counts[poorest] += 1
        free -= sizes[poorest]
    return counts
