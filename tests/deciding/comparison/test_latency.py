"""Latencies by definition, on timings small enough to be worked out by hand."""

from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, closed, gains, make_run, workload

from draftwise.core import Answer, Run, Timing
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.comparison.latencies import Latencies, keeps_promise, measure_output, summarise_latencies
from draftwise.deciding.thresholds import Thresholds

# Sent at 0, intended at -0.5; 1 token at 1 s, 3 at 2 s, 2 at 4 s, ended at 4.5 s.
TIMING = Timing(sent=0.0, intended=-0.5, chunks=((1.0, 1), (2.0, 3), (4.0, 2)), finished=4.5)


def one(timing: Timing = TIMING, **settings) -> Answer:
    return Answer(turn=0, arm="plain", workload="code", prompt_id="code-0", repeat=1, timing=timing, **settings)


def rows_of(run: Run, thresholds: Thresholds | None = None) -> dict[tuple[str, str, str], Latencies]:
    found = summarise_latencies(run, make_cells(run), thresholds or Thresholds())
    return {(row.workload, row.condition, row.arm): row for row in found}


def test_every_latency_is_what_its_definition_says() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, repeats=1, workloads=[workload(num_prompts=1)])
    place = next(w for w in run.turns if w.arm == "plain")
    run = replace(run, answers=tuple(replace(a, timing=TIMING) if a.turn == place.turn else a for a in run.answers))
    found = rows_of(run)["code", "c=1", "plain"].percentiles_ms
    assert found["ttft"] == (pytest.approx(1500),) * 4
    assert found["tpot"] == (pytest.approx(3000 / 5),) * 4
    assert found["e2e"] == (pytest.approx(5000),) * 4
    assert found["send_lag"] == (pytest.approx(500),) * 4
    assert found["itl"][0] == pytest.approx(1500)
    # Three tokens waited a third of a second each, two a second each.
    assert found["token_itl"][0] == pytest.approx(1000 / 3)
    assert found["token_itl"][1:] == (pytest.approx(1000),) * 3


def test_a_closed_loop_has_no_send_lag() -> None:
    rows = rows_of(make_run({"ngram k=3": gains(1.5)}))
    assert rows["code", "c=1", "plain"].percentiles_ms["send_lag"] == ()


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"slo_ttft_s": 1.5}, True),
        ({"slo_ttft_s": 1.4}, False),
        ({"slo_tpot_s": 0.6}, True),
        ({"slo_tpot_s": 0.59}, False),
        ({"slo_e2e_s": 5.0}, True),
        ({"slo_e2e_s": 4.9}, False),
        ({"slo_ttft_s": 9.0, "slo_e2e_s": 4.9}, False),
    ],
)
def test_a_promise_is_kept_when_every_limit_is(limits: dict[str, float], kept: bool) -> None:
    assert keeps_promise(one(), Thresholds(**limits)) is kept


def test_a_failed_request_keeps_no_promise_and_has_no_latency() -> None:
    slo = Thresholds(slo_e2e_s=100.0)
    assert not keeps_promise(one(error="refused"), slo)
    run = make_run({"plain": Truth(fails=frozenset(["code-0", "code-1", "code-2"])), "ngram k=3": gains(1.5)})
    row = rows_of(run, slo)["code", "c=1", "plain"]
    assert (row.num_requests, row.num_failed, row.goodput) == (36, 9, 0.75)


def test_goodput_is_a_share_and_a_rate() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, conditions=closed(4), repeats=1)
    row = rows_of(run, Thresholds(slo_e2e_s=100.0))["code", "c=4", "plain"]
    seconds = max(a.timing.finished for a in run.answers if a.arm == "plain")
    assert row.goodput == 1.0
    assert row.goodput_per_s == pytest.approx(16 / seconds)
    assert rows_of(run)["code", "c=4", "plain"].goodput is None


def test_throughput_counts_all_tokens_while_the_load_was_whole() -> None:
    """Measured from 10 to 20 s: a lead-in request's tokens at 12 s count, those at 9 and 21 s do not."""

    def timing(sent: float, *chunks: tuple[float, int]) -> Timing:
        return Timing(sent=sent, chunks=chunks, finished=chunks[-1][0])

    turn = [
        one(timing(8.0, (9.0, 1), (12.0, 4)), measured=False),
        one(timing(10.0, (11.0, 10))),
        one(timing(11.0, (20.0, 5))),
        one(timing(12.0, (15.0, 3), (21.0, 7)), measured=False, error="withdrawn"),
    ]
    found = measure_output(turn)
    assert found is not None
    assert (found.tokens, found.seconds, found.per_s) == (22, 10.0, 2.2)
    assert measure_output(turn[:1]) is None


def test_a_row_rests_on_the_passes_of_its_comparison() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, repeats=3)
    cells = [cell.keep_repetitions([1]) for cell in make_cells(run)]
    rows = {row.arm: row for row in summarise_latencies(run, cells, Thresholds())}
    assert (rows["plain"].num_requests, rows["ngram k=3"].num_requests) == (36, 12)
