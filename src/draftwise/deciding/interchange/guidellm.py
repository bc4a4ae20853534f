"""Reads guidellm reports (JSON or YAML), as guidellm 0.2 to 0.8 write them.

Definitions (guidellm/schemas/.../request_stats.py since 0.4, guidellm/benchmark/benchmark.py before): TTFT is the
first token minus the start of the request. Its "inter token latency" of a request is (last token - first token) /
(tokens - 1), which is draftwise's and vLLM's TPOT. Its own TPOT is another thing: (last token - start) / tokens since
0.4, first token included, and (last - first) / tokens before; it is not read. Times of single chunks are not kept, so
there is no ITL. The distributions of its ITL weigh every request by its tokens; those are used only where a report
does not carry its requests. Open loops since 0.4 keep the intended start, from which draftwise counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from draftwise.core import Answer, Timing
from draftwise.deciding.interchange.results import (
    ARM,
    UNKNOWN_LOAD,
    WORKLOAD,
    Aggregate,
    ArmResults,
    Results,
    find_setting,
    make_load_label,
)

TOOL = "guidellm"
_SCHEDULED = ("constant", "poisson", "trace")
"""Strategies with intended send times (`defines_arrival_schedule`). Others follow the server's answers."""
_AGGREGATES = {
    "ttft": ("time_to_first_token_ms", 1e-3, "guidellm: first token - start, over requests"),
    "tpot": ("inter_token_latency_ms", 1e-3, "guidellm ITL: (last - first token) / (tokens - 1), weighed by tokens"),
    "e2e": ("request_latency", 1.0, "guidellm: end - start, over requests"),
}


def is_guidellm(document: Any) -> bool:
    """Return whether a document is a guidellm report."""
    if not isinstance(document, dict) or not isinstance(benchmarks := document.get("benchmarks"), list):
        return False
    return all(isinstance(each, dict) and {"requests", "metrics"} <= each.keys() for each in benchmarks)


def read_guidellm(document: Mapping[str, Any], source: str) -> Results:
    """Return a cell per benchmark. Repeated strategies get numbers."""
    repetitions: Counter[str] = Counter()
    cells = []
    for benchmark in document["benchmarks"]:
        label = _condition(_strategy(benchmark))
        repetitions[label] += 1
        cells.append(_cell(benchmark, label if repetitions[label] == 1 else f"{label} #{repetitions[label]}"))
    notes = ["this format records no times of single chunks: no ITL"]
    if any(not cell.answers for cell in cells):
        notes.append("the report holds only a sample of the requests: aggregates are used, without intervals")
    return Results(source=source, tool=TOOL, context=_context(document), cells=tuple(cells), notes=tuple(notes))


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the strategy: under `config` since 0.4, under `args` before."""
    strategy: Mapping[str, Any] = (benchmark.get("config") or benchmark.get("args") or {}).get("strategy") or {}
    return strategy


def _condition(strategy: Mapping[str, Any]) -> str:
    kind = strategy.get("type_")
    if kind == "synchronous":
        return make_load_label(concurrency=1, rate_per_s=None)
    if kind == "concurrent":
        return make_load_label(concurrency=strategy.get("streams"), rate_per_s=None)
    if kind in ("constant", "poisson"):
        return make_load_label(
            concurrency=strategy.get("max_concurrency"), rate_per_s=strategy.get("rate"), poisson=kind == "poisson"
        )
    if kind == "trace":
        return "replay"
    return make_load_label(concurrency=strategy.get("max_concurrency"), rate_per_s=None) if kind else UNKNOWN_LOAD


def _cell(benchmark: Mapping[str, Any], label: str) -> ArmResults:
    scheduled = _strategy(benchmark).get("type_") in _SCHEDULED
    requests, metrics = benchmark["requests"], benchmark["metrics"]
    good, bad = requests.get("successful") or [], requests.get("errored") or []
    totals = metrics.get("request_totals") or benchmark.get("request_totals") or {}
    total = totals.get("successful", len(good))
    answers = tuple(_answer(row, i, label, scheduled=scheduled) for i, row in enumerate(_in_order(good)))
    complete = len(good) >= total and all(answer.timing.chunks for answer in answers)
    throughput = _successful(metrics.get("output_tokens_per_second"))
    return ArmResults(
        workload=WORKLOAD,
        condition=label,
        arm=ARM,
        answers=answers if complete else (),
        readings=("ttft", "tpot", "e2e"),
        aggregates={} if complete and answers else _aggregates(metrics),
        num_requests=total,
        num_failed=totals.get("errored", len(bad)),
        duration_s=benchmark.get("duration") or benchmark["end_time"] - benchmark["start_time"],
        output_tokens_per_s=throughput.get("mean"),
    )


def _in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: _times(row)[0] or 0.0)


def _times(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return start, first token, last token and end of a request, and when it was to start."""
    if (info := row.get("info")) is not None:
        timings = info["timings"]
        names = ("request_start", "first_token_iteration", "last_token_iteration", "request_end", "targeted_start")
        # 0.4 to 0.6 call them iterations of the request.
        older = {"first_token_iteration": "first_iteration", "last_token_iteration": "last_iteration"}
        return tuple(timings.get(name, timings.get(older.get(name, name))) for name in names)
    return (*(row.get(name) for name in ("start_time", "first_token_time", "last_token_time", "end_time")), None)


