"""The verbs on replays, calibrations and runs from Python: values, paths and text alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.made_calibrations import NGRAM, make_calibration, make_profile
from tests.support.made_runs import closed, gains, make_run, save_run

import draftwise
from draftwise.cli import main
from draftwise.core import InvalidRequest
from draftwise.core.progress import Silent, Stopped
from draftwise.runs.documents import read_calibration, write_document
from draftwise.verbs.measuring import measure
from draftwise.verbs.replay import ReplayRequest, replay

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
pytestmark = pytest.mark.usefixtures("unplotted")


def printed(*words: object) -> str:
    return CliRunner().invoke(main, [str(each) for each in words], catch_exceptions=False).stdout


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", make_run({"ngram k=3": gains(1.5)}, conditions=closed(1, 4)))


def test_files_and_values_give_the_same_forecast_and_schedule(tmp_path: Path) -> None:
    profile, calibration = tmp_path / "profile.json", tmp_path / "calibration.json"
    write_document(profile, make_profile())
    write_document(calibration, make_calibration())
    made = draftwise.forecast(make_profile(), make_calibration(), concurrency="1,8")
    assert draftwise.forecast(str(profile), calibration, concurrency=(1, 8)).to_dict() == made.to_dict()
    shown = printed("forecast", profile, calibration, "--concurrency", "1,8")
    assert str(made).splitlines()[0] == shown.splitlines()[0]
    assert made.forecast.find_best("concurrency", 1) is not None
    rows = draftwise.schedule(make_profile(), make_calibration())
    assert rows.to_dict() == json.loads(printed("schedule", profile, calibration, "--json"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"concurrency": "many"}, "neither a list"), ({"rates": (0, 1)}, "loads must be above 0")],
)
def test_loads_that_are_none_are_findings(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        draftwise.forecast(make_profile(), make_calibration(), **fields)  # type: ignore[arg-type]
    assert caught.value.findings


def test_a_forecast_of_a_value_held_against_a_run_changes_no_file(measured: Path) -> None:
    calibration = draftwise.calibrate(LLAMA, from_run=measured).calibration
    profile = make_profile(replace(NGRAM, num_speculative_tokens=3, options={}), length=1.9)
    result = draftwise.forecast(profile, calibration, against=measured)
    assert {each["load"] for each in result.to_dict()} == {"c=1", "c=4"}
    assert [each.load for each in result.calibration.held] == [each.load for each in result.held]
    assert "90 % interval" in str(result)
    with pytest.raises(LookupError, match="in `held`"):
        _ = result.forecast


def test_a_run_is_calibrated_reported_and_compared(measured: Path, tmp_path: Path) -> None:
    calibrated = draftwise.calibrate(LLAMA, from_run=measured, out=tmp_path / "calibration.json")
    assert read_calibration(tmp_path / "calibration.json") == calibrated.calibration
    assert "ms a step" in str(calibrated)
    reported = draftwise.report(measured, notes={"hardware": "2 x H200"}, exports={"aiperf": tmp_path / "out.json"})
    assert reported.written == (tmp_path / "out.json",)
    assert reported.summary.context.notes == {"hardware": "2 x H200"}
    assert reported.sentence in str(reported)
    assert json.loads((measured / "summary.json").read_text()) == json.loads(json.dumps(reported.to_dict()))
    compared = draftwise.compare(measured, measured)
    assert (compared.still_true, compared.exit_code) == (True, 0)
    assert compared.sentence in str(compared)
    with pytest.raises(InvalidRequest, match="no kind of difference 'weather'"):
        draftwise.compare(measured, measured, changed="weather")


class Impatient(Silent):
    """Asks to stop after some steps."""

    def __init__(self, after: int) -> None:
        self.done, self.after = 0, after

    @property
    def stop_requested(self) -> bool:  # type: ignore[override]
        return self.done >= self.after

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        self.done = done


def test_a_stopped_replay_goes_on_where_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"prompt": [1, 2, 3, i], "answer_token_ids": [1, 2, 3, 1, 2, 3, 1], "temperature": 0} for i in range(6)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = ReplayRequest(
        str(log), target=tmp_path, candidates=({"method": "ngram", "num_speculative_tokens": 2},), out=tmp_path / "out"
    )
    with pytest.raises(Stopped):
        replay.run(request, Impatient(after=2))
    finished = replay.run(request)
    assert finished.profile.log.used == 6
    whole = replay.run(replace(request, out=tmp_path / "whole"))
    assert finished.profile == whole.profile


@pytest.mark.parametrize("also", [(), (ValueError("x"),)])
def test_a_signal_within_a_group_of_tasks_stops_a_run_as_any_other(tmp_path: Path, also: tuple[Exception, ...]) -> None:
    async def run() -> None:
        raise BaseExceptionGroup("of a library", [KeyboardInterrupt(), *also])

    directory = SimpleNamespace(path=tmp_path, leave=lambda: None)
    measurement: Any = SimpleNamespace(open=lambda *_: SimpleNamespace(run=run), directory=directory)
    if also:
        with pytest.raises(BaseExceptionGroup):
            measure(measurement, Silent(), again="")
    else:
        assert not measure(measurement, Silent(), again="").is_finished
