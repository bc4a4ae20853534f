"""Reads the JSON of `vllm bench serve --save-result [--save-detailed]`, as vLLM 0.9 to 0.33 write it.

Definitions (vllm/benchmarks/serve.py `calculate_metrics`, vllm/benchmarks/lib/endpoint_request_func.py): TTFT is the
first chunk of a choice minus time sent; ITL the time between chunks, which hold several tokens under speculation; TPOT
(latency - TTFT) / (tokens - 1). Until 0.29 the latency ran on to the trailing usage chunk, from 0.30 it ends with the
last token, as in draftwise. Chunk times are kept in `ttfts` and `itls`, tokens per request in `output_lens`; since
0.15 `start_times`, since 0.30 `latencies`. Failed requests stay in the lists with 0 tokens.
"""

from __future__ import annotations

from collections import Counter
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
    make_load_label,
    make_timing,
    parse_percentile,
)

TOOL = "vllm bench serve"
_DEFINITIONS = {
    "ttft": ("ttft", "vllm bench: first chunk - sending, over requests"),
    "tpot": ("tpot", "vllm bench: (latency - TTFT) / (tokens - 1), over requests"),
    "itl": ("itl", "vllm bench: between chunks, over chunks"),
    "e2el": ("e2e", "vllm bench: last chunk - sending, over requests"),
}
_CONTEXT = {
    "model": "model_id",
    "tokenizer": "tokenizer_id",
    "endpoint": "backend",
    "num_prompts": "num_prompts",
    "date": "date",
    "label": "label",
    "request_rate": "request_rate",
    "burstiness": "burstiness",
    "max_concurrency": "max_concurrency",
    "ramp_up": "ramp_up_strategy",
}


def is_vllm_bench(document: Any) -> bool:
    """Return whether a JSON document is such a result."""
    return isinstance(document, dict) and {"model_id", "duration", "completed", "request_throughput"} <= document.keys()


def read_vllm_bench(documents: Sequence[Mapping[str, Any]], source: str) -> Results:
    """Return the cells of one file. Results with equal settings, as `--append-result` writes them, are repetitions."""
    repetitions: Counter[str] = Counter()
    cells: dict[str, ArmResults] = {}
    for document in documents:
        label = _condition(document)
        repetitions[label] += 1
        cell = _cell(document, label, repetitions[label])
        cells[label] = _join(cells[label], cell) if label in cells else cell
    notes = ["this format records neither the sampling temperature nor the prompts"]
    if any(not cell.answers for cell in cells.values()):
        notes.append("the file has no readings of single requests (use --save-detailed), so it gives no interval")
    if any("latencies" not in document for document in documents):
        notes.append("before vLLM 0.30, the tool's own TPOT and e2e included the usage chunk")
    return Results(
        source=source,
        tool=TOOL,
        context={name: documents[0].get(key) for name, key in _CONTEXT.items()} | {"temperature": None},
        cells=tuple(cells.values()),
        notes=tuple(notes),
    )


def _condition(document: Mapping[str, Any]) -> str:
    rate = document.get("request_rate")
    finite = isinstance(rate, int | float) and rate != float("inf")
    if document.get("ramp_up_strategy"):
        steps = f"{document.get('ramp_up_start_rps')}-{document.get('ramp_up_end_rps')}/s"
        return f"{document['ramp_up_strategy']} {steps}"
    return make_load_label(
        concurrency=document.get("max_concurrency"),
        rate_per_s=float(rate) if finite and rate is not None else None,
        # `--burstiness` is the shape of a gamma distribution; 1 is Poisson.
        poisson=document.get("burstiness") in (None, 1, 1.0),
    )


def _cell(document: Mapping[str, Any], label: str, repeat: int) -> ArmResults:
    answers = _answers(document, label, repeat)
    failed = document.get("failed")
    if failed is None:
        failed = sum(answer.error is not None for answer in answers)
    return ArmResults(
        workload=WORKLOAD,
        condition=label,
        arm=ARM,
        answers=answers,
        readings=ALL_READINGS,
        aggregates={} if answers else _aggregates(document),
        num_requests=int(document["completed"]),
        num_failed=int(failed),
        duration_s=document["duration"],
        output_tokens_per_s=document.get("output_throughput"),
        spec=_spec(document),
    )


def _answers(document: Mapping[str, Any], label: str, repeat: int) -> tuple[Answer, ...]:
    ttfts, gaps, lengths = (document.get(name) for name in ("ttfts", "itls", "output_lens"))
    if not (ttfts and gaps and lengths):
        return ()
    starts = document.get("start_times") or [0.0] * len(ttfts)
    latencies = document.get("latencies") or [None] * len(ttfts)
    prompts = document.get("input_lens") or [None] * len(ttfts)
    errors = document.get("errors") or [""] * len(ttfts)
    texts = document.get("generated_texts") or [""] * len(ttfts)
    return tuple(
        Answer(
            turn=0,
            arm=ARM,
            workload=WORKLOAD,
            condition=label,
            prompt_id=f"{i} ({prompts[i]} tokens)",
            repeat=repeat,
            timing=make_timing(
                sent=starts[i],
                ttft_s=ttfts[i],
                gaps_s=gaps[i],
                num_tokens=lengths[i],
                finished=None if not latencies[i] else starts[i] + latencies[i],
            ),
            text=texts[i],
            num_prompt_tokens=prompts[i],
            counts_exact=False,
            error=errors[i] or (None if lengths[i] else "failed"),
        )
        for i in range(len(ttfts))
    )


def _aggregates(document: Mapping[str, Any]) -> dict[str, Aggregate]:
    found = {}
    for theirs, (ours, definition) in _DEFINITIONS.items():
        percentiles = {
            float(percentile): document[key] / 1e3
            for key in document
            if key.endswith(f"_{theirs}_ms") and (percentile := parse_percentile(key.removesuffix(f"_{theirs}_ms")))
        }
        if (median := document.get(f"median_{theirs}_ms")) is not None:
            percentiles[50.0] = median / 1e3
        mean = document.get(f"mean_{theirs}_ms")
        if percentiles or mean is not None:
            found[ours] = Aggregate(
                mean=None if mean is None else mean / 1e3, percentiles=percentiles, definition=definition
            )
    return found


def _spec(document: Mapping[str, Any]) -> SpecStats | None:
    """Return what the server's counters grew by (vLLM 0.14 and later, when it speculates)."""
    drafts = document.get("spec_decode_num_drafts")
    if drafts is None:
        return None
    rates = document.get("spec_decode_per_position_acceptance_rates") or ()
    return SpecStats(
        num_drafts=drafts,
        num_draft_tokens=document["spec_decode_draft_tokens"],
        num_accepted_tokens=document["spec_decode_accepted_tokens"],
        accepted_per_pos=tuple(round(rate * drafts) for rate in rates),
    )


def _join(one: ArmResults, other: ArmResults) -> ArmResults:
    """Return two repetitions under one condition as one cell; aggregates cannot be joined, the later ones stay."""
    both = [each.output_tokens_per_s for each in (one, other) if each.output_tokens_per_s is not None]
    return ArmResults(
        workload=one.workload,
        condition=one.condition,
        arm=one.arm,
        answers=one.answers + other.answers,
        aggregates=other.aggregates,
        num_requests=one.num_requests + other.num_requests,
        num_failed=one.num_failed + other.num_failed,
        duration_s=(one.duration_s or 0) + (other.duration_s or 0),
        output_tokens_per_s=sum(both) / len(both) if both else None,
        spec=one.spec + other.spec if one.spec and other.spec else one.spec or other.spec,
    )
