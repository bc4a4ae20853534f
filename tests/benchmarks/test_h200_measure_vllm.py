"""measure_vllm.py: the command it gives, the cache that holds its largest load, and when two runs count as equal."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure_vllm
import pytest
from click.testing import CliRunner
from measure_vllm import as_rows, as_table, compare_crossovers, merged, write
from shapes import Folders
from tests.support.made_comparisons import compared, decision_on, interval

from draftwise.cli import main as cli
from draftwise.core import Crossover, Verdict

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"


def arguments(**given: Any) -> argparse.Namespace:
    values = {
        "acceptance": "synthetic",
        "token_acceptance": 0.5,
        "cases": ["eagle3-k3", "ngram-k5"],
        "concurrency": [1, 64, 128],
    }
    values |= {"prompt_tokens": 128, "output_tokens": 64, "prompts": 8, "repeats": 3, "scale": "8b", "more": ""}
    values |= {"dtype": "bfloat16", "serve_args": "", "vllm_python": "env A=1 python3"}
    return argparse.Namespace(**{**values, **given})


def test_the_command_is_one_that_the_cli_takes(tmp_path: Path) -> None:
    folders = Folders(**{name: tmp_path / name for name in ("target", "draft_model", "eagle3", "dflash")})
    words = measure_vllm.command(arguments(vllm_python="false"), folders, 7, 4.0, tmp_path / "run")
    assert words[1:4] == ["-m", "draftwise", "decide"]
    # `false` ends at once: every option was understood by the time that it is started.
    result = CliRunner().invoke(cli, words[3:])
    assert "the server ended with status" in result.output
    assert "code: 8 texts; prompt tokens" in result.output
    served = words[words.index("--serve-args") + 1]
    assert "--load-format dummy_without_files" in served
    assert "--max-num-seqs 128" in served
    assert words[words.index("--vllm") + 1] == f"false {measure_vllm.SERVE}"


def test_four_servers_with_their_caches_fit_on_the_card() -> None:
    cache = measure_vllm.kv_bytes(arguments())
    tokens = 128 * (128 + 64 + 8)  # k + 1 more at most, with dflash's five layers beside the target's 32
    assert cache > tokens * 2 * 37 * 8 * 128 * 2
    weights, rest = 16.1e9 + 2.4e9, 6e9  # target and largest drafter; graphs and activations
    assert 4 * (cache + weights + rest) < 139 * 2**30


def crossing(value: float | None, low: float, high: float, candidate: str = "a") -> dict[str, Any]:
    return {"candidate": candidate, "value": value, "low": low, "high": high, "adopt_below": None}


@pytest.mark.parametrize(
    ("first", "second", "in_first", "in_second"),
    [
        (crossing(70, 60, 80), crossing(75, 65, 90), True, True),
        (crossing(70, 60, 80), crossing(75, 71, 90), True, False),
        (crossing(None, 128, math.inf), crossing(None, 120, "inf"), True, True),  # type: ignore[arg-type]
        (crossing(None, 128, math.inf), crossing(100, 90, 120), False, False),
        (crossing(None, 110, math.inf), crossing(115, 90, math.inf), True, True),
        (crossing(None, 0, 1), crossing(None, 0, 1), True, True),
        (crossing(None, 0, 1), crossing(None, 128, math.inf), False, False),
    ],
)
def test_a_crossover_is_found_again_where_it_lies_in_the_others_interval(
    first: dict[str, Any], second: dict[str, Any], in_first: bool, in_second: bool
) -> None:
    (row,) = compare_crossovers([first], [crossing(1, 1, 1, "b"), second])
    assert (row["second_in_first"], row["first_in_second"]) == (in_first, in_second)


def test_results_of_two_sittings_become_one(tmp_path: Path) -> None:
    cell = compared(interval(1.4, 1.5, 1.6), candidate="a", verdict=Verdict.ADOPT)
    found = Crossover(
        workload="code", candidate="a", temperature=0, axis="concurrency", value=None, low=128, high=math.inf,
        adopt_below=128,
    )  # fmt: skip
    decision = decision_on([cell], crossovers=(found,))
    for seed in (1, 2):
        write(tmp_path / f"{seed}.json", {"about": {}, "runs": [{"seed": seed, "at": "/x/1"} | as_rows(decision)]},
              hide="/x")  # fmt: skip
    content = merged([json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (1, 2)])
    assert [run["at"] for run in content["runs"]] == ["RUNS/1", "RUNS/1"]
    assert content["found_again"][0]["second_in_first"] is True
    assert "| a | 1.50 (1.40-1.60) adopt | 128..None..inf |" in as_table(content)


def test_a_run_that_takes_too_long_is_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert measure_vllm.end_after(child, 1.0) < 0
