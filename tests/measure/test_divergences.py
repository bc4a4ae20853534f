"""Where two outputs part, any number of tokens may be as likely as the best one, and each server may take another."""

import asyncio
from dataclasses import replace

import pytest
from tests.support import virtual_time
from tests.support.made_runs import Truth, arm, gains, make_run

from draftwise.core import Arm, Divergence, Run, Severity
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.conclusions import conclude_run
from draftwise.measure.divergences import ask, conclude, examine, list_differences


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
    for again, code in ((True, "outputs-differ"), (None, "outputs-unexamined")):
        (found,) = conclude_run(replace(run, divergences=(replace(view, again=again),))).decision.comparisons
        assert {each.code: each.severity for each in found.findings} == {code: Severity.ERROR}


def test_a_token_that_is_not_among_the_best_is_behind_the_last_of_them() -> None:
    _, view = view_of(Server(t1=-1.0, t2=-1.5), Server(t3=-1.0, t1=-3.0))
    assert view.among_best is False
    assert view.gap == pytest.approx(0.5)


def test_the_first_difference_of_every_comparison_is_looked_at_before_the_second_of_any() -> None:
    def change(answer):
        same = answer.arm == "plain" or answer.prompt_id == "code-2"
        return replace(answer, token_ids=(5, 6, 1 if same else 3, 7), prompt_token_ids=(4,))

    arms = [Arm(name="plain"), arm(3), arm(5)]
    made = make_run({"plain": Truth(), "ngram k=3": gains(1.5), "ngram k=5": gains(1.2)}, arms=arms)
    run = replace(made, answers=tuple(map(change, made.answers)))
    found = [(each.unit[1], each.candidate.arm) for each in list_differences(run, {each.name for each in arms})]
    assert found[:4] == [
        ("code-0", "ngram k=3"),
        ("code-0", "ngram k=5"),
        ("code-1", "ngram k=3"),
        ("code-1", "ngram k=5"),
    ]
    assert "code-2" not in dict(found)
    known = Divergence(
        workload="code",
        prompt_id="code-0",
        candidate="ngram k=3",
        position=2,
        plain_token=1,
        candidate_token=3,
        gap=0.1,
    )
    left = list_differences(replace(run, divergences=(known,)), {"plain", "ngram k=3"})
    assert [each.unit[1] for each in left][:2] == ["code-1", "code-3"]


@pytest.mark.parametrize(("arm_by_arm", "kept"), [(False, 2), (True, 0)])
def test_what_the_time_does_not_allow_is_given_up_and_what_was_found_is_kept(arm_by_arm: bool, kept: int) -> None:
    """Each question takes a second, and there are five."""

    class Slow(Server):
        async def next_best(self, token_ids: list[int], count: int) -> dict[str, float]:
            await asyncio.sleep(1.0)
            return await super().next_best(token_ids, count)

    made = make_run({"ngram k=3": gains(1.5)})
    run = replace(
        made, answers=tuple(replace(each, token_ids=(len(each.arm),), prompt_token_ids=(4,)) for each in made.answers)
    )
    servers = {name: Slow(t5=-1.0, t9=-1.1) for name in ("plain", "ngram k=3")}
    found: list[Divergence] = []

    async def look() -> float:
        differences = list_differences(run, servers)
        assert len(differences) > 5
        await examine(differences, servers, ends_at=5.5, keep=found.append, arm_by_arm=arm_by_arm)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(look()) == pytest.approx(5.5)
    assert len(found) == kept
