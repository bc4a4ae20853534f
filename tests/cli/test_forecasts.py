"""`draftwise calibrate`, `forecast` and `schedule` as a user types them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
from tests.support.made_calibrations import NGRAM, make_calibration, make_profile
from tests.support.made_runs import closed, gains, make_run, save_run, workload

import draftwise
from draftwise.cli import calibrate_command, main
from draftwise.core import Calibration, Condition, SpecConfig
from draftwise.measure.calibrating import find_points
from draftwise.runs.documents import read_calibration, write_document
from draftwise.verbs.calibrate import CalibrateResult
from draftwise.verbs.loads import make_conditions

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Write a profile and a calibration that belong together."""
    profile, calibration = tmp_path / "profile.json", tmp_path / "calibration.json"
    write_document(profile, make_profile())
    write_document(calibration, make_calibration())
    return str(profile), str(calibration)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def check_schema(verb: str, printed: Any) -> None:
    schema = json.loads(run("schema", verb).stdout)
    assert [error.message for error in Draft7Validator(schema).iter_errors(printed)] == []


def test_a_forecast_says_what_to_run_up_to_where_and_what_settles_the_rest(files: tuple[str, str]) -> None:
    result = run("forecast", *files, "--concurrency", "1-128", "--prompt-tokens", "200")
    assert result.exit_code == 0, result.output
    assert re.search(r"^in flight +1 +2 +4 +8 +16 +32 +64 +128 +stops paying at$", result.stdout, re.MULTILINE)
    assert re.search(r"^eagle3 k=\d +\d\.\d\d \(±0\.\d\d\)", result.stdout, re.MULTILINE)
    assert re.search(r"^Run eagle3 k=\d up to \d+ in flight\.$", result.stdout, re.MULTILINE)
    assert "too close to say. This settles it:" in result.stdout
    assert re.search(
        r"^  draftwise decide \S+ --engine vllm --candidate '\{.*\}' --concurrency \d", result.stdout, re.M
    )


def test_a_group_that_the_profile_lacks_is_refused_with_those_it_has(files: tuple[str, str]) -> None:
    result = run("forecast", *files, "--group", "nope")
    assert result.exit_code == 2
    assert "no group 'nope'" in result.stderr
    assert "it has none" in result.stderr


def test_a_profile_of_groups_alone_asks_for_one(files: tuple[str, str]) -> None:
    profile = make_profile()
    write_document(
        Path(files[0]), replace(profile, entries=tuple(replace(each, group="edit") for each in profile.entries))
    )
    result = run("forecast", *files)
    assert result.exit_code == 2
    assert "by group only" in result.stderr
    assert "groups: edit" in result.stderr
    assert "in flight" in run("forecast", *files, "--group", "edit").stdout


def test_a_promise_is_kept_up_to_a_load(files: tuple[str, str]) -> None:
    result = run("forecast", *files, "--slo-tpot-ms", "4")
    assert re.search(r"^4 ms a token: eagle3 k=\d up to \d+\.$", result.stdout, re.MULTILINE)
    assert "4 ms a token: no speculation under none of these loads." in result.stdout


def test_a_simulation_shows_percentiles_with_and_without_the_drafter(files: tuple[str, str]) -> None:
    loads = ("--rate", "2,30", "--prompt-tokens", "300", "--output-tokens", "80", "--simulate")
    result = run("forecast", *files, *loads)
    assert result.exit_code == 0, result.output
    assert re.search(r"^simulated +load +TTFT P50", result.stdout, re.MULTILINE)
    assert re.search(r"^no speculation +30 /s +\d", result.stdout, re.MULTILINE)
    printed = json.loads(run("forecast", *files, *loads, "--json").stdout)
    check_schema("forecast", printed)
    rows = {(each["setting"], each["k"], each["load"]): each for each in printed["simulated"]}
    plain, busy = rows["plain", 0, 2.0], rows["plain", 0, 30.0]
    drafted, k = next((each, k) for (name, k, load), each in rows.items() if (name, load) == ("eagle3", 2.0))
    assert plain["tpot_ms"][0] == pytest.approx(1e3 * 0.0045, rel=0.06)
    assert busy["ttft_ms"][2] > plain["ttft_ms"][2]
    assert drafted["tpot_ms"][0] < plain["tpot_ms"][0]
    # What serves 1,000 requests in the mean is what the forecast without a simulation says of it.
    (cell,) = [e for e in printed["cells"] if (e["setting"], e["k"], e["load"]) == ("eagle3", k, 2.0)]
    assert drafted["tpot_ms"][0] == pytest.approx(cell["tpot_ms"], rel=0.08)


