"""Asks both servers for log-probabilities at the position where two greedy outputs diverge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress

from draftwise.core import Answer, Divergence, Run
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.cell import OutputDifference, make_cells
from draftwise.measure.load.client import Client

View = dict[str, float] | None
"""Log-probabilities of the most likely tokens; None if the server does not return them."""

_BEST = 5
"""Number of most likely tokens to ask for: the maximum of OpenAI's completions."""
_MOST_EXAMINED = 40
"""Differing prompts per comparison to ask both servers about."""


def list_differences(run: Run, arms: Container[str]) -> list[OutputDifference]:
    """Return the differences between arms not examined yet: the first of every comparison, then the second of each."""
    known = {(each.candidate, each.condition, each.workload, each.prompt_id) for each in run.divergences}
    found = [
        (place, difference)
        for cell in make_cells(run)
        if cell.workload != ALL and cell.baseline in arms and cell.candidate in arms
        for place, difference in enumerate((cell.differences or ())[:_MOST_EXAMINED])
        if (cell.candidate, cell.condition.label, *difference.unit) not in known
    ]
    return [difference for _, difference in sorted(found, key=lambda each: each[0])]


async def examine(
    differences: Sequence[OutputDifference],
    clients: Mapping[str, Client],
    *,
    ends_at: float | None,
    keep: Callable[[Divergence], None],
    arm_by_arm: bool = False,
) -> None:
    """Ask both servers about each difference in turn, until the time is over.

    Args:
        differences: to examine; both arms have a client.
        clients: HTTP clients by arm.
        ends_at: event-loop time at which to give up requests in flight. None: no limit.
        keep: called with each difference once both servers have answered.
        arm_by_arm: ask one server about all differences before the next one, for runs with one server at a time.
    """
    wanted = [(number, answer) for number, each in enumerate(differences) for answer in (each.baseline, each.candidate)]
    if arm_by_arm:
        arms = list(dict.fromkeys(answer.arm for _, answer in wanted))
        wanted.sort(key=lambda each: arms.index(each[1].arm))
    views: dict[int, list[View]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout_at(ends_at):
            for number, answer in wanted:
                views.setdefault(number, []).append(await ask(differences[number], clients[answer.arm]))
                if len(views[number]) > 1:
                    keep(conclude(differences[number], views[number]))


async def ask(difference: OutputDifference, client: Client) -> View:
    """Ask a server for its view of the position where two answers diverge.

    The server computes the next token after the prompt and all shared output in one prefill. The result therefore does
    not depend on how it reached the position.
    """
    prompt, position = difference.baseline.prompt_token_ids, difference.position
    if not prompt or position is None:
        return None
    await client.backend.wake()
    return await client.next_best([*prompt, *difference.baseline.token_ids[:position]], _BEST)


def conclude(difference: OutputDifference, views: Sequence[View]) -> Divergence:
    """Judge a difference by both servers' views."""
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
        gap=min((gap for view in known if (gap := _find_gap(tokens, view)) is not None), default=None),
        condition=difference.baseline.condition,
        among_best=_among_best(tokens, known),
    )


def _token_at(answer: Answer, position: int) -> int | None:
    return answer.token_ids[position] if position < len(answer.token_ids) else None


def _find_gap(tokens: Sequence[int | None], view: Mapping[str, float]) -> float | None:
    """Return how far the less likely of two tokens is behind the best one, at least; None where that cannot be told.

    Any number of tokens can be all but equally likely, and each server may take another one of them. A token that is
    not among the best is behind the last of them. Where a view does not name its tokens by id, the second-best one
    stands for the two; None where only one came back, as two tokens of equal text do.
    """
    best = sorted(view.values(), reverse=True)
    if _names_ids(view) and None not in tokens:
        known = [view[name] for token in tokens if (name := f"token_id:{token}") in view]
        return best[0] - min(known) if len(known) == len(tokens) else best[0] - best[-1]
    return best[0] - best[1] if len(best) > 1 else None


def _among_best(tokens: Sequence[int | None], views: Sequence[Mapping[str, float]]) -> bool | None:
    """Return whether the tokens are among all views' best, where views name tokens by id (`token_id:17`)."""
    if not views or None in tokens or not all(map(_names_ids, views)):
        return None
    wanted = {f"token_id:{token}" for token in tokens}
    return all(wanted <= view.keys() for view in views)


def _names_ids(view: Mapping[str, float]) -> bool:
    return all(name.startswith("token_id:") for name in view)
