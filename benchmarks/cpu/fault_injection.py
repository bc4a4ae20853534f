"""Whole simulated runs on disturbed machines whose truth is known: how often is the verdict false, or not found?

    python benchmarks/cpu/fault_injection.py --out benchmarks/cpu/results/fault_injection.json
    python benchmarks/cpu/fault_injection.py --rows ROWS --kinds drift     # a part of it; ROWS is gone on with
    python benchmarks/cpu/fault_injection.py --trial busy-core/17/1.00     # one run again, with its findings

Servers are fakes on virtual time; session, warm-up, sweep, statistics and verdict are the program's. A candidate that
is plain decoding by another name (one draft token a step, which never stands and costs nothing) has a true effect of
1.00; 0.99 and 1.01 lie inside the margin of 3 %. To adopt or reject any of these is false; so is the wrong one of the
two where the truth is 1.20 or 0.80. Runs that end without any verdict (the time was over while servers started) are in
no share. Where one server was slow for all that was measured of it, nothing in the run can tell; such runs are in the
shares, and counted. `tests/benchmarks/test_fault_injection.py` repeats a few of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from injected_faults import KINDS, World, make_world
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import virtual_time
from tests.support.measuring import make_session

from draftwise.core import BackendError, Comparison, InvalidSetup, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.sentences import describe_reason
from draftwise.runs import RunDirectory
from draftwise.runs.row_files import RowFile

NULLS = (1.0, 0.99, 1.01)
EFFECTS = {1.2: Verdict.ADOPT, 0.8: Verdict.REJECT}
QUIET = "quiet"
_RUNS_PER_PROCESS = 25
FINAL_SEEDS = 4_000_000
"""From here on are the seeds of the figures; smaller ones were developed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: which machine, and what is true of the candidate."""

    kind: str
    seed: int
    truth: float

    @property
    def name(self) -> str:
        """What `--trial` takes."""
        return f"{self.kind}/{self.seed}/{self.truth:.2f}"

    @classmethod
    def parse(cls, name: str) -> Trial:
        """Return the trial of a name."""
        kind, seed, truth = name.split("/")
        return cls(kind=kind, seed=int(seed), truth=float(truth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run concluded."""

    trial: Trial
    about: str
    """Load, prompts, minutes and what else was drawn."""
    verdicts: tuple[str, ...]
    """Of each load that was measured; none where the run ended without a result."""
    reasons: tuple[str, ...]
    is_covered: bool = False
    """Whether a trouble of one server lasted for all that was measured: nothing in the run tells it from the server."""

    @property
    def is_false(self) -> bool:
        """Whether any load was adopted or rejected against the truth, or a gain called none."""
        wrong = {Verdict.ADOPT, Verdict.REJECT} - {EFFECTS.get(self.trial.truth)}
        if self.trial.truth > 1 and self.trial.truth in EFFECTS:
            wrong.add(Verdict.NO_GAIN)
        return any(verdict in wrong for verdict in self.verdicts)

    @property
    def is_found(self) -> bool:
        """Whether a true effect was found under any load, and nothing false was said under another."""
        return EFFECTS.get(self.trial.truth) in self.verdicts and not self.is_false


def run_trial(trial: Trial) -> Outcome:
    """Return what the program concludes from a run."""
    world = make_world(trial.kind, trial.seed, trial.truth)
    # The disk is not what is tried here: a run waits for it after every turn.
    with TemporaryDirectory() as folder, patch.object(os, "fsync"):
        try:
            found = measure(world, Path(folder) / "run")
        except (BackendError, InvalidSetup) as error:
            return Outcome(trial=trial, about=world.about, verdicts=(), reasons=(str(error),))
    return Outcome(
        trial=trial,
        about=world.about,
        verdicts=tuple(str(each.verdict) for each in found),
        reasons=tuple(describe_reason(each.reason) for each in found) or ("no comparison could be made",),
        is_covered=world.is_covered,
    )


def measure(world: World, path: Path) -> Sequence[Comparison]:
    """Return the comparisons of a run.

    Raises:
        BackendError: the time was over before anything was measured.
        InvalidSetup: the session refuses to measure.
    """
    session = make_session(
        path, world.plan, world.scripts, read_device=world.read_device, budget_s=world.budget_s, processes=1
    )
    world.watch([backend.engine for backend in session.backends])
    try:
        virtual_time.run(session.run())
    except BackendError:
        if not (path / "manifest.json").exists():
            raise
    return conclude_run(RunDirectory(path).read()).decision.comparisons


def list_trials(nulls: int, effects: int, first: int) -> list[Trial]:
    """Return so many runs of every kind without an effect, and with one."""
    truths = [
        *(NULLS[number % len(NULLS)] for number in range(nulls)),
        *(list(EFFECTS)[number % len(EFFECTS)] for number in range(effects)),
    ]
    return [Trial(kind=kind, seed=first + number, truth=truth) for kind in KINDS for number, truth in enumerate(truths)]


