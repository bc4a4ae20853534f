"""How often the 90 % intervals of replays, step times and forecasts hold what was measured: over all committed results.

python benchmarks/cpu/interval_coverage.py --out benchmarks/cpu/results/interval_coverage.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provenance import provenance, write

CPU = Path(__file__).parent / "results"
H200 = Path(__file__).parents[1] / "h200" / "results"
TO_90 = 1.645
GOAL = (85, 95)
"""Percent."""


def main() -> None:
    """Count, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = list(count_all())
    inside, of = (sum(row[name] for row in rows) for name in ("inside", "of"))
    rows.append({"what": "all", "inside": inside, "of": of})
    for row in rows:
        row["percent"] = round(100 * row["inside"] / row["of"], 1)
        print(f"{row['what']:70} {row['inside']:4} of {row['of']:4} {row['percent']:6.1f} %")
    write(provenance() | {"goal_percent": GOAL, "rows": rows}, given.out)


def count_all() -> Iterator[dict[str, Any]]:
    """Yield how many measured values lie in the intervals of each result that is there."""
    for file in ("replay_accuracy.json", "replay_accuracy_smollm2.json"):
        if (CPU / file).exists():
            found = json.loads((CPU / file).read_text())["rows"]
            inside = sum(abs(row["off_percent"]) <= TO_90 * row["standard_error_percent"] for row in found)
            yield {"what": f"tokens a step, replayed beside served at T=1 ({file})", "inside": inside, "of": len(found)}
    protocols = json.loads((H200 / "step_costs.json").read_text())["protocols"]
    for kind, name in (("captured", "inside CUDA graphs"), ("host_bound", "that wait for the host")):
        found = [each[kind] for each in protocols.values() if each[kind] is not None]
        yield {
            "what": f"step times {name}, ratio to plain, H200 (step_costs.json)",
            "inside": round(sum(each["inside_90"] * each["rows"] for each in found)),
            "of": sum(each["rows"] for each in found),
        }
    if (H200 / "unseen_shapes.json").exists():
        for shape, measured in json.loads((H200 / "unseen_shapes.json").read_text())["shapes"].items():
            held = [each["is_inside_90"] for each in measured["foreseen"]]
            yield {"what": f"step times of {shape} (unseen_shapes.json)", "inside": sum(held), "of": len(held)}
    demo = json.loads((CPU / "forecast_demo.json").read_text())
    for part, name in ((demo, "acceptance of the counters"), (demo["replayed"], "acceptance of a replay")):
        summary = part["summary"]
        yield {
            "what": f"speed-ups of the demo, {name} (forecast_demo.json)",
            "inside": summary["measured_in_forecast_interval"],
            "of": summary["rows"],
        }
    for name in ("forecast_sweep", "forecast_sweep_2"):
        found = json.loads((H200 / name / "forecast_sweep.json").read_text())["rows"]
        yield {"what": f"speed-ups forecast before a sweep, H200 ({name})", **_count(found)}
    real = json.loads((CPU / "forecast_real.json").read_text())["rows"]
    yield {"what": "speed-ups of the published model, acceptance of a replay (forecast_real.json)", **_count(real)}


def _count(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many measured speed-ups lie in their forecast intervals."""
    inside = sum(row["forecast"][1] <= row["measured"][0] <= row["forecast"][2] for row in rows)
    return {"inside": inside, "of": len(rows)}


if __name__ == "__main__":
    main()
