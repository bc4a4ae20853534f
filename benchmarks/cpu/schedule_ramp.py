"""The k and the schedule that `draftwise schedule` chooses beside every fixed k, over a ramp of load on our engine.

In one process: plain decoding and the largest k are timed at four batch sizes (a calibration), the plain answers are
replayed (a profile), and both give the best fixed k and a schedule. Then every fixed k, the schedule and plain decoding
are timed at every batch size of the ramp, in short turns, on other prompts. Only steps that decode a full batch count,
and tokens a step are the replayed ones: luck with drafts is no merit of a k. One thread computes, and the clock is its
CPU time; still the machine must be quiet: two threads of one core slow each other by a third.

    python benchmarks/cpu/schedule_ramp.py --method eagle3 --kmax 5 --out benchmarks/cpu/results/schedule_ramp.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import LLM, SamplingParams
from draftwise.checkpoints.model_config import find_model_config
from draftwise.core import (
    CalibratedSetting,
    Calibration,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    SpecConfig,
    StepPoint,
)
from draftwise.engine.replay.dense import DenseReplayer
from draftwise.engine.step.sequence import Request
from draftwise.plan.schedule.ranges import make_schedule_keys
from draftwise.replaying.directory import to_anchors
from draftwise.replaying.lookup_drafts import NgramReplayer
from draftwise.replaying.summary import summarize
from draftwise.replaying.transcripts import Transcript
from draftwise.runs.documents import write_document
from draftwise.version import __version__
from draftwise.workloads import load_workloads

sys.path.insert(0, str(Path(__file__).parents[1]))

from ramp import PLAIN, SCHEDULE, advise, fixed, hold

BUNDLE = Path(__file__).parents[2] / "bundle"
RAMP, CALIBRATED, ANSWER = (1, 2, 4, 8, 16), (1, 2, 4, 16), 48


def main() -> None:
    """Calibrate, replay, choose, measure, and write the result after every round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="eagle3")
    parser.add_argument("--kmax", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=150, help="after which no round is begun")
    parser.add_argument("--keep", type=Path, help="folder for the calibration and the profile")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    use_one_core()
    options = {"model": str(BUNDLE / given.method)} if (BUNDLE / given.method).is_dir() else {}
    spec = {"method": given.method, "num_speculative_tokens": given.kmax, **options}
    ks = range(1, given.kmax + 1)
    llms = {PLAIN: make_llm(None)} | {fixed(k): make_llm({**spec, "num_speculative_tokens": k}) for k in ks}
    for llm in llms.values():
        list(run(llm, [[*range(3, 40)]] * 4, 2))
    known, fresh = encode(llms[PLAIN], 0), encode(llms[PLAIN], 30)
    print("engines are up", flush=True)
    calibration = calibrate(llms, SpecConfig.parse(spec), known)
    print("calibrated", flush=True)
    profile = replay(llms, SpecConfig.parse(spec), known, ks)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        write_document(given.keep / "calibration.json", calibration)
        write_document(given.keep / "profile.json", profile)
    advice = advise(profile, calibration, RAMP)
    llms[SCHEDULE] = make_llm({**spec, **make_schedule_keys(advice.choice.ranges)})
    list(run(llms[SCHEDULE], known[:4], 2))
    began, rounds = time.monotonic(), list[dict[str, list[float]]]()
    kept = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    while len(rounds) < given.rounds and time.monotonic() - began < given.seconds:
        rounds.append(time_ramp(llms, fresh, backwards=len(rounds) % 2 == 1))
        row = {"method": given.method, **hold(advice, profile, calibration, rounds, RAMP)}
        print(json.dumps(row), flush=True)
        about = {
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "draftwise": __version__,
            "ramp": RAMP,
            "answer_tokens": ANSWER,
            "rounds": len(rounds),
            "clock": "CPU time of one thread",
        }
        rows = [*(each for each in kept if each["method"] != given.method), row]
        given.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def time_ramp(llms: Mapping[str, LLM], prompts: Sequence[Sequence[int]], *, backwards: bool) -> dict[str, list[float]]:
    """Return mean seconds of a step at every batch size: all arms at one size, then at the next."""
    took: dict[str, list[float]] = {name: [] for name in llms}
    for size in RAMP:
        for name in list(llms)[:: -1 if backwards else 1]:
            steps = np.array(list(run(llms[name], prompts[: max(4, size)], size)))
            took[name].append(float(steps[:, 0].mean()))
    return took


