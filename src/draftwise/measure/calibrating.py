"""Turns a run into a calibration: its servers, their models' shapes, and the step times seen in their streams.

Step times come from the answers' streams: vLLM's iteration log starts its clock when the engine begins to wait for a
step, not when the step begins (benchmarks/h200/NOTES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from math import prod, sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.checkpoints.config_json import find_model_config
from draftwise.checkpoints.gguf_files import is_gguf, read_gguf
from draftwise.core import (
    Answer,
    Arm,
    CalibratedSetting,
    Calibration,
    ClosedLoop,
    Counters,
    Finding,
    FirstPoint,
    InvalidSetup,
    Run,
    RunContext,
    RunPlan,
    Setup,
    SpecConfig,
    StepPoint,
    TurnRecord,
)
from draftwise.deciding.disturbance import find_disturbances
from draftwise.deciding.thresholds import get_thresholds
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.messages import refusal
from draftwise.measure.run_context import describe_machine

Specs = Mapping[str, SpecConfig]


def require_known(plan: RunPlan, context: RunContext, *, target: str | None = None, specs: Specs | None = None) -> None:
    """Refuse, before measuring, servers whose calibration would be incomplete.

    Args:
        plan: the run's plan. Arms that are not in the context are skipped.
        context: includes what the servers report about themselves.
        target: as for `make_calibration`.
        specs: as for `make_calibration`.

    Raises:
        InvalidSetup: the target's shape or a server's speculative config is not known.
    """
    faults: list[Finding] = []
    name = target or context.model_name or plan.arms[0].name
    needed: list[Callable[[], object]] = [partial(_find_config, name, plan.arms[0].setup.target)]
    needed += [
        partial(_make_setting, plan, context, arm, specs or {}) for arm in plan.arms if arm.name in context.servers
    ]
    for find in needed:
        try:
            find()
        except InvalidSetup as error:
            faults += error.findings
    if faults:
        raise InvalidSetup(faults)


def make_calibration(run: Run, *, target: str | None = None, specs: Specs | None = None) -> Calibration:
    """Return the calibration from a run: how long its servers' steps take.

    Args:
        run: closed loads, on servers that differ only in their speculative config.
        target: directory or well-known id of the model. None: the one that the run names.
        specs: speculative configs by arm, for servers whose config the run does not know.

    Raises:
        InvalidSetup: the target's shape or a server's speculative config is not known, or nothing was measured.
    """
    settings = tuple(_make_setting(run.plan, run.context, arm, specs or {}) for arm in run.plan.arms)
    lengths = {each.name: each.k for each in settings}
    points = find_points(run, lengths)
    known = {each.name for each in settings if each.name in {point.setting for point in points}}
    baseline = settings[0]
    if baseline.name not in known:
        if any(isinstance(each.load, ClosedLoop) for each in run.plan.conditions):
            raise refusal("nothing-calibrated", name=baseline.name)
        raise refusal("nothing-calibrated", case="arrivals", name=baseline.name)
    name = target or run.context.model_name or baseline.name
    plain = run.plan.arms[0].setup
    record, gpu = run.context.server(baseline.name), _find_gpu(run)
    return Calibration(
        made=run.context.started,
        hardware=describe_machine(run.context.hardware) or "not known",
        gpu=gpu,
        engine=plain.engine or str(record.version.get("engine", "")),
        engine_version=plain.engine_version or record.release or "",
        args=dict(plain.args),
        target=name,
        config={**_find_config(name, plain.target), **(find_packing(plain) if gpu is None else {})},
        settings=tuple(_with_pool(run, each) for each in settings if each.name in known or each.is_plain),
        points=points,
        firsts=tuple(each for each in find_firsts(run, lengths) if each.setting in known),
    )


def _make_setting(plan: RunPlan, context: RunContext, arm: Arm, specs: Specs) -> CalibratedSetting:
    if arm == plan.arms[0]:
        return CalibratedSetting(name=arm.name)
    spec = find_spec(context, arm, specs)
    if spec is None or spec.num_speculative_tokens is None:
        raise refusal("candidate-unknown", name=arm.name)
    return CalibratedSetting(name=arm.name, spec=spec, drafter=_find_here(spec.model or ""))


def _with_pool(run: Run, setting: CalibratedSetting) -> CalibratedSetting:
    """Return a setting with the tokens that its server's KV cache holds, where it said so."""
    told = run.context.server(setting.name).started.get("kv_cache_tokens")
    return replace(setting, kv_tokens=told) if isinstance(told, int) and told > 0 else setting


