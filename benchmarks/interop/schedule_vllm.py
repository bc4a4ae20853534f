"""The schedule that `draftwise schedule` chooses beside every fixed k on real vLLM for CPU, over a ramp of batch sizes.

    draftwise fetch smollm2
    python benchmarks/interop/schedule_vllm.py replay --vllm-python VLLM_PYTHON --model MODEL --folder FOLDER
    python benchmarks/interop/schedule_vllm.py ramp --vllm-python VLLM_PYTHON --model MODEL --folder FOLDER --out OUT

`replay` lets vLLM answer requests without speculation and `draftwise replay` say what an EAGLE-3 head would have been
worth on them. `ramp` times plain decoding and the largest k at four batch sizes (the calibration), chooses, starts
vLLM with the schedule, and times every arm at every size of the ramp on other requests: one process an arm, all
up together, one working at a time, in turns of so many steps of a full batch. Rounds go through the arms in alternating
order. One thread computes, and the clock is its CPU time; still the machine must be quiet. Tokens a second are those of
the replayed acceptance, so that luck is not in the ratio; what vLLM drafted is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.checkpoints.model_config import find_model_config
from draftwise.core import CalibratedSetting, Calibration, SpecConfig, StepPoint
from draftwise.engine.models.gguf import checkpoint_of
from draftwise.engine.text.tokenizer import load_tokenizer
from draftwise.plan.schedule.ranges import make_schedule_keys
from draftwise.runs.documents import read_profile, write_document
from draftwise.version import __version__

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "h200"))

from peer import Peer
from ramp import GOALS, PLAIN, SCHEDULE, advise, fixed, hold
from record import command_line

HERE = Path(__file__).parent
BUNDLE = HERE.parents[1] / "bundle/smollm2"
CALIBRATED = (1, 2, 4, 16)
ANSWER = 96
START_S, TURN_S = 240, 120
"""How long to wait for vLLM to start and for a turn."""
_TO_95 = 1.96
Turn = dict[str, Any]
"""What `run` of vllm_steps.py returns."""


def main() -> None:
    """Replay, or measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("replay", "ramp"))
    parser.add_argument("--vllm-python", type=command_line, required=True, help="a Python with vLLM 0.32 for CPU")
    parser.add_argument("--model", required=True, help="SmolLM2: the file that `draftwise fetch` wrote, or a folder")
    parser.add_argument("--folder", type=Path, required=True, help="for the log, the profile, and what vLLM says")
    parser.add_argument("--kmax", type=int, default=3)
    parser.add_argument("--ramp", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="ascending")
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="after which no round is begun")
    parser.add_argument("--out", type=Path, help="JSON to write")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    given.model = checkpoint_of(given.model)
    (replay if given.mode == "replay" else measure)(given)


def replay(given: argparse.Namespace) -> None:
    """Write a log of vLLM's plain answers, and the profile of the largest k on it."""
    prompts = read_prompts(given)[0]
    with ExitStack() as opened:
        plain = opened.enter_context(start(given, PLAIN, None))
        await_start(plain)
        told = plain.ask("answer", prompts=prompts, max_tokens=ANSWER, timeout_s=TURN_S)
    log = given.folder / "log.jsonl"
    lines = [
        {
            "id": f"chat-{number}",
            "request": {"prompt": ids, "temperature": 0, "max_tokens": ANSWER},
            "response": {"choices": [answer]},
        }
        for number, (ids, answer) in enumerate(zip(prompts, told["answers"], strict=True))
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "draftwise", "replay", str(log), "--target", given.model, "--dtype", "float32"]
    command += [
        "--candidate",
        json.dumps(make_spec(given.kmax)),
        "--out",
        str(given.folder / "profile"),
        "--to-the-end",
    ]
    subprocess.run(command, check=True)


def measure(given: argparse.Namespace) -> None:
    """Calibrate, choose, measure the ramp and write the result after every round, behind those of earlier runs."""
    began, load = time.monotonic(), os.getloadavg()[0]
    profile = read_profile(given.folder / "profile")
    known, fresh = read_prompts(given)
    with ExitStack() as opened:
        arms = {PLAIN: None} | {fixed(k): make_spec(k) for k in range(1, given.kmax + 1)}
        peers = {name: opened.enter_context(start(given, name, spec)) for name, spec in arms.items()}
        versions, *_ = [await_start(peer) for peer in peers.values()]
        say(began, "vLLM is up")
        calibration = calibrate(given, peers, known, versions["vllm"])
        write_document(given.folder / "calibration.json", calibration)
        advice = advise(profile, calibration, given.ramp)
        ranges = advice.choice.ranges
        say(began, f"{ranges}, k={advice.choice.fixed_k}, gain {advice.choice.schedule_gain:.3f}")
        spec = make_spec(given.kmax) | make_schedule_keys(ranges)
        peers[SCHEDULE] = opened.enter_context(start(given, SCHEDULE, spec))
        await_start(peers[SCHEDULE])
        about = {
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "draftwise": __version__,
            **versions,
            "hardware": f"{os.cpu_count()} cores, {platform.machine()}",
            "load_before": round(load, 1),
            "target": "SmolLM2-135M-Instruct",
            "ramp": given.ramp,
            "steps_of_a_turn": given.steps,
            "clock": "CPU time of one thread, steps of full batches",
        }
        turns: dict[tuple[str, int], list[Turn]] = defaultdict(list)
        kept = json.loads(given.out.read_text(encoding="utf-8"))["runs"] if given.out and given.out.exists() else []
        rounds: list[dict[str, list[float]]] = []
        for number in range(given.rounds):
            if time.monotonic() - began > given.seconds:
                break
            for name, size, turn in take_turns(given, peers, fresh, backwards=number % 2 == 1):
                turns[name, size].append(turn)
            rounds.append({name: [mean_step(turns[name, size][-1]) for size in given.ramp] for name in peers})
            found = about | {
                "result": hold(advice, profile, calibration, rounds, given.ramp),
                "drafted_a_draft": {name: [count_drafted(turns[name, size]) for size in given.ramp] for name in peers},
                "step_ms": {
                    name: [[round(1e3 * mean_step(turn), 2) for turn in turns[name, size]] for size in given.ramp]
                    for name in peers
                },
            }
            if given.out is not None:
                text = json.dumps({"goals": GOALS, "runs": [*kept, found]}, indent=1)
                given.out.write_text(text + "\n", encoding="utf-8")
            say(began, json.dumps(found["result"]))


