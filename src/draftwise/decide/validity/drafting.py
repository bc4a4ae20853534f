"""What of a run shows whether the servers of a comparison drafted: counters, configs, what their streams look like."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.core import Answer, Run
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.comparison.differences import has_synthetic_acceptance
from draftwise.decide.validity.arms import find_resolved_config, sum_all_counters
from draftwise.decide.validity.window.speculation import DraftingEvidence
from draftwise.facts.server_metrics import counts_drafts

__all__ = ["gather_drafting_evidence"]


def gather_drafting_evidence(run: Run, cell: Cell) -> DraftingEvidence:
    """Return the evidence on the two arms of a cell."""
    arm = cell.candidate
    seen = [_measure_events(cell.list_requests(each)) for each in (arm, cell.baseline)]
    greedy = {turn.condition for turn in run.turns if turn.arm == arm} & {
        each.label for each in run.conditions if each.temperature == 0
    }
    return DraftingEvidence(
        baseline=cell.sum_counters(cell.baseline),
        candidate=cell.sum_counters(arm),
        elsewhere=sum_all_counters(run, arm),
        resolved=find_resolved_config(run, arm),
        is_counted=_is_counted(run, arm),
        text_per_event=seen[0] / seen[1] if seen[1] else None,
        outputs_compared=bool(greedy) and not has_synthetic_acceptance(run, arm),
    )


def _is_counted(run: Run, arm: str) -> bool:
    """Return whether an arm's drafts would be counted; a server that was read once is held to what it counts."""
    engine = run.context.server(arm).metric_names
    readable = any(turn.counters.generation_tokens is not None for turn in run.turns if turn.arm == arm)
    return readable and (engine is None or counts_drafts(engine))


def _measure_events(answers: Iterable[Answer]) -> float:
    """Return the mean characters of an event that brought tokens, 0 without any."""
    whole = [answer for answer in answers if answer.error is None]
    events = sum(len(answer.timing.chunks) for answer in whole)
    return sum(len(answer.text) for answer in whole) / events if events else 0.0
