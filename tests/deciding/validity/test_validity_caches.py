"""Caches that helped one side are found: prefix caches, prompts that come back, servers that remember."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fake_server import FakeScript
from tests.support.validity import (
    ENDING,
    QUICKER,
    bend_answers,
    bend_turns,
    closed,
    codes,
    findings,
    graded,
    make_workload,
    run_of,
)

from draftwise.core import Answer, Run, Severity, TurnRecord, Verdict
from draftwise.deciding.conclusions import conclude_run

SUFFIX = FakeScript(k=8, accepted=(0, 1), step_s=0.0045, shortest=0.5, remembers=True)
MANY = (make_workload(num_prompts=20),)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good")


def with_hits(window: TurnRecord, share: float, longer: int = 1) -> TurnRecord:
    queries = longer * (window.counters.prefix_queries or 0)
    return replace(window, counters=replace(window.counters, prefix_queries=queries, prefix_hits=int(share * queries)))


@pytest.mark.parametrize("longer", [1, 100])
def test_lost_prefix_hits_are_in_the_times_that_were_measured(good: Run, longer: int) -> None:
    bent = bend_turns(good, lambda w: with_hits(w, 0.5 if w.arm == "plain" else 0.1, longer))
    assert graded(bent) == {"prefix-hits-lost": Severity.WARNING}
    assert {each.verdict for each in conclude_run(bent).decision.comparisons} == {Verdict.ADOPT}


def test_hits_that_only_a_warm_cache_can_give(good: Run) -> None:
    bent = bend_turns(good, lambda w: with_hits(w, 0.1 if w.arm == "plain" else 0.5))
    assert graded(bent) == {"prefix-hits-gained": Severity.ERROR}


def test_prefix_hits_of_later_passes(good: Run) -> None:
    bent = bend_turns(good, lambda w: with_hits(w, 0.9 if w.repeat > 1 else 0))
    assert graded(bent) == {"prefix-cache-warm": Severity.INFO}


def test_salts_keep_passes_and_loads_apart(tmp_path: Path) -> None:
    """Both servers cache prefixes; every pass and load has salts of its own."""
    prompts = (make_workload("a long prompt of more than sixteen tokens", num_prompts=8),)
    run = run_of(
        tmp_path / "run",
        replace(QUICKER, prefix_caching=True),
        plain=replace(ENDING, prefix_caching=True),
        workloads=prompts,
        conditions=(closed(1), closed(2)),
        repeats=2,
    )
    assert codes(run) == set()


@pytest.mark.parametrize(
    ("concurrency", "cause"), [(1, "the drafter also reads the prompt"), (4, "each step verifies k + 1 tokens")]
)
def test_late_first_tokens_come_with_their_usual_cause(tmp_path: Path, concurrency: int, cause: str) -> None:
    late = replace(QUICKER, first_token_s=0.030)
    run = run_of(tmp_path / "run", late, conditions=(closed(concurrency),), repeats=2)
    found = findings(run)["ttft-damaged"]
    assert found.severity is Severity.WARNING
    assert cause in found.fix
    assert "1.50x as late" in found.message


def test_a_server_that_remembers_is_warm_for_the_second_load(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", SUFFIX, conditions=(closed(1), closed(2)), workloads=MANY, repeats=2)
    by_load = {
        each.condition.label: {finding.code: finding for finding in each.findings}
        for each in conclude_run(run).decision.comparisons
    }
    assert "warmed-by-other-loads" not in by_load["c=1"]
    found = by_load["c=2"]["warmed-by-other-loads"]
    assert found.severity is Severity.ERROR
    assert "under c=1 before" in found.message


def test_a_server_that_forgets_is_not(tmp_path: Path) -> None:
    forgets = replace(SUFFIX, remembers=False)
    run = run_of(tmp_path / "run", forgets, conditions=(closed(1), closed(2)), workloads=MANY, repeats=2)
    assert codes(run) == set()


def test_prompts_that_come_back_within_a_turn(tmp_path: Path) -> None:
    """Sixteen prompts for a load of eight streams: each is sent twice in the one turn of the one pass."""
    load = {"conditions": (closed(8),), "workloads": (make_workload(num_prompts=16),), "repeats": 1}
    run = run_of(tmp_path / "run", SUFFIX, **load)
    assert graded(run)["warmed-within-a-turn"] is Severity.ERROR
    assert "warmed-within-a-turn" not in codes(run_of(tmp_path / "forgets", replace(SUFFIX, remembers=False), **load))


def test_acceptance_that_is_drawn_by_lot_is_no_memory(tmp_path: Path) -> None:
    """The same text each time, and now these drafts of it stand, now those."""
    drawn = replace(QUICKER, rates=(0.7, 0.5, 0.3))
    conditions = (closed(1), closed(2), closed(4))
    runs = [run_of(tmp_path / str(n), replace(drawn, seed=n), conditions=conditions, repeats=2) for n in range(3)]
    found = set().union(*map(codes, runs))
    assert not found & {"repeated-prompts-warm-cache", "warmed-by-other-loads", "warmed-within-a-turn"}


def in_fewer_steps(answer: Answer) -> Answer:
    """Return the answer as if two steps of each three had been one."""
    first, *others = answer.timing.chunks
    joined = [(later[0], count + later[1]) for (_, count), later in zip(others[::3], others[1::3], strict=False)]
    chunks = sorted([*joined, *others[2::3], *others[len(joined) * 3 :: 3]])
    return replace(answer, timing=replace(answer.timing, chunks=(first, *chunks)))


def test_better_drafts_for_the_same_answers_are_memory(good: Run) -> None:
    bent = bend_answers(good, lambda a: in_fewer_steps(a) if a.repeat > 1 and a.arm != "plain" else a)
    assert codes(bent) == {"repeated-prompts-warm-cache"}


def test_better_drafts_for_other_answers_are_not(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        if answer.arm == "plain" or answer.repeat == 1:
            return answer
        return replace(in_fewer_steps(answer), token_ids=(*answer.token_ids, 1))

    assert "repeated-prompts-warm-cache" not in codes(bend_answers(good, change))
