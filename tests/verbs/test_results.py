"""Results: their JSON has their schema, they go to other processes, and a forecast may be simulated step by step."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from tests.support.made_calibrations import make_calibration, make_profile

import draftwise
from draftwise.core import Calibration, InvalidSetup, Profile
from draftwise.core.document_schema import json_schema
from draftwise.core.documents import to_json
from draftwise.verbs.verb import Result

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
EIGHT = {"concurrency": [1, 8]}


def check_result(result: Result) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    schema = json_schema(type(result), title="result")
    assert [error.message for error in Draft7Validator(schema).iter_errors(document)] == []
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()
    assert str(result)
    assert "<pre" in result._repr_html_()


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("check", {"sources": LLAMA, "speculative_config": NGRAM}),
        ("size", {"target": LLAMA, "gpu": "H200", "speculative_config": NGRAM}),
        ("pick", {"target": LLAMA, "gpu": "H200"}),
        ("upgrade", {"sources": LLAMA, "speculative_config": NGRAM, "before": "0.26.0", "after": "0.33.0"}),
        ("explain", {"name": "ngram"}),
        ("facts", {}),
        ("forecast", {"profile": make_profile(), "calibration": make_calibration(), **EIGHT}),
        ("schedule", {"profile": make_profile(), "calibration": make_calibration()}),
    ],
)
def test_a_result_can_be_sent_stored_and_shown(verb: str, given: dict[str, Any]) -> None:
    check_result(getattr(draftwise, verb)(**given))


def test_a_forecast_may_be_simulated_step_by_step() -> None:
    plain = draftwise.forecast(make_profile(), make_calibration(), **EIGHT)
    result = draftwise.forecast(make_profile(), make_calibration(), simulate=True, **EIGHT)
    assert plain.forecast.simulated == ()
    assert {each.load for each in result.forecast.simulated} == {1, 8}
    assert result.to_dict()["cells"] == plain.to_dict()["cells"]
    check_result(result)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "null", "[]", '{"format": ' + "[" * 5000 + "]" * 5000 + "}"])
def test_a_file_that_is_no_document_is_a_finding(tmp_path: Path, text: str) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(text)
    for given in ({"profile": make_profile(), "calibration": file}, {"profile": file, "calibration": file}):
        with pytest.raises(InvalidSetup) as raised:
            draftwise.forecast(**given)
        assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Calibration, ("points", 0, "batch")),
        (Calibration, ("points", 0, "context")),
        (Calibration, ("points", 0, "prefill_tokens")),
        (Profile, ("log", "tokens_out")),
        (Profile, ("entries", 0, "temperature")),
    ],
)
@pytest.mark.parametrize("number", [10**400, 1e308, -1e308, float("nan")])
def test_a_number_that_nothing_can_be_computed_of_is_a_finding(
    tmp_path: Path, kind: type, path: tuple[Any, ...], number: float
) -> None:
    made = {Calibration: make_calibration(), Profile: make_profile()}
    rows = {each: to_json(value) for each, value in made.items()}
    place = rows[kind]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = number
    files = {each: tmp_path / each.__name__ for each in made}
    for each, file in files.items():
        file.write_text(json.dumps(rows[each]))
    if kind is Profile and path[-1] == "temperature" and number == 1e308:
        return  # of no request that is forecast
    with pytest.raises(InvalidSetup, match="is damaged"):
        draftwise.forecast(files[Profile], files[Calibration])


def test_servers_of_no_sequences_are_those_of_the_default(tmp_path: Path) -> None:
    row = to_json(make_calibration())
    row["engine"]["args"]["max_num_seqs"] = -1
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(row))
    check_result(draftwise.forecast(make_profile(), file, simulate=True, **EIGHT))
    check_result(draftwise.schedule(make_profile(), file))