def run(llm: LLM, prompts: Sequence[Sequence[int]], size: int) -> Iterator[tuple[float, int, float]]:
    """Keep so many requests in flight; yield seconds, tokens and mean context of each step that decodes all."""
    engine, waiting, live = llm.engine, deque(enumerate(prompts)), 0
    pending: tuple[Any, ...] = ()
    while waiting or engine.has_work():
        while waiting and live < size:
            number, ids = waiting.popleft()
            params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
            engine.add(Request(request_id=f"{time.monotonic_ns()}-{number}", prompt_token_ids=list(ids), params=params))
            live += 1
        running = engine.scheduler.running
        whole = not engine.scheduler.waiting and len(running) == size and all(each.is_decoding for each in running)
        context = float(np.mean([len(each.tokens) for each in running])) if running else 0.0
        began = time.process_time()
        pending, deltas = engine.step(pending)
        if whole:
            yield time.process_time() - began, sum(len(each.token_ids) for each in deltas), context
        live -= sum(each.finish_reason is not None for each in deltas)


def calibrate(llms: Mapping[str, LLM], spec: SpecConfig, prompts: Sequence[Sequence[int]]) -> Calibration:
    """Return the steps of plain decoding and of the largest k at four batch sizes, measured in turns."""
    known = find_model_config(str(BUNDLE / "target"))
    assert known is not None
    drafter = find_model_config(spec.model) if spec.model else None
    arms = {PLAIN: llms[PLAIN], "spec": llms[fixed(spec.num_speculative_tokens or 0)]}
    points = []
    for size in CALIBRATED:
        took: dict[str, list[Any]] = {name: [] for name in arms}
        before = {name: llm.engine.stats().spec for name, llm in arms.items()}
        for name in (*arms, *reversed(arms)):
            took[name] += list(run(arms[name], prompts[: max(8, 2 * size)], size))[2:]
        for name, llm in arms.items():
            steps = np.array(took[name])
            grown = llm.engine.stats().spec - before[name]
            ms = 1e3 * float(steps[:, 0].mean())
            spread = 1.96 * 1e3 * float(steps[:, 0].std()) / len(steps) ** 0.5
            points.append(
                StepPoint(
                    setting=name,
                    load=f"c={size}",
                    batch=size,
                    context=float(steps[:, 2].mean()),
                    drafted=grown.num_draft_tokens / max(1, grown.num_drafts) if grown.num_drafts else 0.0,
                    tokens_per_step=float(steps[:, 1].mean()) / size,
                    step_ms=ms,
                    low=ms - spread,
                    high=ms + spread,
                    steps=len(steps),
                )
            )
    settings = (
        CalibratedSetting(name=PLAIN),
        CalibratedSetting(name="spec", spec=spec, drafter=None if drafter is None else drafter.config),
    )
    return Calibration(
        engine="draftwise",
        engine_version=__version__,
        target="target",
        config=known.config,
        settings=settings,
        points=tuple(points),
    )


def replay(llms: Mapping[str, LLM], spec: SpecConfig, prompts: Sequence[Sequence[int]], ks: Sequence[int]) -> Profile:
    """Return the acceptance on plain answers."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    outputs = llms[PLAIN].generate([list(ids) for ids in prompts], params)
    log = [
        Transcript(
            id=output.request_id,
            prompt_ids=tuple(ids),
            answer_ids=tuple(output.outputs[0].token_ids),
            limit=ANSWER,
            temperature=0.0,
        )
        for output, ids in zip(outputs, prompts, strict=True)
    ]
    kmax = max(ks)
    if spec.model:
        replayer: Any = DenseReplayer(llms[fixed(kmax)].engine, (kmax,))
    else:
        replayer = NgramReplayer(k=kmax, shortest=1, longest=4)
    rows = {each.id: each.by_k for each in replayer.replay(log)}
    (anchors,) = to_anchors(spec, log, rows)
    tokens = sum(len(each.answer_ids) for each in log)
    return Profile(
        target=ReplayedTarget(name="target"),
        log=ReplayedLog(rows=len(log), used=len(log), tokens_out=tokens, prompt_tokens=(100, 100, 100)),
        entries=tuple(summarize(anchors, list(ks))),
    )


def use_one_core() -> None:
    """Leave this process one core, so that engines which are made later compute with one thread."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def make_llm(spec: Mapping[str, Any] | None) -> LLM:
    """Return the bundled target."""
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 384, "max_num_seqs": max(RAMP)}
    return LLM(str(BUNDLE / "target"), speculative_config=spec, **settings, enable_prefix_caching=False)


def encode(llm: LLM, first: int) -> list[list[int]]:
    """Return the ends of 36 prompts in tokens, of all bundled workloads in turn."""
    tokenizer = llm.get_tokenizer()
    texts = []
    for name in ("code", "prose", "rewrite"):
        (workload,) = load_workloads(name)
        chosen = workload.prompts[first : first + 12]
        texts.append([each.text or tokenizer.apply_chat_template(each.messages) for each in chosen])
    return [tokenizer.encode(text, False)[-160:] for row in zip(*texts, strict=True) for text in row]


if __name__ == "__main__":
    main()