def wilson(count: int, total: int, quantile: float = 1.96) -> list[float]:
    """Return the 95 % interval of a share (Wilson, JASA 1927)."""
    if not total:
        return [0.0, 1.0]
    share, square = count / total, quantile**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = quantile / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return [round(max(0.0, middle - reach), 4), round(min(1.0, middle + reach), 4)]


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of some runs."""
    nulls = [each for each in outcomes if each.trial.truth in NULLS and each.verdicts]
    effects = [each for each in outcomes if each.trial.truth in EFFECTS]
    false = [each for each in nulls if each.is_false]
    return {
        "null_runs": len(nulls),
        "false": len(false),
        "false_share": round(len(false) / max(1, len(nulls)), 4),
        "false_share_95": wilson(len(false), len(nulls)),
        "false_where_trouble_covered_all": sum(each.is_covered for each in false),
        "null_runs_without_a_result": sum(not each.verdicts and each.trial.truth in NULLS for each in outcomes),
        "without_a_result_because": count_reasons(each for each in outcomes if not each.verdicts),
        "verdicts_of_nulls": count_verdicts(nulls),
        "neither_because": count_reasons(nulls),
        "effect_runs": len(effects),
        "effects_found": sum(each.is_found for each in effects),
        "effects_found_share_95": wilson(sum(each.is_found for each in effects), len(effects)),
        "effects_not_found_because": count_reasons(each for each in effects if not each.is_found),
        "effects_with_a_false_verdict": sum(each.is_false for each in effects),
    }


def count_verdicts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return how many loads got which verdict."""
    return dict(Counter(verdict for each in outcomes for verdict in each.verdicts).most_common())


def count_reasons(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return the most frequent reasons for which loads were not adopted or rejected, without their numbers."""
    given = (
        re.sub(r"\d+(\.\d+)?", "N", reason).partition(";")[0]
        for each in outcomes
        for verdict, reason in zip(each.verdicts or (Verdict.INCONCLUSIVE,), each.reasons, strict=True)
        if verdict not in (Verdict.ADOPT, Verdict.REJECT)
    )
    return dict(Counter(given).most_common(8))


def describe(outcome: Outcome) -> dict[str, Any]:
    """Return a run for the record: whoever doubts it can run it again."""
    row = asdict(outcome)
    return {"trial": outcome.trial.name, **{name: row[name] for name in ("about", "verdicts", "reasons", "is_covered")}}


def parse(row: Mapping[str, Any]) -> Outcome:
    """Return the run that `describe` recorded."""
    told = {"verdicts": tuple(row["verdicts"]), "reasons": tuple(row["reasons"])}
    return Outcome(trial=Trial.parse(row["trial"]), about=row["about"], is_covered=row["is_covered"], **told)


def run_all(trials: Sequence[Trial], rows: Path | None, processes: int) -> list[Outcome]:
    """Return the outcomes of all trials, appending each to `rows`; those that are there already are not run again."""
    known = [] if rows is None else list(RowFile(rows, parse).read())
    done = {each.trial: each for each in known}
    left = [trial for trial in trials if trial not in done]
    # Each run leaves memory behind that no other one uses.
    with Pool(processes, maxtasksperchild=_RUNS_PER_PROCESS) as pool:
        for number, outcome in enumerate(pool.imap(run_trial, left), 1):
            done[outcome.trial] = outcome
            print(f"{number} of {len(left)}", file=sys.stderr, end="\r")
            if outcome.is_false:
                print("false:", json.dumps(describe(outcome)), flush=True)
            if rows is not None:
                with rows.open("a") as file:
                    file.write(json.dumps(describe(outcome)) + "\n")
    return [done[trial] for trial in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nulls", type=int, default=46, help="runs of each kind without an effect")
    parser.add_argument("--effects", type=int, default=12, help="runs of each kind with one")
    parser.add_argument("--first-seed", type=int, default=FINAL_SEEDS)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="keep each run here, and go on with those that are")
    parser.add_argument("--trial", help="run this one alone, and print it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.trial:
        print(json.dumps(describe(run_trial(Trial.parse(given.trial))), indent=1))
        return
    trials = [each for each in list_trials(given.nulls, given.effects, given.first_seed) if each.kind in given.kinds]
    outcomes = run_all(trials, given.rows, given.processes)
    result = {
        "what": "simulated runs on disturbed machines; margin 3 %; false: adopted or rejected against the truth, under "
        "any load of the run; found: a true effect of 20 % under any load, and nothing false",
        "command": f"python benchmarks/cpu/fault_injection.py --nulls {given.nulls} --effects {given.effects} "
        f"--first-seed {given.first_seed}",
        **provenance(),
        "disturbed": summarise([each for each in outcomes if each.trial.kind != QUIET]),
        "kinds": {kind: summarise([each for each in outcomes if each.trial.kind == kind]) for kind in given.kinds},
        "false_verdicts": [describe(each) for each in outcomes if each.is_false],
    }
    print(json.dumps({name: value for name, value in result.items() if name != "false_verdicts"}, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
