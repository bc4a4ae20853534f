"""A few of the whole runs on disturbed machines that fault_injection.py counts, and what is a false verdict there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fault_injection import QUIET, Outcome, Trial, describe, run_all, run_trial, summarise, wilson
from injected_faults import KINDS, make_world

SHORT = {
    "quiet": 27,
    "busy-core": 28,
    "late-compiling": 23,
    "drift": 2,
    "memory": 52,
    "few-prompts": 30,
    "heavy-tails": 20,
    "late-start": 16,
    "foreign-load": 57,
    "everything": 33,
}
"""A seed of each kind whose run is short, and has a result."""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_adopted_or_rejected_where_nothing_is_gained(kind: str) -> None:
    outcome = run_trial(Trial(kind=kind, seed=SHORT[kind], truth=1.0))
    assert outcome.verdicts, outcome
    assert not outcome.is_false, outcome


@pytest.mark.parametrize("seed", [109, 2003])
def test_a_server_that_compiles_for_much_of_the_run_is_not_rejected(seed: int) -> None:
    """Inside of a state that lasts longer than the turns around a turn, no turn stands out."""
    assert run_trial(Trial(kind="late-compiling", seed=seed, truth=1.0)).verdicts == ("inconclusive",)


def test_a_server_that_is_slow_for_all_that_is_measured_of_it_is_not_rejected() -> None:
    """No turn, and no stretch of the run, is beside another one of its own that tells."""
    outcome = run_trial(Trial(kind="late-start", seed=2_000_034, truth=0.99))
    assert (outcome.is_covered, outcome.verdicts) == (True, ("inconclusive",))
    assert re.match(
        r"a decoding step on the server of candidate takes [23]\.\dx as long as on the other one", outcome.reasons[0]
    )


@pytest.mark.parametrize("truth", [1.2, 0.8])
def test_a_true_effect_is_found_on_a_quiet_machine(truth: float) -> None:
    assert run_trial(Trial(kind=QUIET, seed=3, truth=truth)).is_found


def outcome_of(truth: float, *verdicts: str) -> Outcome:
    trial = Trial(kind=QUIET, seed=1, truth=truth)
    return Outcome(trial=trial, about="", verdicts=verdicts, reasons=("clear",) * len(verdicts))


def test_a_verdict_is_false_where_the_truth_is_another() -> None:
    assert outcome_of(1.01, "inconclusive", "adopt").is_false
    assert outcome_of(1.2, "adopt", "reject").is_false
    assert not outcome_of(1.2, "adopt", "reject").is_found
    assert not outcome_of(0.8, "inconclusive", "mixed").is_false
    assert outcome_of(0.8, "inconclusive", "reject").is_found


def test_runs_that_are_recorded_are_not_run_again(tmp_path: Path) -> None:
    known = [outcome_of(1.0, "inconclusive"), outcome_of(1.2, "adopt", "adopt")]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(describe(each)) + "\n" for each in known))
    assert run_all([each.trial for each in reversed(known)], rows, 1) == known[::-1]


def test_figures_count_runs_not_loads() -> None:
    found = summarise([outcome_of(1.0, "adopt", "adopt"), outcome_of(0.99, "inconclusive"), outcome_of(1.2, "adopt")])
    assert (found["null_runs"], found["false"], found["effects_found"]) == (2, 1, 1)
    assert found["verdicts_of_nulls"] == {"adopt": 2, "inconclusive": 1}


def test_the_interval_of_a_share_is_that_of_the_textbook() -> None:
    assert wilson(0, 10) == pytest.approx([0.0, 0.2775], abs=1e-4)
    assert wilson(5, 10) == pytest.approx([0.2366, 0.7634], abs=1e-4)


def test_a_name_tells_all_of_a_trial() -> None:
    trial = Trial(kind="busy-core", seed=17, truth=0.99)
    assert Trial.parse(trial.name) == trial
    assert make_world("busy-core", 17, 0.99).busy == make_world("busy-core", 17, 0.99).busy
