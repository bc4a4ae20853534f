"""Verdicts: the rule on given intervals, and its error rates on simulated experiments."""

import numpy as np
import pytest

from draftwise.core import Finding, Interval, Severity, Verdict
from draftwise.measure import statistics
from draftwise.measure.statistics import mean_ratio
from draftwise.measure.thresholds import Thresholds
from draftwise.measure.verdict import judge


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("speedup", "verdict", "words"),
    [
        (interval(1.04, 1.5, 2.0), Verdict.ADOPT, "above 1.03"),
        (interval(1.02, 1.5, 2.0), Verdict.INCONCLUSIVE, "more prompts"),
        (interval(0.98, 1.0, 1.02), Verdict.INCONCLUSIVE, "equal within 3%"),
        (interval(0.90, 1.0, 1.2), Verdict.INCONCLUSIVE, "more prompts"),
        (interval(0.97, 0.98, 0.99), Verdict.INCONCLUSIVE, ""),
        (interval(0.80, 0.9, 0.99), Verdict.REJECT, "slower"),
        (interval(0.80, 0.9, 1.01), Verdict.INCONCLUSIVE, "more prompts"),
    ],
)
def test_the_interval_decides(speedup: Interval, verdict: Verdict, words: str) -> None:
    found, reason = judge(speedup, None, None, [], Thresholds())
    assert found is verdict
    assert words in reason


def finding(severity: Severity) -> Finding:
    return Finding(code="outputs-differ", severity=severity, message="Outputs differ.")


FASTER, SLOWER = interval(1.4, 1.5, 1.6), interval(0.7, 0.8, 0.9)


@pytest.mark.parametrize(
    ("speedup", "ttft", "tail", "severity", "verdict"),
    [
        (FASTER, None, 1.2, Severity.INFO, Verdict.MIXED),
        (FASTER, None, 1.02, Severity.WARNING, Verdict.ADOPT),
        (FASTER, interval(1.25, 1.5, 2), 0.9, Severity.INFO, Verdict.MIXED),
        (FASTER, interval(1.10, 1.5, 2), 0.9, Severity.INFO, Verdict.ADOPT),
        (FASTER, None, 1.2, Severity.ERROR, Verdict.BLOCKED),
        (SLOWER, None, 1.2, Severity.ERROR, Verdict.REJECT),
    ],
)
def test_what_takes_an_adoption_away(speedup, ttft, tail, severity, verdict) -> None:
    assert judge(speedup, ttft, tail, [finding(severity)], Thresholds())[0] is verdict


def verdicts(effect: float, num_prompts: int, count: int = 500) -> list[Verdict]:
    """Return the verdicts on simulated runs: medians of 5 passes, with 3 % noise and 3 % per prompt."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        sides = np.exp(rng.normal(0, 0.03, (2, num_prompts)) + rng.normal(0, 0.03 * 1.25 / 5**0.5, (2, num_prompts)))
        found.append(judge(mean_ratio(sides[0] * effect, sides[1]), None, None, [], Thresholds())[0])
    return found


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)


@pytest.mark.parametrize("num_prompts", [4, 8, 16])
def test_a_against_a_is_inconclusive_at_least_19_times_in_20(num_prompts: int) -> None:
    found = verdicts(1.0, num_prompts)
    assert found.count(Verdict.INCONCLUSIVE) >= 0.95 * len(found)


def test_a_ten_percent_effect_is_found_in_either_direction() -> None:
    assert verdicts(1.10, 16).count(Verdict.ADOPT) >= 450
    assert verdicts(0.90, 16).count(Verdict.REJECT) >= 450


def test_a_sloppier_rule_would_fail_the_a_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "CONFIDENCE", 0.5)
    found = [judge(each, None, None, [], Thresholds(margin=0.0))[0] for each in _intervals(8)]
    assert found.count(Verdict.INCONCLUSIVE) < 0.7 * len(found)


def _intervals(num_prompts: int) -> list[Interval]:
    rng = np.random.default_rng(2)
    pairs = (np.exp(rng.normal(0, 0.03, (2, num_prompts))) for _ in range(200))
    return [mean_ratio(candidate, plain) for candidate, plain in pairs]
