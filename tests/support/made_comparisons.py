"""Comparisons made up number by number, for tests of what is concluded from them."""

from collections.abc import Sequence
from typing import Any

from draftwise.core import (
    Band,
    ClosedLoop,
    Comparison,
    Condition,
    Counters,
    Decision,
    Interval,
    OpenLoop,
    Scope,
    SpecStats,
    Verdict,
)
from draftwise.deciding.recommendations import recommend

ALONE = Condition()
LOADED = Condition(load=ClosedLoop(concurrency=16))
ARRIVING = Condition(load=OpenLoop.steady(2.0))


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


def around(value: float, reach: float = 0.02) -> Interval:
    return interval(value * (1 - reach), value, value * (1 + reach))


FASTER, SLOWER, SAME = around(1.5), around(0.8), around(1.0)


def compared(speedup: Interval = FASTER, condition: Condition = ALONE, **others: Any) -> Comparison:
    """Return a comparison that is to be judged; under load the server gains what its requests gain."""
    loaded = condition.concurrency not in (1, None)
    given: dict[str, Any] = {
        "workload": "code",
        "candidate": "ngram k=3",
        "num_prompts": 20,
        "repetitions": (1, 2, 3),
        "total": speedup,
        "ttft": None,
        "tpot": Interval(value=1 / speedup.value, low=1 / speedup.high, high=1 / speedup.low),
        "share_slower": 0.0,
        "counters": Counters(
            spec=SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=150), generation_tokens=250
        ),
        "equal_outputs": None,
        "warm_speedup": None,
        "verdict": Verdict.INCONCLUSIVE,
        "reason": None,
        "throughput": speedup if loaded else None,
    }
    return Comparison(speedup=speedup, condition=condition, **{**given, **others})


def adopted(load: int, ratio: float = 1.5, **others: Any) -> Comparison:
    return compared(around(ratio), Condition(load=ClosedLoop(concurrency=load)), verdict=Verdict.ADOPT, **others)


def rejected(load: int, **others: Any) -> Comparison:
    return compared(SLOWER, Condition(load=ClosedLoop(concurrency=load)), verdict=Verdict.REJECT, **others)


def decision_on(comparisons: Sequence[Comparison], bands: Sequence[Band] = (), **others: Any) -> Decision:
    """Return what comparisons and bands recommend, and nothing else."""
    given: dict[str, Any] = {
        "findings": (),
        "missing_context": (),
        "scope": Scope(workloads={}, conditions=()),
        **others,
    }
    crossovers = given.pop("crossovers", ())
    return Decision(
        baseline="plain",
        comparisons=tuple(comparisons),
        recommendations=recommend(comparisons, bands, crossovers),
        bands=tuple(bands),
        crossovers=tuple(crossovers),
        **given,
    )
