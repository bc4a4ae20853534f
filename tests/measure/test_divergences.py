"""Where two outputs part, any number of tokens may be as likely as the best one, and each server may take another."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.made_runs import gains, make_run

from draftwise.core import Divergence, Run, Severity
from draftwise.decide.comparison.cell import make_cells
from draftwise.decide.conclusions import conclude_run
from draftwise.measure.divergences import ask, conclude


class Server:
    """Answers with the log-probabilities that it is given, the likeliest first."""

    def __init__(self, **views: float) -> None:
        self.backend = self
        self.view = {f"token_id:{name.removeprefix('t')}": value for name, value in views.items()}

    async def wake(self) -> None:
        """Nothing sleeps here."""

    async def next_best(self, token_ids: list[int], count: int) -> dict[str, float]:
        return dict(list(self.view.items())[:count])


def parting(run: Run) -> Run:
    """Return the run with prompt code-0 going on with token 1 on the baseline, and with token 3 on the candidate."""

    def change(answer):
        token = 1 if answer.arm == "plain" else 3
        ids = (5, 6, token, 7) if answer.prompt_id == "code-0" else (5, 6)
        return replace(answer, token_ids=ids, prompt_token_ids=(4,))

    return replace(run, answers=tuple(map(change, run.answers)))


def view_of(baseline: Server, candidate: Server) -> tuple[Run, Divergence]:
    run = parting(make_run({"ngram k=3": gains(1.5)}))
    (difference,) = make_cells(run)[0].differences or ()
    return run, conclude(difference, [asyncio.run(ask(difference, each)) for each in (baseline, candidate)])


def test_of_three_tokens_that_are_all_but_equal_any_two_are_a_tie() -> None:
    """Neither server has both tokens among its two best."""
    run, view = view_of(Server(t1=-1.0, t2=-1.05, t3=-1.1, t9=-4.0), Server(t3=-1.0, t2=-1.02, t8=-1.03, t1=-1.06))
    assert view.among_best
    assert view.gap == pytest.approx(0.06)
    (found,) = conclude_run(replace(run, divergences=(view,))).decision.comparisons
    assert {each.code: each.severity for each in found.findings} == {"numeric-ties": Severity.INFO}


def test_a_token_that_is_far_behind_is_no_tie_though_others_are() -> None:
    run, view = view_of(Server(t1=-1.0, t2=-1.01, t3=-7.0), Server(t3=-1.0, t2=-1.01, t1=-8.0))
    assert view.gap == pytest.approx(6.0)
    (found,) = conclude_run(replace(run, divergences=(view,))).decision.comparisons
    assert {each.code: each.severity for each in found.findings} == {"outputs-differ": Severity.ERROR}


def test_a_token_that_is_not_among_the_best_is_behind_the_last_of_them() -> None:
    _, view = view_of(Server(t1=-1.0, t2=-1.5), Server(t3=-1.0, t1=-3.0))
    assert view.among_best is False
    assert view.gap == pytest.approx(0.5)