def find_spec(context: RunContext, arm: Arm, specs: Specs | None = None) -> SpecConfig | None:
    """Return an arm's speculative config, as given or as its server reports it; None if unknown."""
    given, version = (specs or {}).get(arm.name, arm.spec), context.server(arm.name).version.get("speculative_config")
    told = SpecConfig.keep(version) if isinstance(version, Mapping) else None
    if given is not None and given.num_speculative_tokens is None and told is not None:
        # It has a default: suffix, modules of the target.
        return replace(given, num_speculative_tokens=told.num_speculative_tokens)
    return given or told


def _find_config(name: str, directory: str) -> Mapping[str, Any]:
    given = find_model_config(directory)
    if (found := given.config if given is not None else _find_here(name)) is not None:
        return found
    raise refusal("target-unknown", case="calibrate", name=name)


def _find_here(name: str) -> Mapping[str, Any] | None:
    """Return the config of what a server names; its files may be another machine's, or not for us to read."""
    try:
        found = find_model_config(name)
    except InvalidSetup:
        return None
    return None if found is None else found.config


def find_packing(plain: Setup) -> dict[str, Any]:
    """Return the config.json entry for a GGUF file whose matrices a CPU reads packed, as stored.

    Empty for any other target, for 16-bit matrices, and if the server unpacks them (`--dtype float32`).
    """
    if not is_gguf(plain.target) or plain.args.get("dtype") in ("float", "float32"):
        return {}
    matrices = [each for each in read_gguf(plain.target).tensors.values() if len(each.shape) > 1]
    bits = 8 * sum(each.num_bytes for each in matrices) / max(1, sum(prod(each.shape) for each in matrices))
    name = next((name for name, most in (("int4", 6.5), ("int8", 12.0)) if bits <= most), None)
    return {"quantization_config": {"quant_method": name}} if name else {}


def _find_gpu(run: Run) -> str | None:
    """Return the name of the GPU in the table; None for a processor, and for a GPU that is not in it."""
    hardware = run.context.hardware
    devices = {str(each.version.get("device", "")) for each in run.context.servers.values()}
    if devices & {"cpu"}:
        return None
    for text in (*hardware.gpus, hardware.told or "", *devices):
        try:
            return get_gpu(text.split(",")[0].strip()).name
        except InvalidSetup:
            continue
    return None


