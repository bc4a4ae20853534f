"""What the options of `draftwise decide` make of loads, temperatures and draft lengths."""

import json

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from draftwise.cli._options import Duration, options
from draftwise.cli._session import LOAD_TYPES
from draftwise.core import Arrivals, Condition, OpenLoop, Phase, Replay
from draftwise.core.documents import from_json, to_json
from draftwise.verbs.decide import DecideRequest, read_conditions


@click.command()
@options("load", **LOAD_TYPES)
def show(**asked) -> None:
    for condition in read_conditions(DecideRequest(**asked)):
        click.echo(f"{condition.label}|{json.dumps(to_json(condition))}")


def ask(*args: str) -> list[str]:
    result = CliRunner().invoke(show, args)
    assert result.exit_code == 0, result.output
    rows = [line.split("|", 1) for line in result.output.splitlines()]
    for label, written in rows:
        assert from_json(Condition, json.loads(written)).label == label  # the manifest brings back what was asked for
    return [label for label, _ in rows]


def test_without_any_it_is_one_greedy_stream() -> None:
    assert ask() == ["c=1"]


def test_loads_and_temperatures_make_a_product() -> None:
    assert ask("--concurrency", "1,8,8", "--rate", "0.5", "--temperature", "0,0.7") == [
        "c=1", "c=8", "0.5/s", "c=1 T=0.7", "c=8 T=0.7", "0.5/s T=0.7",
    ]  # fmt: skip


def test_ramps_bursts_and_recordings() -> None:
    found = ask("--phases", "60s:1-8/s,30s:20/s,2/s", "--arrivals", "constant", "--replay", "2", "--rate", "3")
    assert found == ["3/s constant", "60s:1-8/s,30s:20/s,2/s constant", "replay x2"]
    assert ask("--replay") == ["replay"]


def test_conditions_survive_the_manifest() -> None:
    load = OpenLoop(phases=(Phase(start_per_s=1, end_per_s=4, duration_s=9),), arrivals=Arrivals.CONSTANT)
    for condition in (Condition(load=load, temperature=0.3), Condition(load=Replay(speed=0.5)), Condition()):
        assert from_json(Condition, to_json(condition)) == condition


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--concurrency", "0"], "0 is below 1"),
        (["--concurrency", "1,x"], "not a list of whole numbers like 1,2,4"),
        (["--rate", "0"], "0 is not above 0"),
        (["--rate", "nan"], "nan is not a finite number"),
        (["--rate", "inf"], "inf is not a finite number"),
        (["--temperature", "0,inf"], "inf is not a finite number"),
        (["--replay", "inf"], "inf is not a finite number"),
        (["--turn-seconds", "inf"], "inf is not a finite number"),
        (["--temperature", "-1"], "-1 is below 0"),
        (["--phases", "1-2/s"], "a changing rate needs a duration"),
        (["--phases", "5/s,10s:1/s"], "only the last part may omit its duration"),
        (["--phases", "fast"], "is not like '60s:1-8/s,30s:20/s'"),
        (["--phases", "1.2.3s:1/s"], "is not like '60s:1-8/s,30s:20/s'"),
        (["--phases", "0s:1/s"], "a part has a duration of 0"),
        (["--phases", "9s:0/s"], "no request would ever arrive"),
    ],
)
def test_what_makes_no_load_is_said(args: list[str], words: str) -> None:
    result = CliRunner().invoke(show, args)
    assert result.exit_code == 2
    assert words in result.output


@given(number=st.floats(0, 1000), unit=st.sampled_from(["ms", "s", "m", "h"]), asked=st.sampled_from(["ms", "s", "m"]))
def test_a_time_may_have_a_unit_of_its_own(number: float, unit: str, asked: str) -> None:
    seconds: dict[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    read = Duration(0, unit=asked).convert(f"{number:.3f} {unit}", None, None)
    assert read == pytest.approx(round(number, 3) * seconds[unit] / seconds[asked])
    assert Duration(0, unit=asked).convert(f"{number:.3f}", None, None) == round(number, 3)


@pytest.mark.parametrize("text", ["", "1x", "s", "1 2s", "-1s", "1.2.3s", "nans", "1e3s", "inf"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration(0).convert(text, None, None)