def test_a_small_pool_sends_requests_back(files: tuple[str, str], tmp_path: Path) -> None:
    calibration, small = make_calibration(), tmp_path / "small.json"
    settings = tuple(replace(each, kv_tokens=4_000) for each in calibration.settings)
    write_document(small, replace(calibration, settings=settings))
    loads = ("--concurrency", "32", "--prompt-tokens", "300", "--output-tokens", "80", "--simulate", "--json")
    found = {
        name: json.loads(run("forecast", files[0], name, *loads).stdout)["simulated"] for name in (files[1], small)
    }
    assert not any(each["preemptions"] for each in found[files[1]])
    for roomy, tight in zip(found[files[1]], found[small], strict=True):
        assert tight["ttft_ms"][1] > roomy["ttft_ms"][1]


def test_rates_have_crossovers_of_their_own(files: tuple[str, str]) -> None:
    result = run("forecast", *files, "--rate", "1,2,4")
    assert result.stdout.startswith("requests/s")
    assert "requests a second" in result.stdout


def test_a_load_far_beyond_the_calibrated_ends_with_exit_code_1(files: tuple[str, str], tmp_path: Path) -> None:
    wide = tmp_path / "wide.json"
    write_document(wide, replace(make_calibration(), args={"max_num_seqs": 512}))
    result = run("forecast", files[0], wide, "--concurrency", "8,512")
    assert result.exit_code == 1
    assert "far-from-calibrated" in result.stdout


