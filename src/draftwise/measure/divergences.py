"""Requests both servers' log-probabilities at the position where two greedy outputs diverge."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.core import Answer, Divergence
from draftwise.decide.comparison.cell import OutputDifference
from draftwise.measure.load.client import Client

__all__ = ["View", "ask", "conclude"]

View = dict[str, float] | None
"""Log-probabilities of the two most likely tokens; None where a server does not say."""


async def ask(difference: OutputDifference, client: Client) -> View:
    """Return a server's view of the position where two answers diverge.

    It computes the next token after the prompt and all shared output in one prefill, so that the result does not depend
    on how the position was reached.
    """
    prompt, position = difference.baseline.prompt_token_ids, difference.position
    if not prompt or position is None:
        return None
    await client.backend.wake()
    return await client.next_two([*prompt, *difference.baseline.token_ids[:position]])


def conclude(difference: OutputDifference, views: Sequence[View]) -> Divergence:
    """Return what both servers' views say of a difference."""
    answers, position = (difference.baseline, difference.candidate), difference.position
    tokens = [None if position is None else _token_at(answer, position) for answer in answers]
    known = [view for view in views if view is not None]
    return Divergence(
        workload=difference.unit[0],
        prompt_id=difference.unit[1],
        candidate=difference.candidate.arm,
        position=position or 0,
        plain_token=tokens[0],
        candidate_token=tokens[1],
        gap=min((gap for view in known if (gap := _gap(view)) is not None), default=None),
        condition=difference.baseline.condition,
        among_best=_among_best(tokens, known),
    )


def _token_at(answer: Answer, position: int) -> int | None:
    return answer.token_ids[position] if position < len(answer.token_ids) else None


def _gap(view: dict[str, float]) -> float | None:
    """Return how far the best token is ahead; None where two tokens of equal text came back as one."""
    best = sorted(view.values(), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None


def _among_best(tokens: Sequence[int | None], views: Sequence[dict[str, float]]) -> bool | None:
    """Return whether the tokens are among all views' best, where views name tokens by id (`token_id:17`)."""
    if not views or None in tokens or not all(key.startswith("token_id:") for view in views for key in view):
        return None
    wanted = {f"token_id:{token}" for token in tokens}
    return all(wanted <= view.keys() for view in views)
