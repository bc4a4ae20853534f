"""Reads exports of NVIDIA's aiperf and of its predecessor genai-perf.

`profile_export.jsonl` holds a line per request, `profile_export_aiperf.json` (and genai-perf's
`profile_export_genai_perf.json`, of the same shape) the statistics over all of them.

Definitions (aiperf/metrics/types/*_metric.py; genai_perf/profile_data_parser/llm_profile_data_parser.py): TTFT is the
first chunk with content minus the start; request latency ends with the last chunk with content; their "inter token
latency" of a request is (latency - TTFT) / (tokens - 1), which is draftwise's and vLLM's TPOT (with `--per-chunk-usage`
aiperf 0.13 divides by the tokens after the first chunk); the "inter chunk latency" is draftwise's ITL. Tokens are
counted by the client's tokenizer; where a record carries the server's count (`usage_completion_tokens`), that is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.core import Answer, SpecStats
from draftwise.deciding.interchange.results import (
    ALL_READINGS,
    ARM,
    WORKLOAD,
    Aggregate,
    ArmResults,
    Results,
    find_setting,
    make_load_label,
    make_timing,
    parse_percentile,
)

TOOL = "aiperf"
_FEW = ("ttft", "tpot", "e2e")
"""Readings available if chunk times were not kept."""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_AGGREGATES = {
    "ttft": ("time_to_first_token", "aiperf: first content chunk - start, over requests"),
    "tpot": ("inter_token_latency", "aiperf ITL: (latency - TTFT) / (tokens - 1), over requests"),
    "itl": ("inter_chunk_latency", "aiperf ICL: between content chunks, over chunks"),
    "e2e": ("request_latency", "aiperf: last content chunk - start, over requests"),
}


def is_aiperf_record(document: Any) -> bool:
    """Return whether a JSON document is a line of profile_export.jsonl."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("metadata"), dict)
        and "metrics" in document
        and ("request_start_ns" in document["metadata"])
    )


def is_aiperf_summary(document: Any) -> bool:
    """Return whether a JSON document is profile_export_aiperf.json or genai-perf's equivalent."""
    if not isinstance(document, dict) or not isinstance(latency := document.get("request_latency"), dict):
        return False
    return {"unit", "avg"} <= latency.keys()


def read_aiperf(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], source: str) -> Results:
    """Return the single cell of a run, from its records if given, otherwise from its summary."""
    settings = summary.get("input_config") or {}
    label = _condition(settings)
    profiled = [row for row in records if row["metadata"].get("benchmark_phase") in (None, "profiling")]
    # Seconds since the epoch would leave a float no more than 0.2 us of a nanosecond clock.
    began_ns = min((row["metadata"]["request_start_ns"] for row in profiled), default=0)
    answers = tuple(_answer(row, label, began_ns) for row in profiled)
    failed = sum(answer.error is not None for answer in answers)
    if not records:
        failed = int(_average(summary, "error_request_count") or 0)
    cell = ArmResults(
        workload=WORKLOAD,
        condition=label,
        arm=ARM,
        answers=answers,
        readings=ALL_READINGS if any("inter_chunk_latency" in row["metrics"] for row in profiled) else _FEW,
        aggregates={} if answers else _aggregates(summary),
        num_requests=len(answers) - failed if answers else int(_average(summary, "request_count") or 0),
        num_failed=failed,
        duration_s=_seconds(summary.get("benchmark_duration"), "avg"),
        output_tokens_per_s=_average(summary, "output_token_throughput"),
        spec=_spec(profiled),
    )
    counted = any("usage_completion_tokens" in row["metrics"] for row in profiled)
    notes = [] if counted else ["the client's tokenizer counts output tokens, not the server"]
    if not answers:
        notes.append("the file has no readings of single requests (profile_export.jsonl), so it gives no interval")
    return Results(
        source=source,
        tool=TOOL if summary.get("aiperf_version") or records else "genai-perf or aiperf",
        context=_context(settings, summary),
        cells=(cell,),
        notes=tuple(notes),
    )


