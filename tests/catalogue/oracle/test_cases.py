"""The oracle's cases: the same from the same seed, half of them plausible, and every model they name is written."""

from __future__ import annotations

import json
from pathlib import Path

from catalogue.oracle.cases import generate, read_guides
from catalogue.oracle.faults import FAULTS
from catalogue.oracle.models import MODELS, PUBLISHED, write_models
from catalogue.oracle.shapes import SHAPES

GUIDES = Path(__file__).parents[3] / "catalogue" / "oracle" / "guides.jsonl"
CASES = list(generate(1, 1500))


def test_a_seed_gives_the_same_cases() -> None:
    assert list(generate(1, 200)) == CASES[:200]
    assert list(generate(2, 200)) != CASES[:200]


def test_half_of_the_cases_carry_no_fault() -> None:
    plausible = sum(not case["faults"] for case in CASES) / len(CASES)
    assert 0.45 < plausible < 0.55


def test_every_shape_and_every_fault_occurs() -> None:
    assert {case["shape"] for case in CASES} == set(SHAPES)
    assert {name for case in CASES for name in case["faults"]} == set(FAULTS)


def test_cases_are_json_and_name_written_targets() -> None:
    for case in CASES:
        assert json.loads(json.dumps(case)) == case
        assert case["target"] in MODELS


def test_no_case_spells_a_key_twice() -> None:
    for case in CASES:
        keys = [key.replace("-", "_") for key in case["spec"] or {}]
        assert len(keys) == len(set(keys))


def test_guides_name_models_that_are_written() -> None:
    guides = read_guides(GUIDES)
    assert len({guide["id"] for guide in guides}) == len(guides) >= 60
    for guide in guides:
        assert guide["source"]
        assert guide["target"] in MODELS


def test_models_are_written_where_their_names_say(tmp_path: Path) -> None:
    write_models(tmp_path)
    for name, config in MODELS.items():
        file = tmp_path / name / "config.json"
        assert file.exists() is (config is not None)
        if config is not None:
            assert json.loads(file.read_text()) == dict(config)
    assert set(PUBLISHED.values()) <= set(MODELS)
    assert "class MiMoConfig" in (tmp_path / "mimo" / "configuration_mimo.py").read_text()
