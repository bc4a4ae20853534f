"""Which alerts Prometheus raises for planted faults, and which of them do not belong there, by promtool.

    python benchmarks/cpu/alert_scenarios.py

The scenarios are those of the rules' tests (`tests/support/production.py`): a healthy day, a restart, and one fault
each, out of the table that windows and simulated services are planted with as well.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from tests.deploy.observe.test_rules import MODEL, VLLM, count_minutes, write_rules, write_series
from tests.support.production import SCENARIOS, Scenario

from draftwise import __version__
from draftwise.deploy.observe.rules import ALERTS

CODES = sorted(alert.code for alert in ALERTS)


def find_wrong(scenario: Scenario, folder: Path) -> set[str]:
    """Return the codes that are reported and should not be, or the reverse."""
    query = 'group(max_over_time(ALERTS{{alertstate="firing",alertname=~"Draftwise.*",rule="{}"}}[2d]))'
    tests = [
        {
            "expr": query.format(code),
            "eval_time": f"{count_minutes(scenario)}m",
            "exp_samples": [{"labels": "{}", "value": 1}] * (code in scenario.findings),
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
    wrong = set(re.findall(r'expr: "[^\n]*?rule=\\?"([a-z-]+)', said))
    if done.returncode and not wrong:
        raise RuntimeError(said)
    return wrong


def judge(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Return what is missed and what is false in a scenario."""
    wrong = find_wrong(scenario, folder)
    return {
        "scenario": scenario.name,
        "hours": round((count_minutes(scenario) + 1) / 60, 1),
        "alerts": sorted(scenario.findings),
        "missed": sorted(wrong & scenario.findings),
        "false": sorted(wrong - scenario.findings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "alert_scenarios.json")
    given = parser.parse_args()
    version = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
    with TemporaryDirectory() as folder:
        write_rules(Path(folder))
        rows = [judge(scenario, Path(folder)) for scenario in SCENARIOS]
    result = {
        "date": date.today().isoformat(),
        "draftwise": __version__,
        "promtool": (version.stdout + version.stderr).split()[2],
        "alerts": len(CODES),
        "expected": sum(len(row["alerts"]) for row in rows),
        "missed": sum(len(row["missed"]) for row in rows),
        "false": sum(len(row["false"]) for row in rows),
        "scenarios": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print({key: result[key] for key in ("expected", "missed", "false")})


if __name__ == "__main__":
    main()