def _answer(row: Mapping[str, Any], label: str, began_ns: int) -> Answer:
    metadata, metrics = row["metadata"], row["metrics"]
    started = (metadata["request_start_ns"] - began_ns) * 1e-9
    ttft, latency = (_seconds(metrics.get(name), "value") for name in ("time_to_first_token", "request_latency"))
    tokens = _count(metrics, "usage_completion_tokens", "output_sequence_length")
    prompt = _count(metrics, "usage_prompt_tokens", "input_sequence_length")
    gaps = _gaps(metrics.get("inter_chunk_latency"))
    if not gaps and ttft is not None and latency is not None and latency > ttft:
        gaps = (latency - ttft,)
    error = row.get("error")
    failed = None if not error and ttft is not None else str((error or {}).get("message") or "no first token")
    return Answer(
        turn=0,
        arm=ARM,
        workload=WORKLOAD,
        condition=label,
        prompt_id=f"{metadata['session_num']}.{metadata.get('turn_index') or 0} ({prompt} tokens)",
        repeat=1,
        timing=make_timing(sent=started, ttft_s=ttft or 0.0, gaps_s=gaps, num_tokens=tokens),
        num_prompt_tokens=prompt,
        counts_exact=False,
        error=failed,
    )


def _count(metrics: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of the counts that is there: the server's, else the client's."""
    return next((int(metrics[name]["value"]) for name in names if name in metrics), None)


def _gaps(metric: Mapping[str, Any] | None) -> tuple[float, ...]:
    if metric is None:
        return ()
    unit = _SECONDS[metric["unit"]]
    return tuple(unit * value for value in metric["value"])


def _seconds(metric: Mapping[str, Any] | None, name: str) -> float | None:
    if metric is None or metric.get(name) is None:
        return None
    return float(metric[name]) * _SECONDS.get(metric["unit"], 1.0)


def _average(summary: Mapping[str, Any], name: str) -> float | None:
    metric = summary.get(name)
    return metric.get("avg") if isinstance(metric, dict) else None


def _aggregates(summary: Mapping[str, Any]) -> dict[str, Aggregate]:
    found = {}
    for ours, (theirs, definition) in _AGGREGATES.items():
        metric = summary.get(theirs)
        if isinstance(metric, dict) and metric.get("unit") in _SECONDS:
            unit = _SECONDS[metric["unit"]]
            percentiles = {
                percentile: unit * value
                for name, value in metric.items()
                if value is not None and (percentile := parse_percentile(name)) is not None
            }
            found[ours] = Aggregate(mean=_seconds(metric, "avg"), percentiles=percentiles, definition=definition)
    return found


def _spec(rows: Sequence[Mapping[str, Any]]) -> SpecStats | None:
    """Return the drafts of all requests together, where the server reported them request by request."""
    told = [row["spec_decode_acceptance"] for row in rows if row.get("spec_decode_acceptance")]
    if not told:
        return None
    total = SpecStats()
    for each in told:
        histogram = {int(length): count for length, count in each["acceptance_histogram"].items()}
        deepest = max(histogram, default=0)
        total += SpecStats(
            num_drafts=each["num_spec_steps"],
            num_draft_tokens=each["num_draft_tokens"],
            num_accepted_tokens=each["num_accepted_draft_tokens"],
            accepted_per_pos=tuple(
                sum(count for length, count in histogram.items() if length > position) for position in range(deepest)
            ),
        )
    return total


def _condition(settings: Mapping[str, Any]) -> str:
    """Return the load: of the first phase that is no warm-up; older versions have one `loadgen` or `stimulus`."""
    phases = [each for each in settings.get("phases") or () if each.get("kind") != "warmup"]
    load = phases[0] if phases else settings
    concurrency, rate = (find_setting(load, name) for name in ("concurrency", "rate" if phases else "request_rate"))
    pattern = find_setting(load, "type" if phases else "arrival_pattern")
    return make_load_label(
        concurrency=concurrency if isinstance(concurrency, int) else None,
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,
        poisson=pattern in (None, "poisson"),
    )


def _context(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    models = find_setting(settings, "model_names") or find_setting(settings.get("models"), "name")
    return {
        "version": summary.get("aiperf_version"),
        "model": models[0] if isinstance(models, list) and len(models) == 1 else models,
        "endpoint": find_setting(settings.get("endpoint"), "type"),
        "seed": find_setting(settings, "random_seed"),
        "num_prompts": _average(summary, "request_count"),
        "temperature": find_setting(settings, "temperature"),
    }
