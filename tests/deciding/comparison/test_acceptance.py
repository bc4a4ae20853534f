"""Acceptance of single requests, as a histogram by temperature, from the best source there is."""

from dataclasses import replace

import pytest
from tests.support.made_comparisons import LOADED, around, compared
from tests.support.made_runs import Truth, closed, make_run, workload

from draftwise.core import Counters, Run, SpecStats
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.comparison.pooled_acceptance import PooledAcceptance, pool_acceptance, trace_conversion
from draftwise.deciding.conclusions import gather_evidence

CANDIDATE = "ngram k=3"
UNEVEN = Truth(accepted=lambda prompt_id: 3 if int(prompt_id.split("-")[1]) < 8 else 0, k=3)
"""8 of 12 prompts at 4 tokens per step, the others at 1."""


def run(**settings) -> Run:
    return make_run({CANDIDATE: UNEVEN}, workloads=[workload(tokens=41)], **settings)


def found(made: Run) -> list[PooledAcceptance]:
    return pool_acceptance(each.cell for each in gather_evidence(made).estimates)


def test_a_chunk_is_taken_for_a_step_and_the_first_one_for_prefill() -> None:
    (one,) = found(run())
    assert (one.source, one.num_requests) == ("chunks", 36)
    assert one.quantiles == (pytest.approx(1), pytest.approx(4), pytest.approx(4))
    assert sum(one.counts) == 36
    assert (one.edges[0], one.counts[0], one.counts[-1]) == (1.0, 12, 24)
    assert one.edges[-1] >= 4
    assert one.stats.acceptance_length == pytest.approx((8 * 40 + 4 * 40) / (8 * 10 + 4 * 40))


def test_the_servers_own_count_comes_first() -> None:
    """7 steps with nothing accepted and 3 with two: 16 tokens in 10 steps."""
    made = run()
    counted = replace(made, answers=tuple(replace(a, acceptance=(7, 0, 3)) for a in made.answers))
    (one,) = found(counted)
    assert one.source == "server"
    assert one.quantiles == (pytest.approx(1.6),) * 3
    assert counted.answers[0].tokens_per_step == pytest.approx(1.6)


def test_where_neither_is_known_it_says_so() -> None:
    made = run()
    (one,) = found(replace(made, answers=tuple(replace(a, counts_exact=False) for a in made.answers)))
    assert (one.source, one.quantiles, one.counts, one.num_requests) == ("none", (), (), 0)
    assert one.stats.num_drafts > 0


def test_loads_are_pooled_and_temperatures_are_not() -> None:
    conditions = [*closed(1, 4), *closed(1, 4, temperature=0.8)]
    rows = found(run(conditions=conditions, repeats=1))
    assert [(row.temperature, row.num_requests) for row in rows] == [(0.0, 12 + 16), (0.8, 12 + 16)]


def test_repetitions_that_do_not_count_stay_out() -> None:
    (cell,) = make_cells(run())
    (one,) = pool_acceptance([cell.keep_repetitions([1])])
    assert one.num_requests == 12


def test_conversion_follows_a_gain_from_the_drafts_to_the_whole_request() -> None:
    """100 of 200 steps had a draft, and took 0.875 as long as the baseline's: that is decoding twice as fast."""
    drafted = SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=150)
    measured = compared(
        around(1.5), LOADED, tpot=around(0.5), counters=Counters(spec=drafted, generation_tokens=350), candidate="a"
    )
    (one,) = trace_conversion([measured])
    assert one.levels == (1.5, 2.0, 1.75, 2.5)
    assert one.step_cost == 0.875
    assert (one.workload, one.candidate, one.load, one.temperature) == ("code", "a", LOADED.load.label, 0.0)


def test_conversion_leaves_out_what_lacks_a_station() -> None:
    uncounted = Counters(spec=SpecStats(), generation_tokens=350)
    missing = [compared(workload=ALL), compared(tpot=None), compared(tpot=around(0.0)), compared(counters=uncounted)]
    assert trace_conversion(missing) == []
