"""The order of turns: the arms alternate, so that drift of the machine affects all of them alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from draftwise.core import Condition, Prompt, Run, RunPlan, Settled, Workload
from draftwise.runs.blocks import Block, blocks, share_out, split_once

__all__ = ["Turn", "arm_order", "join_stretches", "list_planned", "plan_turns"]


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
    """Beside each prompt, empty for none: how often it came before in this turn."""
    attempt: int = 0
    """How often turns of its block were taken before, because something disturbed them."""
    background: tuple[Prompt, ...] | None = None
    """Prompts that only keep the load up, each of them asked once; None: those of `prompts`, again and again."""

    @property
    def key(self) -> tuple[str, str, str, int, int, int]:
        """What makes it the same turn in another session."""
        return (self.arm, self.workload, self.condition.label, self.repeat, self.block, self.attempt)

    @property
    def place(self) -> tuple[str, str]:
        """Workload and label of the condition."""
        return self.workload, self.condition.label

    @property
    def stretch(self) -> tuple[int, int]:
        """Repetition and attempt: with one server up at a time, each arm takes the turns of one without a restart."""
        return 0 if self.attempt else self.repeat, self.attempt

    @property
    def block_key(self) -> tuple[str, str, int, int]:
        """Workload, label of the condition, repetition and block: what it shares with the turns it is paired with."""
        return self.workload, self.condition.label, self.repeat, self.block


def arm_order(arms: Sequence[str], block: int, repeat: int) -> list[str]:
    """Return the arms in their order for a block.

    The start rotates with block and repeat, so that over as many repeats, or as many blocks, as there are arms each
    arm has each position once; every other round of blocks runs backwards, so that no arm always follows the same one.
    """
    start = (block + repeat) % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if block // len(arms) % 2 else order


def join_stretches(turns: Iterable[Turn], arms: Sequence[str], number: int) -> list[Turn]:
    """Return turns arm by arm, forwards and backwards in turn (A B, B A ...): each arm once.

    Args:
        number: of the repetition, from 1; what is taken again after the last one counts as another.
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

    Candidates that could remember answers have blocks of their own, whose prompts they have never been asked
    (`runs.blocks`); in these no prompt is sent twice, by no arm, so that all do the same.

    Args:
        plan: of the run.
        conditions: some of its own, or some of `added`.
        repeat: which repetition, from 1.
        added: all conditions that were added to the plan so far, in that order.
        settled: cells that were stopped early; they are left out of later repetitions, and so is the baseline where
            all candidates are.
        number: of the first turn.
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
    """Return, by arm, workload and condition, the numbers of the blocks of each repetition in which it takes part."""
    planned: dict[tuple[str, str, str], dict[int, set[int]]] = {}
    for repeat in range(1, run.plan.repeats + 1):
        for turn in plan_turns(run.plan, run.conditions, repeat, added=run.added, settled=run.settled):
            cell = planned.setdefault((turn.arm, turn.workload, turn.condition.label), {})
            cell.setdefault(repeat, set()).add(turn.block)
    return planned
