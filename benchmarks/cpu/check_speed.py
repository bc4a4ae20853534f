"""How fast `draftwise check` answers: a process started for one config, and one process for 200.

    python benchmarks/cpu/check_speed.py --out benchmarks/cpu/results/check_speed.json

Each verb is run as a user runs it, from process start to exit; `python -c pass` is what the interpreter alone takes.
The modules are compiled before, as pip leaves them: by a first round that is not timed, whatever
PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance, write

TARGET = "meta-llama/Llama-3.1-8B-Instruct"
SPECS = (
    {"method": "ngram", "num_speculative_tokens": 5},
    {"method": "suffix"},
    {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
    {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 4},
    {"method": "ngram", "num_speculative_tokens": "three", "no_such_key": 1},
)


def main() -> None:
    """Time the commands in turns and write their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder) / "batch.jsonl"
        rows = ({"target": TARGET, "speculative_config": SPECS[i % len(SPECS)]} for i in range(200))
        batch.write_text("".join(json.dumps(row) + "\n" for row in rows))
        draftwise = [sys.executable, "-m", "draftwise"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "check, one config": [*draftwise, "check", TARGET, "-sc", json.dumps(SPECS[2]), "--vllm", "0.32.0"],
            "check, bundled drafter and target": [
                *draftwise, "check", "bundle/target", "--vllm", "0.32.0", "-sc",
                '{"method": "eagle3", "model": "bundle/eagle3", "num_speculative_tokens": 3}',
            ],
            "check, one config on all releases": [
                *draftwise, "check", TARGET, "-sc", json.dumps(SPECS[0]), "--vllm", "all"
            ],
            "check, 200 configs": [*draftwise, "check", str(batch), "--json"],
            "explain": [*draftwise, "explain", "dflash"],
        }  # fmt: skip
        usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for is_timed in [False, *[True] * given.rounds]:
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env=usual)
                if is_timed:
                    times[name].append(1000 * (time.perf_counter() - start))
    result = {
        "what": "milliseconds from process start to exit",
        "command": "python benchmarks/cpu/check_speed.py",
        **provenance(),
        "rounds": given.rounds,
        "rows": [
            {"run": name, "median_ms": round(statistics.median(values), 1), "min_ms": round(min(values), 1),
             "max_ms": round(max(values), 1)}
            for name, values in times.items()
        ],
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
