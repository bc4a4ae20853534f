"""How often `draftwise watch` names what is wrong with a service, and how often it is silent where nothing is.

    python benchmarks/cpu/simulated_diagnoses.py [--seeds 20] [--healthy 1000] [--part faults]

Services are simulated request by request (`tests/support/simulated_service.py`, which knows no rule), their pages of
/metrics are read as `draftwise watch` reads them, and what `tests/support/production.py` plants is looked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.illnesses import HEALTHY, ILLNESSES
from tests.support.production import FAULTS, PAIRS, Fault
from tests.support.simulated_service import HEALTHY_MIX, Server
from tests.support.simulated_watch import observe

PLANTED = [fault for fault in FAULTS if fault.simulated is not None]
SILENT = "nothing"
REGIMES = tuple(product((2 / 60, 10 / 60, 1.0, 4.0, 14.0), (60.0, 300.0)))
"""Requests a second and seconds of a window."""
PAIR_RATES = {10.0: range(len(PAIRS)), 5.0: (PAIRS.index(("zero-acceptance", "step-cost-up")),)}
"""Pairs by requests a second: at the first rate, one of them has more in flight than the run that decided had."""
WITHOUT = {
    "all readings": {},
    "no plain pool": {"with_plain": False},
    "no probe": {"with_probe": False},
    "baseline only": {"with_plain": False, "with_probe": False, "with_earlier": False},
}


def name_all(faults: list[Fault], seed: int, **options: Any) -> list[str]:
    """Return the codes that nothing else explains, in their order."""
    found = observe(faults=faults, seed=seed, **options).diagnose()
    return [each.code for each in found if not each.follows_from] or [SILENT]


def judge_fault(index: int, seeds: int) -> dict[str, Any]:
    """Return how often one fault was named first."""
    fault = PLANTED[index]
    codes = [name_all([fault], seed) for seed in range(1, seeds + 1)]
    wanted = {fault.diagnosis, *fault.also}
    return {
        "fault": fault.name,
        "diagnosis": fault.diagnosis,
        "first": sum(each[0] in wanted for each in codes),
        "top three": sum(bool(wanted & set(each[:3])) for each in codes),
        "of": seeds,
        "named first": dict(Counter(each[0] for each in codes)),
    }


def judge_pair(index: int, rate: float, seeds: int) -> dict[str, Any]:
    """Return how often both of two faults were among the first three, of a service with so many requests a second."""
    rows = {fault.diagnosis: fault for fault in PLANTED}
    planted, service = [rows[code] for code in PAIRS[index]], Server(rate=rate)
    codes = [name_all(planted, seed, service=service) for seed in range(1, seeds + 1)]
    return {
        "pair": PAIRS[index],
        "requests a second": rate,
        "both in the top three": sum(set(PAIRS[index]) <= set(each[:3]) for each in codes),
        "of": seeds,
        "named": dict(Counter(" ".join(each[:3]) for each in codes)),
    }


def judge_healthy(seed: int, wander: float) -> tuple[str, list[str]]:
    """Return the regime, and what was said of a healthy window whose mix may have wandered."""
    rate, seconds = REGIMES[seed % len(REGIMES)]
    rng = np.random.default_rng([seed, 3])
    mix = {name: share * exp(rng.normal(0, wander)) for name, share in HEALTHY_MIX.items()}
    found = observe(
        service=Server(rate=rate), seed=10_000 + seed, seconds=seconds, mix=mix if wander else None
    ).diagnose()
    said = [each.code for each in found if each.code != "no-traffic"]
    return f"{60 * rate:g} requests/min, {seconds:g} s", said or [SILENT]


def judge_without(index: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield what one fault is called without some of the readings."""
    fault = PLANTED[index]
    for name, options in WITHOUT.items():
        codes = [name_all([fault], seed, **options)[0] for seed in range(1, seeds + 1)]
        yield {"fault": fault.diagnosis, "readings": name, "named first": dict(Counter(codes))}


def judge_faults(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for every fault."""
    with ProcessPoolExecutor(given.workers) as pool:
        return list(pool.map(judge_fault, range(len(PLANTED)), [given.seeds] * len(PLANTED)))


def judge_pairs(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for every pair."""
    with ProcessPoolExecutor(given.workers) as pool:
        return [
            row
            for rate, pairs in PAIR_RATES.items()
            for row in pool.map(judge_pair, pairs, [rate] * len(pairs), [max(given.seeds // 2, 1)] * len(pairs))
        ]


def judge_illness(index: int, seeds: int) -> dict[str, Any]:
    """Return how often one service of `tests/support/illnesses.py` was called what it is."""
    row = (*ILLNESSES, *HEALTHY)[index]
    faults = [row.find_fault(row.observe(seed)) for seed in range(1, seeds + 1)]
    return {
        "service": row.name,
        "right": faults.count(""),
        "of": seeds,
        "else": [each[:120] for each in faults if each],
    }


def judge_illnesses(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for every service that is ill, or healthy, in what it is compared with."""
    count = len(ILLNESSES) + len(HEALTHY)
    with ProcessPoolExecutor(given.workers) as pool:
        return list(pool.map(judge_illness, range(count), [given.seeds] * count))


def judge_all_healthy(given: argparse.Namespace, wander: float) -> dict[str, Any]:
    """Return what was said of healthy windows."""
    with ProcessPoolExecutor(given.workers) as pool:
        rows = list(pool.map(judge_healthy, range(given.healthy), [wander] * given.healthy, chunksize=10))
    return {
        "windows": len(rows),
        "said": dict(Counter(code for _, codes in rows for code in codes)),
        "not silent by regime": dict(Counter(f"{regime}: {codes}" for regime, codes in rows if codes != [SILENT])),
    }


PARTS: Mapping[str, Callable[[argparse.Namespace], Any]] = {
    "faults": judge_faults,
    "pairs": judge_pairs,
    "illnesses": judge_illnesses,
    "healthy": partial(judge_all_healthy, wander=0.0),
    "healthy, mix wanders by 0.25": partial(judge_all_healthy, wander=0.25),
    "fewer readings": lambda _: [row for index in range(len(PLANTED)) for row in judge_without(index, 2)],
}


def main() -> None:
    """Run the parts that are asked for, and write them among the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=1000)
    parser.add_argument("--part", choices=PARTS, action="append", help="[default: all]")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "simulated_diagnoses.json")
    given = parser.parse_args()
    for part in given.part or PARTS:
        known = json.loads(given.out.read_text()) if given.out.exists() else {}
        how = {"provenance": provenance("numpy"), "seeds": given.seeds, "windows": given.healthy}
        write(known | how | {part: PARTS[part](given)}, given.out)
    for line in sum_up(json.loads(given.out.read_text())):
        print(line)


def sum_up(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each part."""
    for part, column in (
        ("faults", "first"),
        ("faults", "top three"),
        ("pairs", "both in the top three"),
        ("illnesses", "right"),
    ):
        rows = result.get(part, [])
        yield f"{len(rows)} {part}: {column} {sum(row[column] for row in rows)} of {sum(row['of'] for row in rows)}"
    for part, row in result.items():
        if part.startswith("healthy"):
            yield f"{part}: {row['windows']} windows, {row['said']}"


if __name__ == "__main__":
    main()