def test_what_is_printed_and_written_as_json_is_what_the_schema_says(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "forecast.json"
    printed = json.loads(run("forecast", *files, "--json", "--out", out).stdout)
    check_schema("forecast", printed)
    assert json.loads(out.read_text()) == printed
    check_schema("schedule", json.loads(run("schedule", *files, "--json").stdout))


@pytest.mark.parametrize("loads", ["0,1", "8-2", "many", "nan"])
def test_loads_that_are_none_are_refused(files: tuple[str, str], loads: str) -> None:
    assert run("forecast", *files, "--concurrency", loads).exit_code == 2


def test_files_that_are_not_there_or_something_else_are_named(files: tuple[str, str]) -> None:
    missing, swapped = run("forecast", "nowhere.json", files[1]), run("forecast", files[1], files[0])
    assert missing.exit_code == 2
    assert "nowhere.json" in missing.stderr
    assert swapped.exit_code == 2
    assert "is not the profile of a replay" in swapped.stderr


def test_python_makes_the_same_forecast(files: tuple[str, str]) -> None:
    printed = json.loads(run("forecast", *files, "--concurrency", "1,8", "--json").stdout)
    assert draftwise.forecast(*files, concurrency=(1, 8)).to_dict() == printed


def test_a_schedule_is_written_where_the_release_follows_it(files: tuple[str, str]) -> None:
    write_document(Path(files[0]), make_profile(length=2.2))
    result = run("schedule", *files, "--vllm", "0.32.0", "--max-num-seqs", "128")
    assert result.exit_code == 0, result.output
    assert re.search(r"^eagle3: num_speculative_tokens \d for every load: \d\.\d\dx", result.stdout, re.MULTILINE)
    assert "num_speculative_tokens_per_batch_size" in result.stdout
    old = run("schedule", *files, "--vllm", "0.26.0", "--max-num-seqs", "128")
    assert "num_speculative_tokens_per_batch_size" not in old.stdout.split("ngram")[1]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Write a run of plain and ngram at 1 and 4 streams."""
    return save_run(tmp_path / "run", make_run({"ngram k=3": gains(1.5)}, conditions=closed(1, 4)))


def test_a_run_becomes_a_calibration(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    result = run("calibrate", "--from", measured, "--target", LLAMA, "--out", out)
    assert result.exit_code == 0, result.output
    assert re.search(r"^plain +\d", result.stdout, re.MULTILINE)
    found = read_calibration(out)
    assert {each.setting for each in found.points} == {"plain", "ngram k=3"}
    check_schema("calibrate", json.loads(out.read_text()))


@pytest.mark.parametrize("every", [1, 2])
def test_answers_that_came_at_one_time_show_no_steps(every: int) -> None:
    made = make_run({"ngram k=3": gains(1.5)})
    answers = [
        replace(
            each,
            timing=replace(each.timing, chunks=tuple((each.timing.chunks[0][0], n) for _, n in each.timing.chunks)),
        )
        if number % every == 0
        else each
        for number, each in enumerate(made.answers)
    ]
    points = find_points(replace(made, answers=tuple(answers)), {"ngram k=3": 3})
    assert bool(points) == (every > 1)
    assert all(each.step_ms > 0 and each.batch >= 1 for each in points)


def test_a_run_whose_model_is_not_known_asks_for_it(measured: Path, tmp_path: Path) -> None:
    result = run("calibrate", "--from", measured, "--out", tmp_path / "calibration.json")
    assert result.exit_code == 2
    assert "--target" in result.stderr
    assert not (tmp_path / "calibration.json").exists()


def test_a_calibration_that_was_stopped_names_all_that_goes_on_with_it(tmp_path: Path, monkeypatch) -> None:
    stopped = CalibrateResult(calibration=make_calibration(), directory=Path("a run"), is_finished=False)
    monkeypatch.setattr(calibrate_command, "run_measurement", lambda verb, request: (stopped, None))
    result = run("calibrate", "--url", "http://127.0.0.1:9", "--target", LLAMA, "--out", "my c.json")
    assert "draftwise calibrate --resume 'a run' --out 'my c.json'\n" in result.stderr


@pytest.mark.parametrize(
    ("conditions", "says", "kept"),
    [
        (make_conditions(rate=2.0), "arrivals show no steps", False),
        (closed(1), "Give more --minutes", False),
        (closed(1, 4), "The layer sizes of", True),
    ],
)
def test_the_fix_of_a_run_that_calibrates_nothing_is_what_mends_it(
    tmp_path: Path, conditions: tuple[Condition, ...], says: str, kept: bool
) -> None:
    short = {} if kept else {"workloads": [workload(num_prompts=2, tokens=4)]}
    measured = save_run(tmp_path / "run", make_run({"ngram k=3": gains(1.5)}, conditions=conditions, **short))
    result = run("calibrate", "--from", measured, "--out", tmp_path / "c.json", *(() if kept else ("--target", LLAMA)))
    assert result.exit_code == 2
    assert says in result.stderr
    assert ("Add the missing options to" in result.stderr) is kept


def test_a_forecast_held_against_a_run_is_remembered(measured: Path, tmp_path: Path) -> None:
    calibration, profile = tmp_path / "calibration.json", tmp_path / "profile.json"
    assert run("calibrate", "--from", measured, "--target", LLAMA, "--out", calibration).exit_code == 0
    write_document(profile, make_profile(replace(NGRAM, num_speculative_tokens=3, options={}), length=1.9))
    result = run("forecast", profile, calibration, "--against", measured)
    assert result.exit_code == 0, result.output
    assert re.search(r"^code +c=1 +ngram k=3 +\d\.\d\d +\d\.\d\d \(.*\) +[+-]\d", result.stdout, re.MULTILINE)
    assert "Calibration and run differ" not in result.stderr
    assert "not kept" not in result.stdout
    held = read_calibration(calibration).held
    for each in held:
        assert (1 + each.of_acceptance) * (1 + each.of_steps) == pytest.approx(1 + each.error)
        assert each.of_acceptance == pytest.approx(each.replayed_tokens_per_step / each.counted_tokens_per_step - 1)
    assert {each.load for each in held} == {"c=1", "c=4"}
    again = run("forecast", profile, calibration, "--against", measured, "--json")
    check_schema("forecast", json.loads(again.stdout))
    assert len(read_calibration(calibration).held) == len(held)
    check_schema("calibrate", json.loads(calibration.read_text()))


def test_what_differs_between_calibration_and_run_is_said(measured: Path, tmp_path: Path) -> None:
    calibration, profile = tmp_path / "calibration.json", tmp_path / "profile.json"
    assert run("calibrate", "--from", measured, "--target", LLAMA, "--out", calibration).exit_code == 0
    write_document(calibration, replace(read_calibration(calibration), hardware="8x H100", engine_version="0.1.0"))
    write_document(profile, make_profile(replace(NGRAM, num_speculative_tokens=3, options={}), length=1.9))
    result = run("forecast", profile, calibration, "--against", measured)
    assert "Calibration and run differ: calibrated on 8x H100, run on 2 cores of imaginary." in result.stderr
    assert "Calibration and run differ: calibrated with 0.1.0, run with" in result.stderr
    assert "code, c=1, ngram k=3: not kept, because calibration and run differ." in result.stdout
    assert not read_calibration(calibration).held


def test_an_error_that_other_traffic_explains_is_not_kept(measured: Path, tmp_path: Path) -> None:
    calibration, profile = tmp_path / "calibration.json", tmp_path / "profile.json"
    assert run("calibrate", "--from", measured, "--target", LLAMA, "--out", calibration).exit_code == 0
    write_document(profile, make_profile(replace(NGRAM, num_speculative_tokens=3, options={})))
    result = run("forecast", profile, calibration, "--against", measured)
    assert result.exit_code == 0, result.output
    assert "code, c=1, ngram k=3: not kept, because it is not the replayed traffic." in result.stdout
    assert not read_calibration(calibration).held


SPEC3 = replace(NGRAM, num_speculative_tokens=3, options={})


@pytest.mark.parametrize(
    ("replayed", "change", "said"),
    [
        (SPEC3, {"name": "lookup"}, ""),
        (
            SPEC3,
            {"name": "lookup", "spec": SpecConfig(method="suffix", num_speculative_tokens=3)},
            "ngram k=3 was not cal",
        ),
        (SPEC3, {"spec": SpecConfig(method="suffix", num_speculative_tokens=3)}, "under that config"),
        (
            SPEC3,
            {"spec": replace(SPEC3, num_speculative_tokens=2)},
            "k=3 is more than was calibrated (2) or replayed (3)",
        ),
        (replace(SPEC3, num_speculative_tokens=2), {}, "k=3 is more than was calibrated (3) or replayed (2)"),
    ],
)
def test_candidates_are_compared_by_their_config_and_what_is_left_out_is_said(
    measured: Path, tmp_path: Path, replayed: SpecConfig, change: dict[str, Any], said: str
) -> None:
    calibration, profile = tmp_path / "calibration.json", tmp_path / "profile.json"
    assert run("calibrate", "--from", measured, "--target", LLAMA, "--out", calibration).exit_code == 0
    found = read_calibration(calibration)
    plain, drafting = found.settings
    renamed = replace(drafting, **change)
    points = [replace(e, setting=renamed.name) if e.setting == drafting.name else e for e in found.points]
    firsts = [replace(e, setting=renamed.name) if e.setting == drafting.name else e for e in found.firsts]
    settings = (plain, renamed)
    write_document(calibration, replace(found, settings=settings, points=tuple(points), firsts=tuple(firsts)))
    others = [change["spec"]] if "spec" in change else []
    write_document(profile, make_profile(replayed, *others, length=1.9))
    result = run("forecast", profile, calibration, "--against", measured)
    assert result.exit_code == (2 if said else 0), result.output
    assert said in result.stderr
    assert bool(re.search(r"^code +c=1 +ngram k=3", result.stdout, re.MULTILINE)) is not bool(said)


def test_a_ratio_outside_its_interval_is_taken_apart(tmp_path: Path) -> None:
    """The candidate's steps take twice as long as when it was calibrated, and sampled requests were not replayed."""
    calibration, profile, names = tmp_path / "calibration.json", tmp_path / "profile.json", ("usual", "slow")
    conditions = (*closed(1), *closed(1, temperature=0.8))
    usual, slow = (
        save_run(tmp_path / name, make_run({"ngram k=3": gains(factor)}, conditions=conditions))
        for name, factor in zip(names, (1.5, 0.75), strict=True)
    )
    assert run("calibrate", "--from", usual, "--target", LLAMA, "--out", calibration).exit_code == 0
    write_document(profile, make_profile(SPEC3, length=1.9))
    result = run("forecast", profile, calibration, "--against", slow)
    assert result.exit_code == 0, result.output
    told = (
        r"code, c=1, ngram k=3: tokens per step forecast 1\.90, measured 1\.9\d; the candidate's step forecast "
        r"1\d\.\d\d ms, measured 2\d\.\d\d ms; the baseline's step forecast 10\.\d\d ms, measured 10\.\d\d ms\."
    )
    assert re.search(told, result.stdout), result.stdout
    assert "ngram k=3 on code at c=1 T=0.8 has no forecast: nothing was replayed at temperature 0.8." in result.stderr
    (row,) = json.loads(run("forecast", profile, calibration, "--against", slow, "--json").stdout)
    assert row["not_kept"] is None
    assert row["step_ms"][1] == pytest.approx(2 * row["step_ms"][0], rel=0.15)


def test_a_number_that_the_run_itself_doubts_is_not_kept(tmp_path: Path) -> None:
    calibration, profile = tmp_path / "calibration.json", tmp_path / "profile.json"
    measured = save_run(
        tmp_path / "run", make_run({"ngram k=3": gains(1.5)}, workloads=[workload(num_prompts=4)], conditions=closed(1))
    )
    assert run("calibrate", "--from", measured, "--target", LLAMA, "--out", calibration).exit_code == 0
    write_document(profile, make_profile(SPEC3, length=1.9))
    result = run("forecast", profile, calibration, "--against", measured)
    assert "not kept, because the run itself doubts the number: " in result.stdout
    assert not read_calibration(calibration).held


def test_names_of_urls_and_of_candidates_belong_together() -> None:
    result = run("calibrate", "--url", "http://127.0.0.1:1", "--candidate-url", "a=http://127.0.0.1:2", "--candidate",
                 'b={"method": "ngram"}')  # fmt: skip
    assert result.exit_code == 2
    assert "no --candidate-url has that name" in result.stderr


def test_a_calibration_is_a_value_that_forecasts_need_no_file_for() -> None:
    assert isinstance(make_calibration(), Calibration)
    assert draftwise.forecast(make_profile(), make_calibration(), concurrency=(1,)).forecast.cells


def test_a_run_goes_on_as_it_was_planned(measured: Path) -> None:
    result = run("calibrate", "--resume", measured, "--concurrency", "2", "--minutes", "1")
    assert result.exit_code == 2
    assert "Leave out --concurrency." in result.stderr
