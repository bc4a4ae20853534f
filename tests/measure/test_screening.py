"""What a replay and a calibration leave out of a run, where they place its loads, and what the report says of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.support.made_calibrations import make_calibration, make_profile
from tests.support.measuring import Recorder

from draftwise.checkpoints.config_json import find_model_config
from draftwise.cli import main
from draftwise.core import CalibratedSetting, Calibration, Condition, Exactness, OpenLoop, SpecConfig, StepPoint
from draftwise.measure.measurement_spec import Candidate, MeasurementSpec
from draftwise.measure.planning import make_plan
from draftwise.measure.run_context import build_context, describe_hardware, describe_machine
from draftwise.measure.screening import ScreenedPlan, screen
from draftwise.runs import RunDirectory
from draftwise.runs.documents import write_document
from draftwise.version import __version__

BUNDLE = Path(__file__).parents[2] / "bundle"
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=3)
EAGLE = SpecConfig(method="eagle3", model=str(BUNDLE / "eagle3"), num_speculative_tokens=3)
STEPS_MS = {"plain": lambda n: 3 + n, "ngram": lambda n: 3.5 + 2 * n, "eagle3": lambda n: 9 + 2 * n}


def calibrate(steps_ms: dict[str, Callable[[float], float]]) -> Calibration:
    """Return a calibration of the bundled model on this machine, of steps of this many milliseconds."""
    known = find_model_config(str(BUNDLE / "target"))
    assert known is not None
    specs = {"plain": None, "ngram": NGRAM, "eagle3": EAGLE}
    points = tuple(
        StepPoint(
            setting=name,
            load=f"c={batch}",
            batch=batch,
            context=150,
            drafted=0 if name == "plain" else 3,
            step_ms=ms(batch),
            low=0.99 * ms(batch),
            high=1.01 * ms(batch),
            steps=500,
        )
        for name, ms in steps_ms.items()
        for batch in (1, 4, 8)
    )
    return Calibration(
        hardware=describe_machine(describe_hardware()),
        engine="draftwise",
        engine_version=__version__,
        target="target",
        config=known.config,
        settings=tuple(CalibratedSetting(name=name, spec=spec) for name, spec in specs.items()),
        points=points,
    )


@pytest.fixture
def screened(tmp_path: Path) -> Callable[..., tuple[ScreenedPlan, str]]:
    """Return what screens a plan of ngram and eagle3 by files that are written for it, and tells what it said."""

    def run(*, calibration: Calibration | None, profile: Any = None, **options: Any) -> tuple[ScreenedPlan, str]:
        files = {"calibration": calibration, "profile": profile}
        for name, document in files.items():
            if document is not None:
                write_document(tmp_path / name, document)
        spec = MeasurementSpec(
            target=str(BUNDLE / "target"),
            candidates=(Candidate(spec=NGRAM), Candidate(spec=EAGLE)),
            workloads=("code#n=12",),
            **{name: tmp_path / name for name, document in files.items() if document is not None},
            **options,
        )
        progress = Recorder()
        plan = make_plan(spec, progress)
        context = build_context(plan.arms, notes={}, thresholds={}, launch=spec.launch)
        return screen(plan, spec, context, progress), "\n".join(progress.told)

    return run


def names(found: ScreenedPlan) -> list[str]:
    return [arm.name for arm in found.plan.arms]


def test_a_candidate_that_is_forecast_to_lose_is_left_out_with_the_numbers(screened) -> None:
    found, told = screened(calibration=calibrate(STEPS_MS), profile=make_profile(NGRAM, EAGLE, length=2.0))
    assert names(found) == ["plain", "ngram k=3"]
    (omission,) = found.omissions
    assert omission.candidate == "eagle3 k=3"
    assert omission.is_final
    assert "stays below ngram k=3's" in omission.reason
    assert f"Left out: candidate eagle3 k=3: {omission.reason}." in told
    assert {each.candidate for each in found.expected} == {"ngram k=3", "eagle3 k=3"}


def test_loads_are_placed_around_the_forecast_crossover_where_none_is_asked_for(screened) -> None:
    steep = {**STEPS_MS, "ngram": lambda n: 3.5 + 3 * n}
    files = {"calibration": calibrate(steep), "profile": make_profile(NGRAM, EAGLE, length=2.0)}
    found, told = screened(**files, places_loads=True)
    loads = [each.concurrency for each in found.plan.conditions]
    assert loads[0] == 1
    assert len(loads) >= 3
    assert loads == sorted(loads)
    assert loads[-1] <= 16
    assert "requests in flight: around the load" in told
    assert [each.concurrency for each in screened(**files)[0].plan.conditions] == [1]


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": "64 cores of another"},
        {"hardware": ""},
        {"engine_version": "0.1"},
        {"args": {"dtype": "bfloat16"}},
        {"config": make_calibration().config},
    ],
)
def test_a_calibration_of_another_deployment_screens_nothing(screened, change: dict[str, Any]) -> None:
    calibration = replace(calibrate(STEPS_MS), **change)
    found, told = screened(calibration=calibration, profile=make_profile(NGRAM, EAGLE, length=2.0))
    assert names(found) == ["plain", "ngram k=3", "eagle3 k=3"]
    assert "is from another deployment, so no candidate is screened with it" in told
    assert not found.expected


def test_a_replay_alone_leaves_out_what_accepts_next_to_nothing(screened) -> None:
    poor = make_profile(NGRAM, length=1.001).entries + make_profile(EAGLE, length=2.0).entries
    profile = replace(make_profile(NGRAM), entries=poor)
    found, told = screened(calibration=None, profile=profile)
    assert "ngram k=3" in names(found)  # its interval reaches over 1.03
    sure = replace(profile.entries[0].by_k[3].tokens_per_step, value=1.001, low=1.0, high=1.002)
    entry = replace(profile.entries[0], by_k={3: replace(profile.entries[0].by_k[3], tokens_per_step=sure)})
    found, told = screened(calibration=None, profile=replace(profile, entries=(entry, profile.entries[1])))
    assert names(found) == ["plain", "eagle3 k=3"]
    assert not found.expected
    at_a_rate = (Condition(load=OpenLoop.steady(2.0)),)
    assert (
        len(names(screened(calibration=None, profile=replace(profile, entries=(entry,)), conditions=at_a_rate)[0])) == 3
    )
    assert "its forecast of at most 1.00x on code-n=12 at c=1 stays below 1.03x" in told


def test_a_lower_bound_or_another_temperature_says_nothing(screened) -> None:
    profile = make_profile(NGRAM, EAGLE, length=2.0)
    bounds = tuple(replace(each, exactness=Exactness.LOWER_BOUND) for each in profile.entries)
    found, told = screened(calibration=calibrate(STEPS_MS), profile=replace(profile, entries=bounds))
    assert len(names(found)) == 3
    assert "Not screened" in told
    hot = (Condition(temperature=1.0),)
    assert len(names(screened(calibration=calibrate(STEPS_MS), profile=profile, conditions=hot)[0])) == 3


def test_a_calibration_alone_leaves_out_what_could_not_pay_if_all_of_it_stood(screened) -> None:
    slow = {**STEPS_MS, "eagle3": lambda n: 40 + 2 * n}
    found, _ = screened(calibration=calibrate(slow))
    assert names(found) == ["plain", "ngram k=3"]
    assert not found.expected
    assert len(names(screened(calibration=calibrate(STEPS_MS))[0])) == 3


@pytest.mark.engine
@pytest.mark.usefixtures("undisturbed", "unplotted")
def test_a_run_on_the_bundled_model_measures_what_is_left_and_shows_the_forecast_beside_it(tmp_path: Path) -> None:
    """And the embedded engine is served, measured and taken down."""
    calibration, profile, out = tmp_path / "calibration.json", tmp_path / "profile.json", tmp_path / "run"
    write_document(calibration, calibrate(STEPS_MS))
    write_document(profile, make_profile(NGRAM, EAGLE, length=2.0))
    words = ["decide", str(BUNDLE / "target"), "--workload", "code#n=12", "--max-tokens", "12", "--prompts", "4"]
    words += ["--repeats", "1", "--no-adaptive", "--concurrency", "1", "--out", str(out), "--json"]
    words += ["--candidate", NGRAM.to_json(), "--candidate", EAGLE.to_json()]
    result = CliRunner().invoke(main, [*words, "--calibration", str(calibration), "--profile", str(profile)])
    assert result.exit_code in (0, 1), result.output
    summary = json.loads(result.stdout)
    assert {each["candidate"] for each in summary["comparisons"]} == {"ngram k=3"}, result.stderr
    assert summary["evidence"] is True
    assert summary["comparisons"][0]["equal_outputs"] == [4, 4]
    assert summary["context"]["servers"]["ngram k=3"]["command"].startswith("draftwise serve ")
    for server in summary["context"]["servers"].values():
        with pytest.raises(httpx.ConnectError):
            httpx.get(server["url"])
    assert any("candidate eagle3 k=3: its forecast of" in line for line in summary["unmeasured"])
    (row,) = summary["forecasts"]
    assert row["candidate"] == "ngram k=3"
    assert row["measured"]["value"] == summary["comparisons"][0]["deciding"]["value"]
    assert "Forecasts were off by" in CliRunner().invoke(main, ["report", str(out)]).output
    assert "Forecast before the run, and measured" in (out / "report.html").read_text()
    assert {each.candidate for each in RunDirectory(out).read().expected} == {"ngram k=3", "eagle3 k=3"}
