"""Writes a run in the formats of other load generators.

`vllm-bench`: the JSON of `vllm bench serve --save-result --save-detailed`, with its names and percentiles. draftwise's
additions are under `draftwise_*`, as `--metadata` would put them. `aiperf`: the lines of profile_export.jsonl. Both
count from the actual send time, as those tools do; draftwise's reports count from the intended one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.core import Answer, Condition, OpenLoop, Run, SpecStats, StorageError, Timing, cause_of
from draftwise.core.grouping import group_by
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole

_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one arm answered on one workload under one condition."""

    workload: str
    condition: Condition
    arm: str
    answers: Sequence[Answer]
    seconds: float
    """Seconds of the turns, from the first request to the last answer's end."""
    spec: SpecStats

    @property
    def file_stem(self) -> str:
        """File name, with characters valid on every file system."""
        text = f"{self.workload}-{self.condition.label}-{self.arm}"
        return re.sub(r"[^A-Za-z0-9.=]+", "-", text)


def export_run(run: Run, name: str, path: Path) -> list[Path]:
    """Write a run in the format `name`; return the files.

    If `path` is a folder or ends with a slash, each arm, workload and condition gets a file. Otherwise, all go to one
    file, one after another, as with `--append-result`.

    Raises:
        InvalidSetup: the format is unknown.
        StorageError: the file cannot be written.
    """
    if name not in FORMATS:
        raise refusal("unknown-format", name=name, names=", ".join(FORMATS))
    write, suffix = FORMATS[name]
    texts = {part.file_stem: write(run, part) for part in _parts(run)}
    folder = path.is_dir() or str(path).endswith("/")
    whole = {path: "".join(texts.values())}
    files = {path / f"{stem}{suffix}": text for stem, text in texts.items()} if folder else whole
    try:
        if folder:
            path.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            write_whole(file, text)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({cause_of(error)}). Give another path or make room.") from None
    return list(files)


def _parts(run: Run) -> Iterator[_Part]:
    measured = [answer for answer in run.answers if answer.measured]
    by_place = group_by(lambda answer: (answer.workload, answer.condition, answer.arm), measured)
    conditions = {condition.label: condition for condition in run.conditions}
    spans = {
        turn: max(each.timing.finished for each in mine) - min(each.timing.sent for each in mine)
        for turn, mine in group_by(lambda answer: answer.turn, measured).items()
    }
    for (workload, label, arm), answers in by_place.items():
        turns = [t for t in run.turns if (t.workload, t.condition, t.arm) == (workload, label, arm)]
        yield _Part(
            workload=workload,
            condition=conditions[label],
            arm=arm,
            answers=answers,
            seconds=sum(spans[turn] for turn in {answer.turn for answer in answers}),
            spec=sum((turn.counters.spec for turn in turns), SpecStats()),
        )


def _to_vllm_bench(run: Run, part: _Part) -> str:
    answers, good = part.answers, [answer for answer in part.answers if answer.error is None]
    prompt, output = (sum(count(each) for each in good) for count in (_prompt_tokens, _tokens))
    load, seconds = part.condition.load, part.seconds or 1.0
    rate = load.rate_per_s if isinstance(load, OpenLoop) else None
    document = {
        "date": re.sub(r"[^0-9]", "", run.context.started)[:14],
        "backend": "openai",
        "label": part.arm,
        "model_id": run.context.model.name,
        "num_prompts": len(answers),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": 1.0,
        "max_concurrency": part.condition.concurrency,
        "duration": part.seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / seconds,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        "input_lens": [_prompt_tokens(answer) for answer in answers],
        "output_lens": [_tokens(answer) for answer in answers],
        "ttfts": [_first(answer.timing) for answer in answers],
        "itls": [answer.timing.itl_s for answer in answers],
        "latencies": [_last(answer.timing) for answer in answers],
        "start_times": [answer.timing.sent for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error or "" for answer in answers],
        **_statistics([answer.timing for answer in good]),
        **_acceptance(part.spec),
        "draftwise_workload": part.workload,
        "draftwise_condition": part.condition.label,
        "draftwise_temperature": part.condition.temperature,
    }
    return json.dumps(document) + "\n"


def _tokens(answer: Answer) -> int:
    return answer.timing.num_tokens if answer.error is None else 0


def _prompt_tokens(answer: Answer) -> int:
    return answer.num_prompt_tokens or 0


def _first(timing: Timing) -> float:
    return timing.chunks[0][0] - timing.sent if timing.chunks else 0.0


def _last(timing: Timing) -> float:
    return timing.chunks[-1][0] - timing.sent if timing.chunks else 0.0


def _statistics(timings: Sequence[Timing]) -> dict[str, float]:
    """Return mean, median, deviation and percentiles as vLLM's benchmark names them."""
    readings: Mapping[str, Sequence[float]] = {
        "ttft": [_first(timing) for timing in timings],
        "tpot": [tpot for timing in timings if (tpot := timing.tpot_s) is not None],
        "itl": [gap for timing in timings for gap in timing.itl_s],
        "e2el": [_last(timing) for timing in timings],
    }
    found: dict[str, float] = {}
    for name, seconds in readings.items():
        values = 1e3 * np.array(seconds or [0.0])
        found[f"mean_{name}_ms"] = float(values.mean())
        found[f"median_{name}_ms"] = float(np.median(values))
        found[f"std_{name}_ms"] = float(values.std())
        found |= {f"p{q}_{name}_ms": float(np.percentile(values, q)) for q in _PERCENTILES}
    return found


def _acceptance(spec: SpecStats) -> dict[str, Any]:
    if not spec.num_drafts:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * (spec.acceptance_rate or 0.0),
        "spec_decode_acceptance_length": spec.acceptance_length,
        "spec_decode_num_drafts": spec.num_drafts,
        "spec_decode_draft_tokens": spec.num_draft_tokens,
        "spec_decode_accepted_tokens": spec.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": spec.rate_per_pos,
    }


def _to_aiperf(_: Run, part: _Part) -> str:
    return "".join(json.dumps(_aiperf_record(i, answer)) + "\n" for i, answer in enumerate(part.answers))


def _aiperf_record(number: int, answer: Answer) -> dict[str, Any]:
    timing = answer.timing
    metadata = {
        "session_num": number,
        "conversation_id": answer.prompt_id,
        "turn_index": 0,
        "request_start_ns": round(1e9 * timing.sent),
        "request_end_ns": round(1e9 * timing.finished),
        "worker_id": answer.arm,
        "record_processor_id": "draftwise",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    if answer.error is not None:
        return {"metadata": metadata, "metrics": {}, "error": {"message": answer.error}}
    metrics: dict[str, Any] = {
        "time_to_first_token": _first(timing),
        "request_latency": _last(timing),
        "inter_token_latency": timing.tpot_s,
        "inter_chunk_latency": list(timing.itl_s) or None,
    }
    found = {name: {"value": _milli(value), "unit": "ms"} for name, value in metrics.items() if value is not None}
    counts = {"output_sequence_length": timing.num_tokens, "input_sequence_length": _prompt_tokens(answer)}
    found |= {name: {"value": count, "unit": "tokens"} for name, count in counts.items()}
    return {"metadata": metadata, "metrics": found, "error": None}


def _milli(seconds: float | list[float]) -> float | list[float]:
    return [1e3 * each for each in seconds] if isinstance(seconds, list) else 1e3 * seconds


FORMATS: Mapping[str, tuple[Callable[[Run, _Part], str], str]] = {
    "vllm-bench": (_to_vllm_bench, ".json"),
    "aiperf": (_to_aiperf, ".jsonl"),
}
"""Writer and file ending of each format."""
