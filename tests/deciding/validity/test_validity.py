"""A run without a fault has no finding, whatever its loads are, and an error takes away just what it is about."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_comparisons import compared, interval
from tests.support.validity import bend_answers, bend_turns, closed, codes, opened, run_of

from draftwise.core import Answer, ClientHealth, Counters, Run, ServerLoad, TurnRecord, Verdict
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.comparison.comparisons import ComparisonNumbers
from draftwise.deciding.conclusions import conclude_run, gather_evidence
from draftwise.deciding.disturbance import measure_use
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.all_checks import check_validity
from draftwise.statistics import PowerOutlook


def test_a_good_run_has_no_finding(tmp_path: Path) -> None:
    conditions = (closed(1), closed(4), closed(1, 0.7), opened(5.0))
    assert codes(run_of(tmp_path / "run", conditions=conditions, repeats=2)) == set()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good", conditions=(closed(1), closed(4)))


def test_an_error_at_one_load_blocks_that_load_only(good: Run) -> None:
    assert {each.verdict for each in conclude_run(good).decision.comparisons} == {Verdict.ADOPT}
    late = bend_turns(
        good,
        lambda w: replace(w, client=replace(w.client, loop_delay_p99_s=0.1 if w.condition == "c=4" else 0.0)),
    )
    verdicts = {each.condition.label: each.verdict for each in conclude_run(late).decision.comparisons}
    assert verdicts == {"c=1": Verdict.ADOPT, "c=4": Verdict.BLOCKED}


def test_prompts_that_slow_down_make_an_adoption_mixed_once_that_is_shown(good: Run) -> None:
    def slow(answer: Answer) -> Answer:
        if answer.arm == "plain" or answer.prompt_id not in ("code-5", "code-6", "code-7"):
            return answer
        sent = answer.timing.sent
        chunks = tuple((sent + 3 * (time - sent), count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks, finished=chunks[-1][0]))

    found = conclude_run(bend_answers(good, slow)).decision.comparisons[0]
    assert {each.of: each.answer for each in found.guards}["tail"] == "harm"
    assert found.verdict in (Verdict.MIXED, Verdict.INCONCLUSIVE)
    assert found.share_slower == pytest.approx(3 / 8)


def patchy_device(chance: random.Random, number: int) -> dict[str, Any]:
    """Return what a machine may say: any part of it, counters that begin anew, readings that are repeated."""
    cpu = {name: chance.random() * number for name in ("busy_s", "steal_s", "own_s", "quota_stopped_s", "mhz")}
    gpu = {"index": 0, "sm_mhz": 2e3 * chance.random(), "reasons": ["hw_slowdown"], "read_s": float(number // 3)}
    gpu |= {"limited_s": {"sw_power_cap": chance.random() * number}}
    parts: dict[str, Any] = {
        "monotonic_s": chance.choice([number, 1000 - number]),
        "cpu": {name: value for name, value in cpu.items() if chance.random() < 0.7},
        "gpus": [{name: value for name, value in gpu.items() if chance.random() < 0.8}],
    }
    return {name: value for name, value in parts.items() if chance.random() < 0.8}


def patchy_run(run: Run, seed: int) -> Run:
    chance = random.Random(seed)

    def turn(old: TurnRecord) -> TurnRecord:
        return replace(
            old,
            device=patchy_device(chance, old.turn),
            wall_s=chance.choice([old.wall_s, 0.0]),
            counters=chance.choice([old.counters, Counters()]),
            client=ClientHealth(cpu_s=chance.random(), processes=chance.choice([0, 1]), clock_jump_s=chance.random()),
            before=ServerLoad(running=chance.choice([None, 2.0]), waiting=chance.choice([None, 1.0])),
        )

    def answer(old: Answer) -> Answer:
        chunks = chance.choice([old.timing.chunks, old.timing.chunks[:1], ((old.timing.sent, 0),)])
        finished = chance.choice([old.timing.finished, old.timing.sent])
        timing = replace(old.timing, chunks=chunks, finished=finished)
        return replace(old, timing=timing, measured=chance.random() < 0.9, acceptance=chance.choice([(), (0,), (2, 1)]))

    return bend_answers(bend_turns(run, turn), answer)


@pytest.mark.parametrize("seed", range(12))
def test_readings_that_are_missing_or_absurd_break_no_check(good: Run, seed: int) -> None:
    """The numbers are those of the good run: absurd answers have none."""
    run, estimates = patchy_run(good, seed), gather_evidence(good).estimates[0]
    outlook = PowerOutlook(p_value=0.01, detectable=1.1, prompts=None, repetitions=None)
    numbers = [
        ComparisonNumbers(
            comparison=compared(interval(1.4, 1.5, 1.6)),
            estimates=replace(estimates, whole=cell, cell=cell),
            outlook=outlook,
            distinct=len(cell.units),
        )
        for cell in make_cells(run)
    ]
    checked = check_validity(run, numbers, [], measure_use(run.turns), Thresholds())
    found = [*checked.of_run, *(each for of_cell in checked.of_cells for each in of_cell)]
    assert found
    assert all(each.message.endswith((".", "?")) for each in found)
