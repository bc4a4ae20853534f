"""Replays of logged answers against serving, at temperature 1 with other seeds, with mistakes that must show.

A log is written by plain decoding. Replaying it says how many tokens a step drafting would have emitted; serving the
same prompts with the method, with other seeds, says how many it does. The two texts are other draws of the same law,
so they agree within their standard errors. Two mistakes are planted beside: the mean over all positions instead of a
walk over the steps, and sampled drafts judged by whether a draw names the text.

    python benchmarks/cpu/replay_accuracy.py --out benchmarks/cpu/results/replay-accuracy.json
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import LLM, SamplingParams
from draftwise.core import Interval, SpecConfig
from draftwise.engine.replay.dense import DenseReplayer
from draftwise.engine.replay.forced import force
from draftwise.engine.step.launched import Outcome
from draftwise.replay import Anchors, walk
from draftwise.replay.directory import to_anchors
from draftwise.replay.summary import count_steps
from draftwise.replay.transcripts import Transcript
from draftwise.statistics.totals import ratio_of_totals
from draftwise.version import __version__
from draftwise.workloads import load_workloads

BUNDLE = Path(__file__).parents[2] / "bundle"
SETTINGS: dict[str, dict[str, Any]] = {
    "draft_model": {"model": "draft_model"},
    "draft_model, sampled drafts": {"model": "draft_model", "draft_sample_method": "probabilistic"},
    "eagle3": {"model": "eagle3"},
    "eagle3, sampled drafts": {"model": "eagle3", "draft_sample_method": "probabilistic"},
}
K, ANSWER, TEMPERATURE = 3, 64, 1.0


def main() -> None:
    """Replay, serve, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=16, help="of each workload")
    parser.add_argument("--seeds", type=int, default=4, help="answers to each prompt, in the log and in serving alike")
    parser.add_argument("--only", choices=list(SETTINGS), help="one setting; the others stay as --out has them")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    plain = make_llm(None)
    prompts = encode(plain, arguments.prompts)
    log = [each for seed in range(arguments.seeds) for each in decode(plain, prompts, seed)]
    rows = {row["setting"]: row for row in json.loads(arguments.out.read_text())["rows"]} if arguments.only else {}
    for name in [arguments.only] if arguments.only else SETTINGS:
        rows[name] = compare(name, SETTINGS[name], prompts, log, arguments.seeds)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    about = {"made": made, "draftwise": __version__, "machine": platform.machine(), "k": K, "temperature": TEMPERATURE}
    about |= {"requests": len(log), "answer_tokens": sum(len(each.answer_ids) for each in log), "dtype": "float32"}
    arguments.out.write_text(json.dumps({"about": about, "rows": list(rows.values())}, indent=1) + "\n")


def compare(
    name: str, options: dict[str, Any], prompts: list[list[int]], log: list[Transcript], seeds: int
) -> dict[str, Any]:
    """Return what replaying and serving say of one setting, and what two mistakes would."""
    spec = {"method": options["model"], "num_speculative_tokens": K, **options, "model": str(BUNDLE / options["model"])}
    llm = make_llm(spec)
    found = {each.id: each.by_k for each in DenseReplayer(llm.engine, (K,)).replay(log)}
    (anchors,) = to_anchors(SpecConfig.parse(spec), log, found)
    emitted_R = (anchors.lengths - 1).astype(float)
    replayed = ratio_of_totals(emitted_R, count_steps(anchors, walk(anchors, K)))
    served = serve(llm, prompts, seeds)
    row = {
        "setting": name,
        "replayed": spell(replayed),
        "served": spell(served),
        "off_percent": off(replayed, served),
        "planted_all_positions_off_percent": 100 * (mean_of_positions(anchors) / served.value - 1),
    }
    if "draft_sample_method" in options:
        steps = [force(llm.engine, log[begin : begin + 16], K) for begin in range(0, len(log), 16)]
        steps_R = np.array([len(each) for batch in steps for each in batch], float)
        row["planted_text_match_off_percent"] = off(ratio_of_totals(emitted_R, steps_R), served)
    print(json.dumps(row), flush=True)
    return row


def serve(llm: LLM, prompts: list[list[int]], seeds: int) -> Interval:
    """Return tokens a step of serving with other seeds than the log's."""
    steps: dict[str, list[int]] = {}

    def note(outcome: Outcome) -> None:
        if outcome.sequence.num_output:
            steps.setdefault(outcome.sequence.request.request_id, [0])[0] += 1

    llm.engine.on_outcome = note
    answers = {each.id: len(each.answer_ids) for seed in range(seeds) for each in decode(llm, prompts, 1000 + seed)}
    llm.engine.on_outcome = None
    names = [name for name in answers if name in steps]
    emitted_R = np.array([answers[name] - 1 for name in names], float)
    return ratio_of_totals(emitted_R, np.array([steps[name][0] for name in names], float))


def decode(llm: LLM, prompts: list[list[int]], seed: int) -> list[Transcript]:
    """Return an answer to each prompt, under the id that the engine gave the request."""
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=ANSWER, seed=7919 * seed + place)
        for place in range(len(prompts))
    ]
    outputs = llm.generate(prompts, params)
    return [
        Transcript(
            id=f"{output.request_id}",
            prompt_ids=tuple(ids),
            answer_ids=tuple(output.outputs[0].token_ids),
            limit=ANSWER,
            temperature=TEMPERATURE,
        )
        for output, ids in zip(outputs, prompts, strict=True)
    ]


def mean_of_positions(anchors: Anchors) -> float:
    """Return the mean over all positions of the tokens that a step there would emit: the first mistake."""
    drafts = anchors.drafts_for(K)
    accepted_N = drafts.accepted_N if drafts.chances_NK is None else np.cumprod(drafts.chances_NK, 1).sum(1)
    assert accepted_N is not None
    inside = np.ones(len(accepted_N), bool)
    inside[anchors.offsets[:-1]] = False
    return float(1 + accepted_N[inside].mean())


def make_llm(spec: dict[str, Any] | None) -> LLM:
    """Return the bundled target, in float32."""
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 640}
    return LLM(str(BUNDLE / "target"), speculative_config=spec, **settings, enable_prefix_caching=False)


def encode(llm: LLM, num: int) -> list[list[int]]:
    """Return prompts of all bundled workloads in tokens, their last 256 at most."""
    tokenizer = llm.get_tokenizer()
    workloads = [workload for name in ("code", "prose", "rewrite") for workload in load_workloads(f"{name}#n={num}")]
    given = [prompt for workload in workloads for prompt in workload.prompts]
    texts = [each.text or tokenizer.apply_chat_template(each.messages) for each in given]
    return [tokenizer.encode(text, False)[-256:] for text in texts]


def spell(found: Interval) -> Sequence[float]:
    """Return a value with its 95 % interval."""
    return [round(each, 4) for each in (found.value, found.low, found.high)]


def off(found: Interval, truth: Interval) -> float:
    """Return by how many percent one value is off another."""
    return round(100 * (found.value / truth.value - 1), 2)


if __name__ == "__main__":
    main()
