"""Puts the statistics to the test on imaginary machines whose truth is known: hundreds of thousands of measurements.

    python benchmarks/cpu/statistics_simulation.py --out benchmarks/cpu/results/statistics_simulation.json

Says how often 95 % intervals hold the truth, how often a candidate that is the plain arm itself is called different
(with and without looking after every pass, alone and among 60), how often an effect is found that should be, and how
often a crossover lies in its interval. The fast versions of these are in `tests/statistics`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from provenance import provenance, write
from simulated_crossovers import rows_of_crossovers
from simulated_decisions import rows_of_families, rows_of_looks, rows_of_power, rows_of_whole_runs
from simulated_intervals import rows_of_coverage, rows_of_percentiles, rows_of_totals, summarise_coverage

SECTIONS = {
    "coverage": (rows_of_coverage, 1),
    "totals": (rows_of_totals, 2),
    "percentiles": (rows_of_percentiles, 2),
    "looks": (rows_of_looks, 2),
    "families": (rows_of_families, 4),
    "power": (rows_of_power, 2),
    "crossovers": (rows_of_crossovers, 4),
    "whole_runs": (rows_of_whole_runs, 5),
}
"""With how many times fewer trials each is done: some take longer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="measurements per row")
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, help="measure these again, keep the rest of --out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    result = {
        "what": "share of simulated measurements; margin 3 %, 95 % intervals",
        "command": f"python benchmarks/cpu/statistics_simulation.py --trials {given.trials}",
        **provenance("numpy"),
    }
    if given.sections and given.out and given.out.exists():
        result = json.loads(given.out.read_text())
    for name in given.sections or SECTIONS:
        rows, fewer = SECTIONS[name]
        result[name] = {"trials": given.trials // fewer, "rows": list(rows(given.trials // fewer))}
        print(name, f"{time.monotonic() - began:.0f} s", flush=True)
    if "coverage" in result:
        result["coverage_summary"] = summarise_coverage(result["coverage"]["rows"])
    print(json.dumps({key: value for key, value in result.items() if key not in ("coverage", "looks")}, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
