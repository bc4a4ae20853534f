"""Which alerts Prometheus raises for planted and for real faults, and which of them do not belong there, by promtool.

    python benchmarks/cpu/alert_scenarios.py

The planted ones are the scenarios of the rules' tests (`tests/support/production.py`): a healthy day, a restart, and
one fault each, out of the table that windows and simulated services are planted with as well. The real ones are what
the counters of `real_diagnoses.py` grew by, kept up for two and a half hours after half an hour of the good server,
with the break-even that the sweep of its baseline found.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.deploying.observe.test_rules import count_minutes, write_series
from tests.support.adopted import EVIDENCE, LOAD, MODEL, ORDER, SETUP, SPEED
from tests.support.production import SCENARIOS, Phase, Scenario

from draftwise.core import Counters, Expected, SpecStats
from draftwise.deploying import make_order
from draftwise.deploying.observe.naming import VLLM, name_for
from draftwise.deploying.observe.rules import ALERTS, make_rules
from draftwise.deploying.order import Order
from draftwise.knowledge.findings import get_finding

CODES = sorted({alert.code for alert in ALERTS})
RESULTS = Path(__file__).parent / "results"
SECONDS = 1000
"""In which the good server is taken to have counted what a baseline keeps: counts are whole."""
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass(frozen=True)
class Counted:
    """What a real server counted in a second, in the place of one that is made up."""

    rates: Mapping[str, float]
    """Empty where it did not answer."""

    @property
    def answers(self) -> bool:
        """Whether its page could be read."""
        return bool(self.rates)

    def count(self) -> Mapping[str, float]:
        """Return the growth of its counters."""
        return {name: rate for name, rate in self.rates.items() if name not in GAUGES}

    def read_gauges(self) -> Mapping[str, float]:
        """Return its gauges."""
        return {name: rate for name, rate in self.rates.items() if name in GAUGES}


def find_fired(scenario: Scenario, order: Order, folder: Path) -> set[str]:
    """Return the codes whose alert fires at any time of a scenario."""
    (folder / "rules.yaml").write_text(
        yaml.safe_dump({"groups": list(make_rules(order, name_for(order, VLLM)).groups)})
    )
    query = 'group(max_over_time(ALERTS{{alertstate="firing",alertname=~"Draftwise.*",rule="{}"}}[2d]))'
    tests = [
        {
            "expr": query.format(code),
            "eval_time": f"{count_minutes(scenario)}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for code in CODES
    ]
    series = list(write_series(scenario, {"model_name": MODEL}, VLLM))
    test = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    file = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(file))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    silent = set(re.findall(r'expr: "[^\n]*?rule=\\?"([a-z-]+)', said))
    if not silent <= set(CODES) or (done.returncode and not silent):
        raise RuntimeError(said)
    return set(CODES) - silent


def judge_planted(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Return what is missed and what is false in a scenario."""
    fired = find_fired(scenario, ORDER, folder)
    return {
        "scenario": scenario.name,
        "hours": round((count_minutes(scenario) + 1) / 60, 1),
        "alerts": sorted(scenario.findings),
        "missed": sorted(scenario.findings - fired),
        "false": sorted(fired - scenario.findings),
    }


def judge_real(row: Mapping[str, Any], break_evens: Mapping[float, float], folder: Path) -> dict[str, Any]:
    """Return which alerts a real fault raises: those of its codes, and of what follows from them, belong to it."""
    good = row["good"][0]
    sides = [
        {("spec", f"s{index}"): Counted(rates) for index, rates in enumerate(side)}
        for side in ([good] * len(row["rates"]), row["rates"])
    ]
    phases = [Phase(minutes=minutes, servers=side) for minutes, side in zip((30, 150), sides, strict=True)]  # type: ignore[arg-type]
    order = make_real_order(row["expected"], good, break_evens)
    fired = find_fired(Scenario(name=row["fault"], phases=phases), order, folder)
    belong = set(list_belonging(row["wanted"]))
    return {
        "fault": row["fault"],
        "named first": row["named first"],
        "alerts": sorted(fired),
        "missed": [] if fired & belong else row["wanted"],
        "false": sorted(fired - belong),
    }


def make_real_order(
    expected: Mapping[str, float | None], good: Mapping[str, float], break_evens: Mapping[float, float]
) -> Order:
    """Return the order of a service with the numbers of its own baseline; what that does not know is left out.

    Args:
        expected: what `watch` held it against.
        good: what the good server counted in a second.
        break_evens: those of a sweep, by the tokens per step of the baseline that it was made for.
    """
    tokens = expected["tokens_per_step"]
    rules = [
        replace(rule, **changes)
        for rule, changes in (
            (SPEED, {"value": break_evens.get(tokens or 0.0), "measured": tokens}),
            (LOAD, {"value": expected["crossover"]}),
        )
        if changes["value"] is not None
    ]
    drafts, drafted, accepted = (
        round(SECONDS * good[f"spec_decode_num_{name}_total"]) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    counters = Counters(
        spec=SpecStats(num_drafts=drafts, num_draft_tokens=drafted, num_accepted_tokens=accepted),
        generation_tokens=round(SECONDS * good["generation_tokens_total"]),
    )
    counted = Expected(workload="as served", condition=SPEED.condition, counters=counters)
    return make_order(SETUP, evidence=replace(EVIDENCE, rollback=tuple(rules), expected=counted))


def list_belonging(codes: Sequence[str]) -> Iterator[str]:
    """Yield codes, their parents, and all that follows from either."""
    for code in codes:
        row = get_finding(code).diagnosis
        for each in filter(None, [code, row and row.parent]):
            told = get_finding(each).diagnosis
            yield from (each, *(told.consequences if told else ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "alert_scenarios.json")
    given = parser.parse_args()
    if shutil.which("promtool") is None:
        parser.error("there is no program promtool")
    version = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
    counted = [row for row in json.loads((RESULTS / "real_diagnoses.json").read_text())["faults"] if row.get("good")]
    measured = [row["expected"] for row in counted if row["expected"]["break_even"]]
    break_evens = {each["tokens_per_step"]: each["break_even"] for each in measured}
    with TemporaryDirectory() as folder:
        planted = [judge_planted(scenario, Path(folder)) for scenario in SCENARIOS]
        real = [judge_real(row, break_evens, Path(folder)) for row in counted]
    result = {
        **provenance(),
        "promtool": (version.stdout + version.stderr).split()[2],
        "alerts": len(ALERTS),
        "expected": sum(len(row["alerts"]) for row in planted),
        "missed": sum(len(row["missed"]) for row in [*planted, *real]),
        "false": sum(len(row["false"]) for row in [*planted, *real]),
        "planted": planted,
        "real": real,
    }
    write(result, given.out)
    print({key: result[key] for key in ("expected", "missed", "false")})


if __name__ == "__main__":
    main()
