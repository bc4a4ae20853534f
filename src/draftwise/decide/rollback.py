"""When to undo an adoption: the numbers at which its gain is gone, to watch in production."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from draftwise.core import Band, Comparison
from draftwise.decide.comparison.axis import UNITS, format_load, place_on_axis
from draftwise.decide.comparison.latency import Latencies
from draftwise.decide.comparison.verdict import deciding
from draftwise.decide.thresholds import Thresholds

__all__ = ["describe_rollback"]


def describe_rollback(
    adopted: Sequence[Comparison],
    bands: Sequence[Band],
    rows: Sequence[Latencies],
    plain: str,
    thresholds: Thresholds,
) -> Iterator[str]:
    """Yield a rule per workload and candidate: the first condition that holds for an hour undoes the adoption.

    Tokens per step: the cost of a step depends on batch and k, hardly on luck, so speed-up moves with tokens per
    step, and is gone where they have fallen by as much. Of several loads the heaviest counts: there a step costs most.

    Args:
        adopted: comparisons that are acted on, any number per workload and candidate.
        bands: where each setting ends.
        rows: latencies, for the plain server's first token.
    """
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for each in adopted:
        groups.setdefault((each.workload, each.candidate), []).append(each)
    for (workload, candidate), group in groups.items():
        heaviest = max(group, key=lambda each: (place_on_axis(each.condition) or ("", 0.0))[1])
        signs = [
            _tokens_per_step(heaviest, several=len(group) > 1),
            *_load(heaviest, bands),
            *_first_token(heaviest, rows, plain, thresholds),
        ]
        yield f"{candidate} on {workload}: roll back when {', or when '.join(signs)}."


def _tokens_per_step(heaviest: Comparison, *, several: bool) -> str:
    measured, ratio = heaviest.counters.tokens_per_step, deciding(heaviest).ratio.value
    if measured is None:
        return "output tokens per second fall to plain's"
    at = f" at {heaviest.condition.label}" if several else ""
    return (
        f"tokens per step stay under {measured / ratio:.2f} for an hour, where the gain is gone{at} "
        f"(measured here: {measured:.2f})"
    )


def _load(heaviest: Comparison, bands: Sequence[Band]) -> Iterator[str]:
    place = (heaviest.workload, heaviest.candidate, heaviest.condition.temperature)
    ends = [band for band in bands if (band.workload, band.setting, band.temperature) == place]
    if ends and not isinf(ends[-1].up_to):
        last = ends[-1]
        yield f"there are more than {format_load(last.up_to, last.axis)} {UNITS[last.axis]} for an hour"


def _first_token(heaviest: Comparison, rows: Sequence[Latencies], plain: str, thresholds: Thresholds) -> Iterator[str]:
    if thresholds.slo_ttft_s is not None:
        yield f"P99 of the time to the first token stays over the promised {1e3 * thresholds.slo_ttft_s:g} ms"
        return
    place = (heaviest.workload, heaviest.condition.label, plain)
    for row in rows:
        if (row.workload, row.condition, row.arm) == place and row.percentiles_ms["ttft"]:
            factor = 1 + thresholds.ttft_damage
            limit = factor * row.percentiles_ms["ttft"][-1]
            yield f"P99 of the time to the first token stays over {limit:.3g} ms ({factor:g}x plain's)"
