"""Whole runs on servers that set traps, alone, mirrored and two at a time: how often is the verdict false?

    python benchmarks/cpu/trap_servers.py --runs 100 --http 20 --out benchmarks/cpu/results/trap_servers.json
    python benchmarks/cpu/trap_servers.py --run swapped+restart/17          # one of them again, with what it says

Servers are fakes, on virtual time or (`--http`) behind sockets of 127.0.0.1; all else is the program's. Each run draws
one trap or two, the arm that each is set on, the true effect, the number of prompts and the minutes. To adopt where
nothing is gained, to reject where nothing is lost, to see no gain in one of 27 %, and any of these where the arms are
no baseline and candidate of one model, is false.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from fault_injection import wilson
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import virtual_time
from tests.support.fake_server import FakeScript
from tests.support.hostile_server import Hostile
from tests.support.measuring import make_plan, make_session

from draftwise.core import BackendError, ClosedLoop, Condition, InvalidSetup, Prompt, RunPlan, SpecConfig, Workload
from draftwise.deciding.conclusions import conclude_run
from draftwise.knowledge.spec_keys import find_remembering
from draftwise.reporting.sentences import describe_reason
from draftwise.runs import RunDirectory

TRUTHS = (1.0, 1.0, 1.27, 0.8)
STEP_S, FIRST_S = 0.030, 0.060
PER_STEP, SPILLED, TOKENS = 1.9, 0.47, 27
"""Tokens that a step of the candidate brings, those of an answer's last step that are cut off, and those of a usual
answer after the first."""


@dataclass(kw_only=True)
class Pair:
    """Two servers and what is asked of them; traps change it."""

    rng: random.Random
    truth: float
    scripts: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    spoiled: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    """Arguments of `Hostile`."""
    temperature: float = 0.0
    num_prompts: int = 40
    spec: SpecConfig | None = field(default_factory=lambda: SpecConfig(method="ngram", num_speculative_tokens=1))
    is_void: bool = False
    """Whether any verdict is false: an arm is not what it is called."""
    jumps: bool = False
    """Whether the wall clock jumps."""
    budget_s: float

    def either(self) -> int:
        """Return which arm a trap is set on."""
        return self.rng.randrange(2)


def _slow_start(pair: Pair) -> None:
    # Nothing in a run tells a server that is slow for all of it from a slow one.
    seconds = pair.rng.uniform(0.1, 0.45) * pair.budget_s
    pair.scripts[pair.either()]["spells"] = ((0.0, seconds, pair.rng.choice((1.5, 2.0, 3.0))),)


def _swapped(pair: Pair) -> None:
    pair.is_void = True
    pair.scripts.reverse()
    pair.spoiled.reverse()


def _no_usage(pair: Pair) -> None:
    fields = {"reports_tokens": False, "refuses": ("stream_options", "return_token_ids")}
    for arm in (0, 1) if pair.rng.random() < 0.5 else (pair.either(),):
        pair.scripts[arm] |= fields


def _other_model(pair: Pair) -> None:
    pair.is_void = True
    pair.scripts[1] |= {"differs_at": pair.rng.randint(0, 3), "gap": 6.0}
    pair.temperature = pair.rng.choice((0.0, 0.0, 0.8))


def _cached_answers(pair: Pair) -> None:
    pair.scripts[1] |= {"k": 3, "remembers": pair.rng.uniform(0.5, 1.0)}
    pair.spec = pair.rng.choice((None, SpecConfig(method="suffix", num_speculative_tokens=3)))


def _rate_limit(pair: Pair) -> None:
    pair.spoiled[pair.either()] |= {"busy": range(pair.rng.randint(1, 30), 9_999, pair.rng.randint(4, 40))}


def _restart(pair: Pair) -> None:
    pair.spoiled[pair.either()] |= {"away": (pair.rng.randint(12, 60), pair.rng.uniform(0.02, 0.12) * pair.budget_s)}


def _drift(pair: Pair) -> None:
    pair.scripts[pair.either()]["drift_per_s"] = pair.rng.uniform(0.002, 0.006)


def _neighbor(pair: Pair) -> None:
    spells, at = [], 0.0
    while at < 600:
        at += pair.rng.expovariate(1 / 15)
        spells.append((at, at + pair.rng.uniform(2, 12), pair.rng.uniform(1.2, 3)))
        at = spells[-1][1]
    for script in pair.scripts if pair.rng.random() < 0.7 else (pair.scripts[pair.either()],):
        script["spells"] = tuple(spells)


def _warm_prefixes(pair: Pair) -> None:
    for script in pair.scripts:
        script["prefill_s"] = 0.002
    pair.scripts[pair.either()] |= {"prefix_caching": True, "refuses": ("cache_salt",)}


def _ends_early(pair: Pair) -> None:
    for script in pair.scripts if pair.rng.random() < 0.5 else (pair.scripts[pair.either()],):
        script["shortest"] = pair.rng.uniform(0.1, 0.5)


def _empty_answers(pair: Pair) -> None:
    pair.spoiled[pair.either()] |= {"empty": range(pair.rng.randint(1, 20), 9_999, pair.rng.randint(7, 30))}


def _errors(pair: Pair) -> None:
    pair.scripts[pair.either()]["fails"] = tuple(pair.rng.sample(range(20, 200), 12))


def _clock(pair: Pair) -> None:
    pair.jumps = True


def _late_compiling(pair: Pair) -> None:
    first = pair.rng.randint(5, 40)
    pair.scripts[pair.either()]["cold"] = ((first, first + pair.rng.randint(3, 15), pair.rng.uniform(2, 12)),)


def _others(pair: Pair) -> None:
    pair.scripts[pair.either()] |= {"foreign_running": 3, "foreign_tokens_per_s": pair.rng.uniform(20, 200)}


def _few_prompts(pair: Pair) -> None:
    pair.num_prompts = pair.rng.randint(3, 9)


TRAPS: Mapping[str, Callable[[Pair], None]] = {
    "none": lambda _: None,
    "slow-start": _slow_start,
    "swapped": _swapped,
    "no-usage": _no_usage,
    "other-model": _other_model,
    "cached-answers": _cached_answers,
    "rate-limit": _rate_limit,
    "restart": _restart,
    "drift": _drift,
    "neighbor": _neighbor,
    "warm-prefixes": _warm_prefixes,
    "ends-early": _ends_early,
    "empty-answers": _empty_answers,
    "errors": _errors,
    "clock": _clock,
    "late-compiling": _late_compiling,
    "others": _others,
    "few-prompts": _few_prompts,
}


def make_pair(name: str, *, http: bool) -> tuple[Pair, RunPlan]:
    """Return the servers of a run, and its plan."""
    traps, seed = name.split("/")
    rng = random.Random(name)
    budget_s, scale = (20.0, 0.15) if http else (rng.choice((60.0, 90.0, 120.0)), 1.0)
    pair = Pair(rng=rng, truth=TRUTHS[int(seed) % len(TRUTHS)], budget_s=budget_s)
    for arm, script in enumerate(pair.scripts):
        gain, tokens = (pair.truth, PER_STEP * TOKENS / (TOKENS + SPILLED)) if arm else (1.0, 1.0)
        script |= {"seed": rng.randrange(2**30), "jitter": 0.03, "step_jitter": 0.04}
        script |= {"first_token_s": FIRST_S * scale, "step_s": STEP_S * scale * tokens / gain}
    pair.scripts[1] |= {"k": 1, "rates": (0.9,)}
    pair.num_prompts = rng.randint(30, 80)
    for trap in traps.split("+"):
        TRAPS[trap](pair)
    has_url = any("away" in each for each in pair.spoiled) or rng.random() < 0.5
    plan = make_plan(temperature=pair.temperature)
    plain = replace(plan.arms[0], url="http://10.0.0.1:8000" if has_url else None)
    candidate = replace(plain.with_spec(pair.spec), name="candidate", url="http://10.0.0.2:8000" if has_url else None)
    prompts = (
        Prompt(id=f"p{n}", text=f"{rng.random():.17f} {n}", max_tokens=rng.randint(16, 40))
        for n in range(pair.num_prompts)
    )
    plan = replace(
        plan,
        arms=(plain, candidate),
        remembering=find_remembering((plain, candidate)),
        workloads=(Workload(name="code", source="test", prompts=tuple(prompts)),),
        conditions=(Condition(load=ClosedLoop(concurrency=rng.choice((1, 1, 1, 4))), temperature=pair.temperature),),
    )
    return pair, plan


def run_one(name: str, *, http: bool = False) -> dict[str, Any]:
    """Return what the program concludes from a run."""
    pair, plan = make_pair(name, http=http)
    clock, jumped = time.time, random.Random(name)

    def wall() -> float:
        return clock() + (jumped.uniform(-7200, 7200) if pair.jumps else 0.0)

    with TemporaryDirectory() as folder, patch.object(os, "fsync"), patch.object(time, "time", wall):
        path = Path(folder) / "run"
        scripts = [FakeScript(**each) for each in pair.scripts]
        session = make_session(path, plan, scripts, budget_s=pair.budget_s, processes=1)
        session.backends = [
            Hostile(arm.name, script, real_time=http, **spoiled)
            for arm, script, spoiled in zip(plan.arms, scripts, pair.spoiled, strict=True)
        ]
        said = {"run": name, "http": http, "truth": pair.truth, "void": pair.is_void}
        try:
            asyncio.run(session.run()) if http else virtual_time.run(session.run(), limit_s=10_000)
        except (BackendError, InvalidSetup) as error:
            if not (path / "manifest.json").exists():
                return {**said, "verdict": "refused", "why": str(error).partition("\n")[0], "false": False}
        found = conclude_run(RunDirectory(path).read()).decision.comparisons
    if not found:
        return {**said, "verdict": "none", "why": "no comparison could be made", "false": False}
    (each,) = found
    return {**said, "verdict": str(each.verdict), "why": describe_reason(each.reason),
            "ratio": [round(value, 3) if math.isfinite(value) else None
                      for value in (each.deciding.value, each.deciding.low, each.deciding.high)],
            "false": is_false(str(each.verdict), pair)}  # fmt: skip


def is_false(verdict: str, pair: Pair) -> bool:
    """Return whether a verdict contradicts what is true."""
    if pair.is_void:
        return verdict in ("adopt", "reject", "no-gain")
    true = {1.0: ("no-gain",), 1.27: ("adopt",), 0.8: ("reject", "no-gain")}[pair.truth]
    return verdict in ("adopt", "reject", "no-gain") and verdict not in true


def list_runs(count: int, first: int) -> list[str]:
    """Return names of runs: each trap alone in turn, and then each with another one."""
    names, rng = list(TRAPS), random.Random(first)
    alone = names[1:]
    pairs = [f"{one}+{other}" for one in alone for other in alone if one != other]
    rng.shuffle(pairs)
    drawn = [*names, *pairs]
    return [f"{drawn[number % len(drawn)]}/{first + number}" for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--http", type=int, default=20, help="runs over HTTP, in real time")
    parser.add_argument("--first-seed", type=int, default=1_000)
    parser.add_argument("--run", help="this one alone")
    parser.add_argument("--rows", type=Path, help="keep each run here, and go on with those that are")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run_one(given.run), indent=1))
        return
    wanted = [(name, False) for name in list_runs(given.runs, given.first_seed)]
    wanted += [(name, True) for name in list_runs(given.http, given.first_seed + 50_000)]
    known = given.rows.read_text().splitlines() if given.rows is not None and given.rows.exists() else []
    done = {(row["run"], row["http"]): row for row in map(json.loads, known)}
    for name, http in wanted:
        if (name, http) not in done:
            row = done[name, http] = run_one(name, http=http)
            print(json.dumps(row), flush=True)
            if given.rows is not None:
                with given.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows = [done[each] for each in wanted]
    false = [row for row in rows if row["false"]]
    result = {
        "what": "verdicts on servers with one trap or two; false: against what is true of them",
        "command": f"trap_servers.py --runs {given.runs} --http {given.http} --first-seed {given.first_seed}",
        **provenance(),
        "runs": len(rows),
        "over_http": sum(row["http"] for row in rows),
        "false": len(false),
        "false_share_95": wilson(len(false), len(rows)),
        "verdicts": {
            f"{truth:g}": dict(Counter(row["verdict"] for row in rows if not row["void"] and row["truth"] == truth))
            for truth in sorted({*TRUTHS})
        },
        "verdicts_where_any_is_false": dict(Counter(row["verdict"] for row in rows if row["void"])),
        "rows": rows,
    }
    write(result, given.out)
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