def _answer(row: Mapping[str, Any], index: int, label: str, *, scheduled: bool) -> Answer:
    start, first, last, end, intended = _times(row)
    tokens = row.get("output_tokens") or 0
    sent = start or 0.0
    if first is None or last is None or tokens < 1:
        chunks: tuple[tuple[float, int], ...] = ()
    else:
        chunks = ((first, 1), (last, tokens - 1)) if tokens > 1 else ((first, 1),)
    text = row.get("output")
    return Answer(
        turn=0,
        arm=ARM,
        workload=WORKLOAD,
        condition=label,
        prompt_id=_identity(row, index),
        repeat=1,
        timing=Timing(
            sent=sent,
            chunks=chunks,
            finished=end if end is not None else sent,
            intended=intended if scheduled and _plausible(intended, row) else None,
        ),
        text=text if isinstance(text, str) else "",
        num_prompt_tokens=row.get("prompt_tokens"),
        counts_exact=False,
    )


def _plausible(intended: float | None, row: Mapping[str, Any]) -> bool:
    """Tell a time from an offset: guidellm 0.4 to 0.6 counts the first arrivals of a Poisson load from 0 by mistake."""
    return intended is not None and intended >= row["info"]["scheduler_start_time"]


def _identity(row: Mapping[str, Any], index: int) -> str:
    """Return what is equal for equal prompts; the place in the order of starts where a report has no prompts."""
    asked = row.get("prompt") or row.get("request_args")
    return sha256(str(asked).encode()).hexdigest()[:12] if asked else str(index)


def _successful(summary: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (summary or {}).get("successful") or {}
    return found


def _aggregates(metrics: Mapping[str, Any]) -> dict[str, Aggregate]:
    found = {}
    for ours, (theirs, unit_s, definition) in _AGGREGATES.items():
        summary = _successful(metrics.get(theirs))
        if summary:
            percentiles = {
                _percentile(name): unit_s * value for name, value in (summary.get("percentiles") or {}).items() if value
            }
            found[ours] = Aggregate(mean=unit_s * summary["mean"], percentiles=percentiles, definition=definition)
    return found


def _percentile(name: str) -> float:
    """Return 0.1 for `p001`, 99.9 for `p999`, 50 for `p50`: two digits are whole, a third is a tenth."""
    digits = name.removeprefix("p")
    return float(digits) if len(digits) < 3 else float(f"{digits[:2]}.{digits[2:]}")


def _context(document: Mapping[str, Any]) -> dict[str, Any]:
    settings = [document.get("config") or document.get("args"), *document["benchmarks"][:1]]
    worker = document["benchmarks"][0].get("worker") if document["benchmarks"] else None
    data = find_setting(settings, "data")
    return {
        "version": (document.get("metadata") or {}).get("guidellm_version"),
        "model": (worker or {}).get("backend_model") or find_setting(settings, "model"),
        "endpoint": find_setting(settings, "request_format"),
        "data": data if data is None or isinstance(data, str) else json.dumps(_without_nulls(data), sort_keys=True),
        "seed": find_setting(settings, "random_seed") or find_setting(find_setting(settings, "seed"), "value"),
        "temperature": find_setting(settings, "temperature"),
    }


def _without_nulls(value: Any) -> Any:
    """Return settings without those that were left at nothing."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None and each != []}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
