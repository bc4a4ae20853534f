"""Replays of logged answers against serving, at temperature 1 with other seeds, with mistakes that must show.

A log is written by plain decoding. Replaying it says how many tokens a step drafting would have emitted; serving the
same prompts with the method, with other seeds, says how many it does. The two texts are other draws of the same law,
so they agree within their standard errors; both have the same prompts, so that the error of their ratio is taken over
prompts. The served answers are replayed too: then both speak of the same text, and the error is that of what drafts
were drawn. Two mistakes are planted beside: the mean over all positions instead of a walk over the steps, and sampled
drafts judged by whether a draw names the text.

    python benchmarks/cpu/replay_accuracy.py --out benchmarks/cpu/results/replay_accuracy.json
    python benchmarks/cpu/replay_accuracy.py --target TARGET --drafters DIR --only eagle3 --device cuda --out OUT
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance, write

from draftwise import LLM, SamplingParams
from draftwise.core import Interval, SpecConfig
from draftwise.engine.replayers import DenseReplayer, force
from draftwise.engine.step.launched import Outcome
from draftwise.replaying import Anchors, walk
from draftwise.replaying.acceptance_profile import count_steps
from draftwise.replaying.replaying import to_anchors
from draftwise.replaying.served_drafts import NgramReplayer, SuffixReplayer
from draftwise.replaying.transcripts import Replayer, Transcript
from draftwise.statistics.ratios import Array, ratio_of_totals
from draftwise.workloads import load_workloads

BUNDLE = Path(__file__).parents[2] / "bundle"
SAMPLED = {"draft_sample_method": "probabilistic"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    **{name: {"method": name, "model": name} for name in ("draft_model", "medusa", "mlp_speculator", "eagle")},
    **{name: {"method": name, "model": name} for name in ("eagle3", "mtp", "dflash")},
    "p_eagle": {"method": "eagle3", "model": "p_eagle", "parallel_drafting": True},
    "draft_model, sampled drafts": {"method": "draft_model", "model": "draft_model", **SAMPLED},
    "eagle3, sampled drafts": {"method": "eagle3", "model": "eagle3", **SAMPLED},
}
K, ANSWER, TEMPERATURE, IN_FLIGHT = 3, 64, 1.0, 16


@dataclass(frozen=True)
class Place:
    """What is loaded, and where."""

    target: Path
    drafters: Path
    device: str

    def load(self, spec: dict[str, Any] | None) -> LLM:
        """Return the target, in float32."""
        settings: dict[str, Any] = {"dtype": "float32", "device": self.device, "max_model_len": 640}
        settings |= {"max_num_seqs": IN_FLIGHT, "kv_cache_memory_bytes": 2 << 30, "enable_prefix_caching": False}
        return LLM(str(self.target), speculative_config=spec, **settings)


def main() -> None:
    """Replay, serve, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=BUNDLE / "target", help="another needs --drafters")
    parser.add_argument("--drafters", type=Path, default=BUNDLE, help="folder with a folder for each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=16, help="of each workload")
    parser.add_argument("--seeds", type=int, default=4, help="answers to each prompt, in the log and in serving alike")
    parser.add_argument("--only", choices=list(SETTINGS), action="append", help="the others stay as --out has them")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if missing := [str(path) for path in (arguments.target, arguments.drafters) if not path.exists()]:
        parser.error(f"there is no {', '.join(missing)}")
    place = Place(arguments.target, arguments.drafters, arguments.device)
    plain = place.load(None)
    prompts = encode(plain, arguments.prompts)
    log = [each for seed in range(arguments.seeds) for each in decode(plain, prompts, seed)]
    about = provenance() | {"k": K, "temperature": TEMPERATURE}
    about |= {"target": arguments.target.name, "dtype": "float32"}
    before = json.loads(arguments.out.read_text())["rows"] if arguments.only and arguments.out.exists() else []
    rows = {row["setting"]: row for row in before}
    for name in arguments.only or SETTINGS:
        rows[name] = compare(name, place, prompts, log, arguments.seeds)
        write({"about": about, "rows": list(rows.values())}, arguments.out)


def compare(name: str, place: Place, prompts: list[list[int]], log: list[Transcript], seeds: int) -> dict[str, Any]:
    """Return what replaying and serving say of one setting, and what two mistakes would."""
    options = SETTINGS[name]
    spec = {"num_speculative_tokens": K, **options}
    if "model" in options:
        spec["model"] = str(place.drafters / options["model"])
    llm = place.load(spec)
    anchors = replay(llm, spec, options, log)
    emitted_R, steps_R = count_emitted(log), count_steps(anchors, walk(anchors, K))
    answers, served_steps_R = serve(llm, prompts, seeds)
    served_emitted_R = count_emitted(answers)
    again = replay(llm, spec, options, answers)
    again_steps_R = count_steps(again, walk(again, K))
    replayed, served = ratio_of_totals(emitted_R, steps_R), ratio_of_totals(served_emitted_R, served_steps_R)
    parts = [each.reshape(seeds, -1).sum(0) for each in (emitted_R, steps_R, served_emitted_R, served_steps_R)]
    same = [each.reshape(seeds, -1).sum(0) for each in (served_emitted_R, again_steps_R)]
    row = {
        "setting": name,
        "requests": len(log),
        "replayed": spell(replayed),
        "served": spell(served),
        "off_percent": off(replayed, served),
        "standard_error_percent": find_error(*parts),
        "same_answers_off_percent": off(ratio_of_totals(served_emitted_R, again_steps_R), served),
        "same_answers_standard_error_percent": find_error(*same, *parts[2:]),
        "same_answers_with_equal_steps": int((np.abs(again_steps_R - served_steps_R) < 0.5).sum()),
        "planted_all_positions_off_percent": round(100 * (mean_of_positions(anchors) / served.value - 1), 2),
    }
    if "draft_sample_method" in options:
        forced = [force(llm.engine, log[begin : begin + 16], K) for begin in range(0, len(log), 16)]
        forced_R = np.array([len(each) for batch in forced for each in batch], float)
        row["planted_text_match_off_percent"] = off(ratio_of_totals(emitted_R, forced_R), served)
    print(json.dumps(row), flush=True)
    return row


def open_replayer(llm: LLM, options: dict[str, Any]) -> Replayer:
    """Return what replays a setting."""
    if "model" in options:
        return DenseReplayer(llm.engine, (K,))
    if "prompt_lookup_max" in options:
        return NgramReplayer(k=K, shortest=options["prompt_lookup_min"], longest=options["prompt_lookup_max"])
    return SuffixReplayer(ks=(K,), options={}, in_flight=IN_FLIGHT)


def replay(llm: LLM, spec: dict[str, Any], options: dict[str, Any], log: list[Transcript]) -> Anchors:
    """Return what would have been drafted behind every token of some answers."""
    found = {each.id: each.by_k for each in open_replayer(llm, options).replay(log)}
    (anchors,) = to_anchors(SpecConfig.parse(spec), log, found)
    return anchors


def count_emitted(answers: list[Transcript]) -> Array:
    """Return the tokens behind the first of every answer."""
    return np.array([len(each.answer_ids) - 1 for each in answers], float)


def serve(llm: LLM, prompts: list[list[int]], seeds: int) -> tuple[list[Transcript], Array]:
    """Return answers served with other seeds than the log's, and the steps behind the first token of each."""
    steps: dict[str, int] = {}

    def note(outcome: Outcome) -> None:
        if outcome.sequence.num_output:
            name = outcome.sequence.request.request_id
            steps[name] = steps.get(name, 0) + 1

    llm.engine.on_outcome = note
    answers = [each for seed in range(seeds) for each in decode(llm, prompts, 1000 + seed)]
    llm.engine.on_outcome = None
    return answers, np.array([steps.get(each.id, 0) for each in answers], float)


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


def find_error(emitted_P: Array, steps_P: Array, served_emitted_P: Array, served_steps_P: Array) -> float:
    """Return the standard error of how far off the replay is, in percent: prompts are left out one by one."""
    sums = [each.sum() - each for each in (emitted_P, steps_P, served_emitted_P, served_steps_P)]
    logs = np.log(sums[0] / sums[1]) - np.log(sums[2] / sums[3])
    num = len(logs)
    return round(100 * float(np.sqrt((num - 1) / num * ((logs - logs.mean()) ** 2).sum())), 2)


def mean_of_positions(anchors: Anchors) -> float:
    """Return the mean over all positions of the tokens that a step there would emit: the first mistake."""
    drafts = anchors.drafts_for(K)
    accepted_N = drafts.accepted_N if drafts.chances_NK is None else np.cumprod(drafts.chances_NK, 1).sum(1)
    assert accepted_N is not None
    inside = np.ones(len(accepted_N), bool)
    inside[anchors.offsets[:-1]] = False
    return float(1 + accepted_N[inside].mean())


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