def take_turns(
    given: argparse.Namespace, peers: Mapping[str, Peer], prompts: Sequence[list[int]], *, backwards: bool
) -> Iterator[tuple[str, int, Turn]]:
    """Yield one turn of every arm at every size: all arms at one size, then at the next."""
    for size in given.ramp:
        for name in list(peers)[:: -1 if backwards else 1]:
            yield name, size, take_turn(given, peers[name], prompts, size)


def take_turn(given: argparse.Namespace, peer: Peer, prompts: Sequence[list[int]], size: int) -> Turn:
    """Return one turn of one arm."""
    return peer.ask("run", prompts=prompts[:size], steps=given.steps, timeout_s=TURN_S)


def calibrate(
    given: argparse.Namespace, peers: Mapping[str, Peer], prompts: Sequence[list[int]], version: str
) -> Calibration:
    """Return the steps of plain decoding and of the largest k at four batch sizes, measured in turns."""
    spec, known = SpecConfig.parse(make_spec(given.kmax)), find_model_config(given.model)
    drafter = find_model_config(spec.model or "")
    assert known is not None
    assert drafter is not None
    servers = {PLAIN: peers[PLAIN], "spec": peers[fixed(given.kmax)]}
    points = []
    for size in CALIBRATED:
        took: dict[str, list[Turn]] = defaultdict(list)
        for name in (*servers, *reversed(servers)):
            took[name].append(take_turn(given, servers[name], prompts, size))
        points += [make_point(name, size, turns, prompts) for name, turns in took.items()]
    return Calibration(
        engine="vllm",
        engine_version=version,
        hardware=f"{os.cpu_count()} cores",
        args={"enforce_eager": True},
        target="SmolLM2-135M-Instruct",
        config=known.config,
        settings=(CalibratedSetting(name=PLAIN), CalibratedSetting(name="spec", spec=spec, drafter=drafter.config)),
        points=tuple(points),
    )


def make_point(name: str, size: int, turns: Sequence[Turn], prompts: Sequence[list[int]]) -> StepPoint:
    """Return what the turns of a server at a size say of its steps."""
    ms = 1e3 * np.concatenate([turn["seconds"] for turn in turns])
    tokens = sum(turn["tokens"] for turn in turns) / len(ms) / size
    mean, spread = float(ms.mean()), _TO_95 * float(ms.std()) / len(ms) ** 0.5
    return StepPoint(
        setting=name,
        load=f"c={size}",
        batch=size,
        context=float(np.mean([len(ids) for ids in prompts[:size]])) + tokens * len(ms) / len(turns) / 2,
        drafted=count_drafted(turns),
        tokens_per_step=tokens,
        step_ms=mean,
        low=mean - spread,
        high=mean + spread,
        steps=len(ms),
        source="in process",
    )


def count_drafted(turns: Sequence[Turn]) -> float:
    """Return the draft tokens of a draft; 0 where there was none."""
    drafts, tokens = (sum(turn[name] for turn in turns) for name in ("num_drafts", "num_draft_tokens"))
    return round(tokens / drafts, 3) if drafts else 0.0


def mean_step(turn: Turn) -> float:
    """Return the mean step of a turn in seconds."""
    return float(np.mean(turn["seconds"]))


def make_spec(k: int) -> dict[str, Any]:
    """Return the config of the head that belongs to the target."""
    return {"method": "eagle3", "model": str(BUNDLE / "eagle3"), "num_speculative_tokens": k}


@contextmanager
def start(given: argparse.Namespace, name: str, spec: Mapping[str, Any] | None) -> Iterator[Peer]:
    """Start vLLM; `await_start` waits for it, which takes half a minute."""
    settings = {
        "model": given.model,
        "speculative_config": spec,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": max(given.ramp),
        "kv_cache_memory_bytes": 512 * 2**20,
        "enable_prefix_caching": False,
    }
    command = [given.vllm_python, str(HERE / "vllm_steps.py")]
    one_core = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0)))}
    log = given.folder / f"{name.replace('=', '')}.log"
    peer = Peer(f"vLLM {name}", command, log=log, env={**os.environ, **one_core})
    try:
        peer.tell("open", settings=settings)
        yield peer
    finally:
        peer.close()


def await_start(peer: Peer) -> dict[str, Any]:
    """Return what vLLM is once it is up."""
    return peer.answer(START_S)


def read_prompts(given: argparse.Namespace) -> tuple[list[list[int]], list[list[int]]]:
    """Return the shortest chat requests in tokens: those to calibrate and replay on, and as many others."""
    tokenizer = load_tokenizer(given.model, skip=False)
    rows = [json.loads(line) for line in (BUNDLE / "heldout/chat.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = (tokenizer.apply_chat_template(row["messages"]) for row in rows)
    ids = sorted((tokenizer.encode(text, False) for text in texts), key=len)[: 2 * max(given.ramp)]
    return ids[::2], ids[1::2]


def say(began: float, text: str) -> None:
    """Print what has happened and when."""
    print(f"[{time.monotonic() - began:.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
