"""forecast_sweep.py: the commands it gives, and how a forecast is held beside a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forecast_sweep
import pytest
from tests.support.made_comparisons import around, compared
from tests.support.made_runs import closed, gains, make_run, save_run

from draftwise.cli import main as cli
from draftwise.core import Crossover


def arguments(tmp_path: Path, **given: Any) -> Any:
    values: dict[str, Any] = {
        "vllm_python": "env A=1 python3",
        "out": tmp_path,
        "seed": 1,
        "runs": tmp_path,
        "forecast": None,
        "seconds": 100.0,
        "scale": "tiny",
        "dtype": "bfloat16",
        "cases": ["eagle3-k3", "ngram-k5"],
        "concurrency": [1, 8],
        "prompt_tokens": [16, 64],
        "output_tokens": 8,
        "prompts": 4,
        "acceptance": "synthetic",
        "token_acceptance": 0.5,
        "serve_args": "",
        "folders": tmp_path,
    }
    return SimpleNamespace(**{**values, **given})


@pytest.mark.parametrize("verb", ["calibrate", "decide"])
@pytest.mark.parametrize("python", ["env A=1 python3", None])
def test_the_command_is_one_that_the_cli_takes(tmp_path: Path, verb: str, python: str | None) -> None:
    words = forecast_sweep.start(arguments(tmp_path, vllm_python=python), verb, 7)[3:]
    command = cli.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    given = command.make_context(verb, [str(each) for each in words[1:]]).params
    assert [each.partition(",name=")[2] for each in given["workloads"]] == ["p16", "p64"]
    assert len(given["candidates"]) == (2 if python else 3)


def test_what_is_forecast_of_one_run_is_found_in_another_of_the_same_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a calibration to the result, with runs of servers of one truth in place of the two commands."""

    def execute(words: list[str], args: Any, name: str, **_: Any) -> None:
        folder, loads, seed = ("calibration-run", (1, 8), 1) if name == "calibrate" else ("sweep-run", (1, 4, 8), 2)
        made = make_run({"ngram k=3": gains(1.5)}, conditions=closed(*loads), seed=seed)
        save_run(args.out / folder, made)

    monkeypatch.setattr(forecast_sweep, "execute", execute)
    given = arguments(tmp_path, vllm_python=None, concurrency=[1, 4, 8], calibrated=[1, 8], repeats=2)
    given.commit = "none"
    forecast_sweep.predict(given)
    forecast_sweep.sweep(given)
    found = json.loads((tmp_path / "forecast_sweep.json").read_text())
    assert found["summary"]["cells"] == 3
    assert found["summary"]["max_percent"] < 12
    assert found["summary"]["on_or_off_right"] == "3 of 3"
    assert [each["is_inside"] for each in found["crossovers"]] == [True]
    with pytest.raises(SystemExit, match="made for something else"):
        forecast_sweep.sweep(SimpleNamespace(**{**vars(given), "concurrency": [1, 2]}))


def test_a_forecast_is_held_beside_its_cells() -> None:
    made = {"workload": "code", "setting": "eagle k=3"}
    before = {
        "cells": [
            {**made, "load": 1.0, "speedup": {"value": 1.5, "low": 1.3, "high": 1.7}},
            {**made, "load": 8.0, "speedup": {"value": 0.9, "low": 0.8, "high": 1.1}},
        ],
        "ends": [{**made, "value": 5.0, "low": 3.0, "high": 9.0}],
    }
    one, eight = closed(1, 8)
    measured = [
        compared(around(1.6), one, candidate="eagle k=3"),
        compared(around(1.2), eight, candidate="eagle k=3"),
    ]
    rows = list(forecast_sweep.hold(before, measured))
    assert [each["error_percent"] for each in rows] == [-6.25, -25.0]
    end = Crossover(
        workload="code", candidate="eagle k=3", temperature=0, axis="concurrency", value=4, low=2, high=6, adopt_below=1
    )
    ends = list(forecast_sweep.hold_crossovers(before, [end]))
    found = forecast_sweep.summarise(rows, ends)
    assert found["on_or_off_right"] == "1 of 2"
    assert found["measured_in_forecast_interval"] == "1 of 2"
    assert found["crossovers_inside"] == "1 of 1"
    assert json.dumps(ends)
