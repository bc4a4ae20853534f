"""What of a run shows whether the servers of a comparison drafted: counters, configs, what their streams look like."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from draftwise.core import Answer, Counters, Run
from draftwise.decide.comparison.cell import Cell, has_synthetic_acceptance
from draftwise.decide.validity.servers import find_resolved_config
from draftwise.decide.validity.window.server import DraftingEvidence
from draftwise.facts.server_metrics import counts_drafts

__all__ = ["gather_drafting_evidence"]


def gather_drafting_evidence(run: Run, cell: Cell) -> DraftingEvidence:
    """Return the evidence on the two arms of a cell."""
    arm = cell.candidate
    counters = [turn.counters for turn in run.turns if turn.arm == arm]
    seen, usual = (_measure_events(cell.requests[each]) for each in (arm, cell.baseline))
    measured = {turn.condition for turn in run.turns if turn.arm == arm}
    greedy = any(each.temperature == 0 and each.label in measured for each in run.conditions)
    return DraftingEvidence(
        baseline=cell.counters[cell.baseline],
        candidate=cell.counters[arm],
        elsewhere=reduce(add, counters, Counters(generation_tokens=0)),
        resolved=find_resolved_config(run, arm),
        is_counted=_is_counted(run, arm, counters),
        text_per_event=seen / usual if usual else None,
        outputs_compared=greedy and not has_synthetic_acceptance(run, arm),
    )


def _is_counted(run: Run, arm: str, counters: Sequence[Counters]) -> bool:
    """Return whether an arm's drafts would be counted; a server that was read once is held to what it counts."""
    engine = run.context.server(arm).metric_names
    readable = any(each.generation_tokens is not None for each in counters)
    return readable and (engine is None or counts_drafts(engine))


def _measure_events(answers: Sequence[Answer]) -> float:
    """Return the mean characters of an event that brought tokens, 0 without any."""
    whole = [answer for answer in answers if answer.error is None]
    events = sum(len(answer.timing.chunks) for answer in whole)
    return sum(len(answer.text) for answer in whole) / events if events else 0.0