_FEWEST_GAPS, _FEWEST_STEPS = 20, 2
"""Minimum number of steps of one kind that make a point; all streams see the same step."""
_TO_95 = 1.96
_LEAST_SPREAD = 0.005
"""Relative standard error below which no point is taken for surer: servers differ by as much from start to start."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """The wait of one stream for one chunk."""

    seconds: float
    tokens: int
    batch: float
    """Streams that were decoding at that time."""
    position: float
    """Tokens of the sequence before this chunk, prompt included."""
    prompts: int
    """First tokens of other streams in the same step."""
    is_clear: bool
    """Whether the steps before and after it computed no prompt either."""


def find_points(run: Run, lengths: Mapping[str, int]) -> tuple[StepPoint, ...]:
    """Return step times of every server under every closed load: decode-only steps, and steps with prompts.

    Disturbed turns do not count.

    Args:
        run: the measured run, with answers and counters.
        lengths: maximum draft tokens per sequence, by server name; 0 without a drafter.
    """
    return tuple(
        point for place, turns in _group(run) for point in _make_points(place, lengths.get(place[0], 0), turns)
    )


def find_firsts(run: Run, lengths: Mapping[str, int]) -> tuple[FirstPoint, ...]:
    """Return the times to first token of every server under every closed load.

    Args:
        run: the measured run, with answers and counters.
        lengths: maximum draft tokens per sequence, by server name; 0 without a drafter.
    """
    streams = {each.label: each.concurrency for each in run.plan.conditions}
    points = (
        _make_first(place, lengths.get(place[0], 0), float(streams[place[1]] or 1), turns)
        for place, turns in _group(run)
    )
    return tuple(each for each in points if each is not None)


def _group(run: Run) -> Iterator[tuple[tuple[str, str, str], list[tuple[TurnRecord, Sequence[Answer]]]]]:
    """Yield server, load and workload with the turns that nothing disturbed and their answers."""
    disturbed = {(each.attempt_key, each.arm) for each in find_disturbances(run, get_thresholds(run))}
    answers = {turn: list(each) for turn, each in groupby(sorted(run.answers, key=_turn_of), key=_turn_of)}
    conditions = {each.label for each in run.plan.conditions if isinstance(each.load, ClosedLoop)}
    counted = (turn for turn in run.turns if (turn.attempt_key, turn.arm) not in disturbed)
    turns = sorted((turn for turn in counted if turn.condition in conditions), key=_place_of)
    for place, same in groupby(turns, key=_place_of):
        yield place, [(turn, answers.get(turn.turn, [])) for turn in same]


def _make_first(
    place: tuple[str, str, str], most: int, streams: float, turns: Sequence[tuple[TurnRecord, Sequence[Answer]]]
) -> FirstPoint | None:
    measured = [each for _, answers in turns for each in answers if each.measured and each.error is None]
    waits = [each.timing.ttft_s for each in measured if each.timing.ttft_s is not None]
    if not waits:
        return None
    counters = Counters.total(turn.counters for turn, _ in turns)
    steps, emitted = _count_steps(counters, _count_answers(turns))
    return FirstPoint(
        setting=place[0],
        load=place[1],
        workload=place[2],
        in_flight=streams,
        prompt_tokens=_mean_prompt(measured) * (1 - (counters.prefix_hit_rate or 0.0)),
        output_tokens=mean(each.timing.num_tokens for each in measured),
        tokens_per_step=emitted / steps if steps else 1.0,
        drafted=_mean_draft(counters, steps, most),
        first_ms=1e3 * mean(waits),
        requests=len(waits),
    )


def _turn_of(answer: Answer) -> int:
    return answer.turn


def _place_of(turn: TurnRecord) -> tuple[str, str, str]:
    return turn.arm, turn.condition, turn.workload


def _make_points(
    place: tuple[str, str, str], most: int, turns: Sequence[tuple[TurnRecord, Sequence[Answer]]]
) -> Iterator[StepPoint]:
    """Yield the point of steps that only decode, and that of the others, where there are enough of them.

    A first token may be sent later than the chunks of the step that computed its prompt: gaps next to one count to
    the steps with prompts, so that these have the time of all prompts, whichever gap it came in.

    Args:
        place: name of the server, label of the condition, name of the workload.
        most: draft tokens that the server makes for a sequence at most.
        turns: with their answers.
    """
    streams = [list(gaps) for _, answers in turns for gaps in _find_gaps(answers)]
    counters = Counters.total(turn.counters for turn, _ in turns)
    prompt_tokens = _mean_prompt(answer for _, answers in turns for answer in answers)
    drafted = _mean_draft(counters, _count_steps(counters, _count_answers(turns))[0], most)
    kinds = (
        [[gap for gap in stream if gap.is_clear] for stream in streams],
        [[gap for gap in stream if not gap.is_clear] for stream in streams],
    )
    for kind in kinds:
        found = [gap for stream in kind for gap in stream]
        if len(found) < _FEWEST_GAPS or (batch := mean(gap.batch for gap in found)) * _FEWEST_STEPS > len(found):
            continue
        if not (seconds := mean(gap.seconds for gap in found)):
            continue  # all came at one time, after the client or the network stood still
        spread = _find_spread(kind)
        computed = mean(gap.prompts for gap in found) * prompt_tokens * (1 - (counters.prefix_hit_rate or 0.0))
        yield StepPoint(
            setting=place[0],
            load=place[1],
            workload=place[2],
            batch=batch,
            context=mean(gap.position for gap in found),
            prefill_tokens=computed,
            drafted=drafted,
            tokens_per_step=mean(gap.tokens for gap in found),
            step_ms=1e3 * seconds,
            low=1e3 * seconds * max(0.01, 1 - _TO_95 * spread),
            high=1e3 * seconds * (1 + _TO_95 * spread),
            steps=round(len(found) / batch),
        )


def _find_gaps(answers: Sequence[Answer]) -> Iterator[Iterator[_Gap]]:
    """Yield the gaps of each stream of a turn, background streams included."""
    streamed = [answer for answer in answers if len(answer.timing.chunks) > 1]
    firsts, lasts = (np.sort([answer.timing.chunks[end][0] for answer in streamed]) for end in (0, -1))
    for answer in streamed:
        yield _follow(answer, firsts, lasts)


def _follow(answer: Answer, firsts: NDArray[np.float64], lasts: NDArray[np.float64]) -> Iterator[_Gap]:
    """Yield the gaps of one stream.

    Args:
        firsts: when each stream of the turn began, in order.
        lasts: when each ended, in order.
    """
    position = _count_prompt(answer) + answer.timing.chunks[0][1]
    for (before, _), (now, tokens) in pairwise(answer.timing.chunks):
        wide, middle = now - before, (before + now) / 2
        began, ended = np.searchsorted(firsts, middle), np.searchsorted(lasts, middle)
        same = np.searchsorted(firsts, now + wide / 2) - began
        near = np.searchsorted(firsts, now + 1.5 * wide) - np.searchsorted(firsts, before - wide / 2)
        own = 1 if before - wide / 2 <= answer.timing.chunks[0][0] else 0
        yield _Gap(wide, tokens, max(1.0, float(began - ended)), position, int(same), near - own == 0)
        position += tokens


def _count_prompt(answer: Answer) -> int:
    return answer.num_prompt_tokens or len(answer.prompt_token_ids)


def _mean_prompt(answers: Iterable[Answer]) -> float:
    counts = [count for answer in answers if (count := _count_prompt(answer))]
    return mean(counts) if counts else 0.0


def _count_answers(turns: Iterable[tuple[TurnRecord, Sequence[Answer]]]) -> int:
    return sum(bool(answer.timing.chunks) for _, answers in turns for answer in answers)


def _count_steps(counters: Counters, answers: int) -> tuple[float, float]:
    """Return the decoding steps of single sequences, and the tokens that these gave; 0 where the server does not count.

    The first token of an answer comes with its prompt, not with a step that decodes. What stands behind an answer's end
    is counted as accepted: then the drafts tell the steps.
    """
    emitted = float(max(0, (counters.generation_tokens or 0) - answers))
    return max(emitted - counters.spec.num_accepted_tokens, float(counters.spec.num_drafts)), emitted


def _mean_draft(counters: Counters, steps: float, most: int) -> float:
    """Return the draft tokens of a sequence and step; all of them where the server does not count."""
    if counters.generation_tokens is None or steps <= 0:
        return float(most)
    return min(float(most), counters.spec.num_draft_tokens / steps)


def _find_spread(streams: Sequence[Sequence[_Gap]]) -> float:
    """Return the relative standard error of the mean: streams of one moment share its steps."""
    means = [mean(gap.seconds for gap in stream) for stream in streams if stream]
    together = mean(gap.batch for stream in streams for gap in stream)
    independent = max(2.0, len(means) / together)
    if len(means) < 2:
        return 0.1
    return max(_LEAST_SPREAD, stdev(means) / mean(means) / sqrt(independent))
